"""A model's products in 16 bits, from outside: autocast around its forward, its outputs in float32
again, so that a loss outside the model is computed as it was; and for float16 a scaled loss.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.cross_entropy import MIN_CLASSES
from ridgeline.fixes.fix import speedup_without
from ridgeline.fixes.model_forward import Forward, map_tensors, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

MAX_SAVED_WORK_SHARE = 15 / 16
"""The largest share of the device's working time that 16-bit types save."""
INITIAL_SCALE = 4096.0
"""GradScaler begins at 65,536, where a first step or two is usually skipped: then the program would
not take the steps it took before."""
STEPS_BEFORE_GROWTH = 2000
"""The scale doubles after so many steps without an overflow."""
_MAX_REPORTED_SKIPS = 5


def reason_to_skip(ground: Ground) -> Reason | None:
    if any(ground.autocast):
        return because(Skip.ALREADY_SET, setting="autocast")
    return None if trains_in(ground, "float32") else because(Skip.NO_FLOAT32, model="the model")


def trains_in(ground: Ground, *dtypes: str) -> bool:
    """Return whether a module has parameters of one of these types, or no types are known."""
    kinds = {kind for module in ground.modules for kind in module.dtypes}
    return not kinds or not kinds.isdisjoint(dtypes)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    return replace(ground, in_16_bits=True)


def bound(ground: Ground) -> float | None:
    """Return the bound if 15/16 of the device's work goes. Products in 16 bits are up to 15 times
    as fast as those in float32 without tensor cores (H200, datasheet), and the rest moves half the
    bytes."""
    if not ground.busy and ground.products_share is None:
        return None
    return speedup_without(MAX_SAVED_WORK_SHARE * max(ground.busy, ground.products_share or 0.0))


def cast_obstacle(torch: Any, model: Model) -> Reason | None:
    """Return why the model cannot be put under autocast; None if it can."""
    if model.name.lower().endswith(("loss", "criterion")):
        return because(Skip.IS_A_LOSS, model=model.name)
    if torch.is_autocast_enabled(model.device):
        return because(Skip.ALREADY_SET, setting="autocast")
    if isinstance(model.inner, torch.jit.ScriptModule):
        return because(Skip.TORCHSCRIPT, model=model.name)
    if all(p.dtype != torch.float32 for p in model.inner.parameters() if p.is_floating_point()):
        return because(Skip.NO_FLOAT32, model=model.name)
    return None


def cast(program: Program, model: Model, fix: str, dtype: str) -> Reason:
    torch, device = program.torch, model.device
    reported: list[bool] = []

    def stays(tensor: Any) -> bool:
        large = tensor.dim() > 1 and tensor.size(-1) >= MIN_CLASSES and tensor.requires_grad
        if large and program.half_logits and not reported:
            reported.append(True)
            program.did(fix, because(Done.LARGE_LOGITS_STAY))
        return bool(large and program.half_logits)

    def wrap(forward: Forward) -> Forward:
        return _under_autocast(torch, device, dtype, forward, stays)

    wrap_forward(model.inner, fix, wrap, outside=True)
    done = because(Done.AUTOCAST, model=model.name, device=device, dtype=dtype)
    owner = _set_up_by(model)
    return replace(done, facts={**done.facts, "set_up_by": owner}) if owner else done


def _set_up_by(model: Model) -> str:
    """Return the class whose object set the model up in a loop of the program's own and has a
    setting for its precision; "" if there is none."""
    if type(model.module).__name__ == "_FabricModule":
        return "Fabric"
    modules = (model.module, model.inner)
    prepared = any(getattr(one, "_is_accelerate_prepared", False) for one in modules)
    return "Accelerator" if prepared else ""


def _under_autocast(
    torch: Any, device: str, dtype: str, forward: Forward, stays: Callable[[Any], bool]
) -> Forward:
    small = getattr(torch, dtype)

    def back(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype == small and not stays(tensor) else tensor

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device):  # the program's own, or one of ours outside
            return forward(self, *args, **kwargs)
        with torch.autocast(device, dtype=small):
            found = forward(self, *args, **kwargs)
        return map_tensors(torch, found, back)

    return under


def scaling_obstacle(torch: Any, module: Any) -> Reason | None:
    """Return why the module's gradients cannot be scaled from outside; None if they can."""
    for one in module.modules():
        if "FullyShardedDataParallel" in type(one).__name__ or "FSDP" in type(one).__name__:
            return because(Skip.SHARDED_MODEL)
        if one._backward_hooks or one._backward_pre_hooks:
            return because(Skip.GRADIENT_HOOK, owner="module")
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            return because(Skip.TRAINED_OUTSIDE_FLOAT32)
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return because(Skip.GRADIENT_HOOK, owner="parameter")
    return None


