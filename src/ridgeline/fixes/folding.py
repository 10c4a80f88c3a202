"""Convolutions whose output goes into one batch norm and nowhere else, found by watching one call
operator by operator, and the norm folded into the weights.

Modules stay as they are, with their parameters: what is folded is kept beside them and made again
when a weight has changed, and the plain path is taken whenever the norm trains.
"""

from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.outputs import mapped, tensors
from ridgeline.harness.capture import live


def pairs(torch: Any, model: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """By a call more, on copies of what it was given."""
    nn = torch.nn
    convs = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    watch = _watch(torch)
    handles = []
    for module in model.modules():
        if type(module) in convs and module.padding_mode == "zeros":
            handles.append(module.register_forward_hook(watch.conv))
        elif type(module) in norms and not module.training and module.running_var is not None:
            handles.append(module.register_forward_pre_hook(watch.norm))
            handles.append(module.register_forward_hook(watch.norm_ended))
    if len(handles) < 3:
        _removed(handles)
        return []
    given = mapped(torch, (args, kwargs), lambda one: one.detach().clone())
    gate = getattr(live.session, "gate", None)
    closed = gate.closed if gate is not None else True
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        if gate is not None:
            gate.closed = True  # a call of ours is none of the program's
        with torch.random.fork_rng(devices=cuda), torch.no_grad(), watch:
            returned = model(*given[0], **given[1])
    finally:
        if gate is not None:
            gate.closed = closed
        _removed(handles)
    watch.uses(list(tensors(torch, returned)))
    found: list[tuple[Any, Any]] = watch.found()
    return found


def fold(torch: Any, conv: Any, norm: Any, fix: str) -> None:
    kept = _Folded(torch, conv, norm)
    around(conv, fix, lambda forward: _convolving(torch, kept, conv, norm, forward))
    around(norm, fix, lambda forward: _passing(norm, forward))


def _convolving(torch: Any, kept: "_Folded", conv: Any, norm: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if norm.training or self is not conv or len(args) != 1 or kwargs:  # or a copy of it
            return forward(self, *args, **kwargs)
        weight, bias = kept.now(torch.compiler.is_compiling())
        return self._conv_forward(args[0], weight, bias)

    return under


def _passing(norm: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training or self is not norm or len(args) != 1:
            return forward(self, *args, **kwargs)
        return args[0]

    return under


class _Folded:
    """The weight and bias of both, for the values they have now."""

    def __init__(self, torch: Any, conv: Any, norm: Any) -> None:
        self._torch, self._conv, self._norm = torch, conv, norm
        self._key: tuple[Any, ...] = ()
        self._made: tuple[Any, Any] = (None, None)
        self.now(False)

    def now(self, compiling: bool) -> tuple[Any, Any]:
        if not compiling and self._key != self._state():
            from torch.nn.utils.fusion import fuse_conv_bn_weights

            conv, norm = self._conv, self._norm
            with self._torch.no_grad():
                weight, bias = fuse_conv_bn_weights(
                    conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps,
                    norm.weight, norm.bias,
                )  # fmt: skip
            self._made, self._key = (weight.detach(), bias.detach()), self._state()
        return self._made

    def _state(self) -> tuple[Any, ...]:
        conv, norm = self._conv, self._norm
        every = (conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean)
        used = [one for one in (*every, norm.running_var) if one is not None]
        return tuple((id(one), one._version, one.data_ptr(), one.dtype) for one in used)


def _watch(torch: Any) -> Any:
    """The mode that sees every operator: a class of torch's, so made when torch is there."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._outputs: dict[int, tuple[Any, Any]] = {}
            self._calls: dict[int, int] = {}
            self._used: dict[int, int] = {}
            self._fed: dict[int, Any] = {}
            self._inside: Any = None

        def conv(self, module: Any, args: Any, output: Any) -> None:
            self._calls[id(module)] = self._calls.get(id(module), 0) + 1
            self._outputs[id(output)] = (module, output)

        def norm(self, module: Any, args: Any) -> None:
            self._calls[id(module)] = self._calls.get(id(module), 0) + 1
            self._inside = args[0]
            if id(args[0]) in self._outputs:
                self._fed[id(args[0])] = module

        def norm_ended(self, module: Any, args: Any, output: Any) -> None:
            self._inside = None

        def uses(self, given: list[Any]) -> None:
            for one in given:
                if id(one) in self._outputs and one is not self._inside:
                    self._used[id(one)] = self._used.get(id(one), 0) + 1

        def found(self) -> list[tuple[Any, Any]]:
            return [
                (self._outputs[key][0], norm)
                for key, norm in self._fed.items()
                if not self._used.get(key)
                and self._calls[id(norm)] == self._calls[id(self._outputs[key][0])] == 1
            ]

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.uses(list(tensors(torch, (args, kwargs or {}))))
            return function(*args, **(kwargs or {}))

    return Watch()


def _removed(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
