"""What a model was given, so that it can be called with it once more: a cache that a call appends
to, or any object of the program's own, is copied for each call of ours, or the program would find
it changed."""

import random
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib import import_module
from time import perf_counter
from typing import Any

from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.usercode.child_process import told
from ridgeline.harness.usercode.forked_work import Here, Shelf

_DEPTH = 4
_PLAIN = (
    bool, int, float, complex, str, bytes, type, types.NoneType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.ModuleType, slice, range,
)  # fmt: skip
"""Nothing of it can be changed by a call, or nobody expects it."""


def copied_inputs(torch: Any, value: Any, module: Any) -> Any:
    """As it is now. Raises what copying an object raises that cannot be copied. `module`: what is
    called; an object that holds it, or a part of it, goes on holding it."""
    return _Copies(torch, module).of(value, lambda tensor: tensor.detach().clone())


def renewed_inputs(torch: Any, value: Any, module: Any) -> Any:
    """For one call: its objects again, its tensors as they are."""
    return _Copies(torch, module).of(value, lambda tensor: tensor)


class _Copies:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        own = (torch.dtype, torch.device, torch.Size, torch.Generator, torch.nn.Module)
        self._plain = (*_PLAIN, *own)
        # A second model on the device would be seen in the program's peak, or not fit.
        held = (*module.modules(), *module.parameters(), *module.buffers())
        self._memo = {id(one): one for one in held}

    def of(self, value: Any, do: Any, depth: int = 0) -> Any:
        if isinstance(value, self._torch.Tensor):
            return do(value)
        if depth < _DEPTH and (type(value) in (tuple, list) or _is_named_tuple(value)):
            parts = [self.of(one, do, depth + 1) for one in value]
            return type(value)(*parts) if _is_named_tuple(value) else type(value)(parts)
        if depth < _DEPTH and type(value) is dict:
            return {key: self.of(one, do, depth + 1) for key, one in value.items()}
        if isinstance(value, self._plain):
            return value
        return deepcopy(value, dict(self._memo))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


MOST_BYTES = 2**30
"""Of parameters and buffers in float64, on a host; a quarter of what is free on a device."""
NAMESPACES = ("aten", "prims", "prim", "torchvision", "torchaudio")
SLOW_S = 1.0
"""A call that takes as long on a CPU takes three times that in float64."""


class Anchor:
    """One for the trial, of the first model that it trains."""

    def __init__(self, torch: Any, aside: Here | None = None) -> None:
        self._torch = torch
        self._aside = aside or Here()
        self._reference = Shelf()
        self.error: float | None = None
        self.outputs: tuple[float, ...] = ()
        self.missing = ""

    def begin(self, module: Any, args: Any, kwargs: Any) -> None:
        """Before a change is put on the model."""
        torch = self._torch
        self.missing = _unable(torch, module)
        if self.missing:
            return
        try:
            asked = self._aside.ask(lambda: self._plainly(module, args, kwargs))
            self.outputs, self.missing = asked
        except Exception as error:
            self.missing = f"no float64 reference: {told(error)}"[:200]
        finally:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()

    def _plainly(self, module: Any, args: Any, kwargs: Any) -> tuple[tuple[float, ...], str]:
        """As it is; in float64 it is put down for later, or it is said why not."""
        torch = self._torch
        with undisturbed(torch, module):
            again = [renewed_inputs(torch, one, module) for one in (args, kwargs)]
            began = perf_counter()
            outputs = prints.of_outputs(torch, module(*again[0], **again[1]))
            if not torch.cuda.is_initialized() and perf_counter() - began > SLOW_S:
                return (), "no float64 reference: a call of the model takes too long"
            try:
                wide = prints.floating(torch, _doubled(torch, module, args, kwargs))
                self._reference.put([one.double() for one in wide])
            except Exception as error:
                return outputs, f"no float64 reference: {told(error)}"[:200]
        return outputs, ""

    def changed(self, module: Any, args: Any, kwargs: Any) -> None:
        """With the changes on, and before the first step."""
        if not self.outputs:
            return
        try:
            asked = self._aside.ask(lambda: self._with_changes(module, args, kwargs))
            self.outputs, self.error = asked
        except Exception as error:
            self.outputs = ()
            self.missing = f"not evaluated at first: {told(error)}"[:200]
        finally:
            self._reference.clear()

    def _with_changes(
        self, module: Any, args: Any, kwargs: Any
    ) -> tuple[tuple[float, ...], float | None]:
        torch = self._torch
        with undisturbed(torch, module):
            again = [renewed_inputs(torch, one, module) for one in (args, kwargs)]
            returned = module(*again[0], **again[1])
        found = prints.floating(torch, returned)
        reference = [one for each in self._reference.all() for one in each]
        error = None
        if reference and [one.shape for one in found] == [one.shape for one in reference]:
            error = max(_error(one, other) for one, other in zip(found, reference, strict=True))
        return prints.of_outputs(torch, returned), error