class Scaling:
    """A gradient scaler from outside. The backward runs on a scaled loss, and when it returns the
    gradients are scaled back, so that all the program sees of them is right. A step whose gradients
    overflowed is skipped: its gradients are taken away, and torch's optimizers leave parameters
    without one alone, moments and step counts included.

    The scale is a power of two, so that scaling there and back is exact. Whatever cannot be scaled
    raises, which ends the trial: a wrong step is never taken. `on_skip` is called with the number
    of steps skipped so far, for the first few of them.
    """

    def __init__(self, torch: Any, on_skip: Callable[[int], None]) -> None:
        self._torch = torch
        self._on_skip = on_skip
        self._parameters: dict[int, Any] = {}
        self.scale = INITIAL_SCALE
        self.skipped = 0
        self._good = 0
        self._overflowed = self._walked = False
        self._optimizer: Any = None
        self._taken_off: Callable[[], None] | None = None

    def add(self, module: Any) -> None:
        self._parameters.update({id(p): p for p in module.parameters() if p.requires_grad})
        if self._taken_off is None:
            self._install()

    def take_off(self) -> None:
        if self._taken_off is not None:
            self._taken_off()
            self._taken_off = None

    def _install(self) -> None:
        # backward() calls this last: backward itself is one of the seams, which needs its source.
        owner = self._torch.autograd
        theirs = owner._engine_run_backward

        @functools.wraps(theirs)
        def run(outputs: Any, gradients: Any, *rest: Any, **given: Any) -> Any:
            self._refuse(outputs, rest, given)
            held = self._held()
            if held:  # gradients of earlier micro-batches
                self._torch._foreach_mul_(held, self.scale)
            scaled = tuple(None if one is None else one * self.scale for one in gradients)
            found = theirs(outputs, scaled, *rest, **given)
            self._unscale()
            return found

        owner._engine_run_backward = run
        optimizer = importlib.import_module("torch.optim.optimizer")
        handles = [
            optimizer.register_optimizer_step_pre_hook(self._step_begins),
            optimizer.register_optimizer_step_post_hook(self._step_ends),
        ]

        def off() -> None:
            owner._engine_run_backward = theirs
            for handle in handles:
                handle.remove()

        self._taken_off = off

    def _refuse(self, outputs: Any, rest: tuple[Any, ...], given: dict[str, Any]) -> None:
        """`rest` holds retain_graph, create_graph and inputs."""
        if not given.get("accumulate_grad"):
            raise RuntimeError("float16 is refused: the program asks torch.autograd.grad itself")
        if len(rest) > 1 and rest[1]:
            raise RuntimeError("float16 is refused: the program differentiates its gradients")
        inputs = rest[2] if len(rest) > 2 else ()
        if any(id(one) not in self._parameters for one in inputs):
            raise RuntimeError("float16 is refused: the gradient of an input is asked for")
        if not self._walked:  # once: a large graph takes milliseconds
            self._walked = True
            if any(id(leaf) not in self._parameters for leaf in _leaves(outputs)):
                raise RuntimeError("float16 is refused: a backward reaches more than the model")

    def _held(self) -> list[Any]:
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def _unscale(self) -> None:
        torch = self._torch
        held = self._held()
        if not held:
            return
        if any(grad.is_sparse for grad in held):
            raise RuntimeError("float16 is refused: some gradients are sparse")
        flag = torch.zeros(1, device=held[0].device)
        inverse = torch.full((1,), 1 / self.scale, device=held[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(held, flag, inverse)
        if self._overflowed or bool(flag.item()):
            self._overflowed = True  # until the step: what micro-batches add is thrown away too
            for parameter in self._parameters.values():
                parameter.grad = None

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = optimizer  # itself: the id of one that is gone is used again
        if optimizer is not self._optimizer:
            raise RuntimeError("float16 is refused: the program has several optimizers")
        if type(optimizer).__name__ == "LBFGS":
            raise RuntimeError("float16 is refused: LBFGS steps without gradients too")
        known = self._parameters
        every = [p for group in optimizer.param_groups for p in group["params"]]
        if any(p.grad is not None and id(p) not in known for p in every):
            raise RuntimeError("float16 is refused: parameters outside the model are trained")

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        if not self._overflowed:
            self._good += 1
            if self._good == STEPS_BEFORE_GROWTH:
                self.scale, self._good = self.scale * 2, 0
            return
        self._overflowed, self._good = False, 0
        self.scale = max(self.scale / 2, 1.0)
        self.skipped += 1
        if self.skipped <= _MAX_REPORTED_SKIPS:
            self._on_skip(self.skipped)


def _leaves(outputs: Any) -> list[Any]:
    """Return the tensors whose gradient the backward of these outputs would write."""
    waiting = [one.grad_fn for one in outputs if getattr(one, "grad_fn", None) is not None]
    seen, found = set(waiting), []
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)
    return found
