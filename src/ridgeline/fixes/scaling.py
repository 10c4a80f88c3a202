"""A gradient scaler from outside: the backward runs on a scaled loss, and when it returns the
gradients are scaled back, so that all the program sees of them is right. A step whose gradients
overflowed is skipped: its gradients are taken away, and torch's optimizers leave parameters
without one alone, moments and step counts included.

The scale is a power of two, so scaling there and back is exact. What cannot be done so raises,
which ends the trial: a wrong step is never taken.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

START = 4096.0
"""GradScaler begins at 65,536, where a first step or two is usually skipped: then the program would
not take the steps it took before."""
GROWS_AFTER = 2000
_SAID = 5


def resists(torch: Any, module: Any) -> str:
    """Why its gradients cannot be scaled from outside; "" where they can."""
    for one in module.modules():
        if "FullyShardedDataParallel" in type(one).__name__ or "FSDP" in type(one).__name__:
            return "the model is sharded: its ranks would overflow one by one"
        if one._backward_hooks or one._backward_pre_hooks:
            return "a backward hook of a module would see scaled gradients"
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            return "some parameters that train are not in float32"
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a hook of a parameter would see scaled gradients"
    return ""


class Scaling:
    """`say` is told of steps that were skipped."""

    def __init__(self, torch: Any, say: Callable[[str], None]) -> None:
        self._torch = torch
        self._say = say
        self._parameters: dict[int, Any] = {}
        self.scale = START
        self.skipped = 0
        self._good = 0
        self._overflowed = self._walked = False
        self._optimizer: Any = None
        self._taken_off: Callable[[], None] | None = None

    def add(self, module: Any) -> None:
        self._parameters.update({id(p): p for p in module.parameters() if p.requires_grad})
        if self._taken_off is None:
            self._put_on()

    def take_off(self) -> None:
        if self._taken_off is not None:
            self._taken_off()
            self._taken_off = None

    def _put_on(self) -> None:
        # What backward() calls last: backward itself is one of the seams, which needs its source.
        owner = self._torch.autograd
        theirs = owner._engine_run_backward

        @functools.wraps(theirs)
        def run(outputs: Any, gradients: Any, *rest: Any, **given: Any) -> Any:
            self._refuse(outputs, rest, given)
            held = self._held()
            if held:  # of micro-batches before
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
        """rest: retain_graph, create_graph, inputs."""
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
            if self._good == GROWS_AFTER:
                self.scale, self._good = self.scale * 2, 0
            return
        self._overflowed, self._good = False, 0
        self.scale = max(self.scale / 2, 1.0)
        self.skipped += 1
        if self.skipped <= _SAID:
            self._say(f"{self.skipped} skipped: gradients overflowed")


def _leaves(outputs: Any) -> list[Any]:
    """Tensors whose gradient the backward of these would write."""
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