@contextmanager
def undisturbed(torch: Any, module: Any) -> Iterator[None]:
    """Evaluation mode, without gradients, what is compiled called as it was written; and then
    everything as it was."""
    modes = [(one, one.training) for one in module.modules()]
    buffers = [(one, one.detach().clone()) for one in module.buffers()]
    held = [(store, dict(store)) for one in module.modules() for store in (vars(one), one._buffers)]
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    python = random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stance = getattr(torch.compiler, "set_stance", None)
        if stance is not None and "torch._dynamo" in sys.modules:  # 1 s to import
            stack.enter_context(stance("force_eager"))
        try:
            module.eval()
            yield
        finally:
            for store, before in held:  # a forward may count its calls, or keep a state
                for name in store.keys() - before.keys():
                    del store[name]
                store.update(before)
            for one, mode in modes:
                one.training = mode
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(drawn)


def _unable(torch: Any, module: Any) -> str:
    """Why the model is not called apart from the program; "" where it may be."""
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    if spread and torch.distributed.get_world_size() > 1:
        return "no float64 reference: the model is spread over processes"
    if isinstance(module, torch.jit.ScriptModule):
        return "no float64 reference: the model is TorchScript"
    if any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
        return "no float64 reference: the program has hooks on its model"
    tensors = [one for _, one in prints.named(module)]
    wanted = 8 * sum(one.numel() for one in tensors)
    most = MOST_BYTES
    if any(one.is_cuda for one in tensors):
        most = max(torch.cuda.mem_get_info()[0] // 4, 1)
    return "no float64 reference: the model is too large" if wanted > most else ""


def _doubled(torch: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """The same forward in float64: parameters, buffers and inputs put in for the call alone."""
    wide = {
        name: one.detach().double() if one.is_floating_point() else one.detach().clone()
        for name, one in (
            *module.named_parameters(remove_duplicate=True),
            *module.named_buffers(remove_duplicate=True),
        )
    }
    inputs = _in_float64(torch, renewed_inputs(torch, args, module))
    named = _in_float64(torch, renewed_inputs(torch, kwargs, module))
    cudnn = torch.backends.cudnn
    tunes, cudnn.benchmark = cudnn.benchmark, False
    try:
        with _torchs_own():
            return torch.func.functional_call(module, wide, tuple(inputs), named, tie_weights=True)
    finally:
        cudnn.benchmark = tunes


def _torchs_own() -> Any:
    """Lets no operator of anybody else run: a kernel written for float32 may read elsewhere."""
    modes = import_module("torch.utils._python_dispatch")

    class Own(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace not in NAMESPACES:
                raise TypeError(f"{func} is not torch's own")
            return func(*args, **(kwargs or {}))

    return Own()


def _in_float64(torch: Any, value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if depth < 4 and isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_in_float64(torch, one, depth + 1) for one in value))
    if depth < 4 and type(value) in (tuple, list):
        return type(value)(_in_float64(torch, one, depth + 1) for one in value)
    if depth < 4 and type(value) is dict:
        return {key: _in_float64(torch, one, depth + 1) for key, one in value.items()}
    return value


def _error(found: Any, reference: Any) -> float:
    size = float(reference.norm())
    return float((found.double() - reference).norm()) / (size or 1.0)
