"""Batch norms folded into the convolutions before them, in evaluation.

A pair is a convolution whose output goes into one batch norm and nowhere else. Pairs are found by
watching one call operator by operator. Modules stay as they are, with their parameters: the folded
weight is kept beside them and made again when a weight has changed, and the plain path is taken
whenever the norm trains.
"""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_forward import Forward, map_tensors, tensors_in, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.harness.capture import live
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied

FIX = Fix(
    id="eval-fusing",
    group="model",
    title="batch norms folded into convolutions",
    alters="rounding",
    answers=("small-kernels", "fusable-chain"),
    why="In evaluation a batch norm is a factor and a sum for each channel, which the convolution "
    "before it can take into its own weights: a pass over memory less.",
    wrong_when="The running statistics are still being changed between calls.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.trains:
        return because(Skip.TRAINS)
    return None if ground.convolutions else because(Skip.NO_CONVOLUTION)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def fuse(model: Model) -> Reason:
        if model.inner.training:
            return because(Skip.TRAINING_MODE)
        pairs = foldable_pairs(torch, model.inner, model.args, model.kwargs)
        for conv, norm in pairs:
            _fold(torch, conv, norm)
        if not pairs:
            return because(Skip.NO_FOLDABLE_NORM)
        return because(Done.NORMS_FOLDED, model=model.name, norms=len(pairs))

    program.on_model(FIX.id, fuse)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    raise EditByHand(ByHand.FOLD_NORMS)


def foldable_pairs(torch: Any, model: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of convolution and norm, found by one more call of the model on copies of
    its arguments."""
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
        _remove(handles)
        return []
    given = map_tensors(torch, (args, kwargs), lambda one: one.detach().clone())
    gate = getattr(live.session, "gate", None)
    closed = gate.closed if gate is not None else True
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        if gate is not None:
            gate.closed = True  # this call is not one of the program's
        with torch.random.fork_rng(devices=cuda), torch.no_grad(), watch:
            returned = model(*given[0], **given[1])
    finally:
        if gate is not None:
            gate.closed = closed
        _remove(handles)
    watch.uses(list(tensors_in(torch, returned)))
    pairs: list[tuple[Any, Any]] = watch.pairs()
    return pairs


def _fold(torch: Any, conv: Any, norm: Any) -> None:
    folded = _Folded(torch, conv, norm)
    wrap_forward(conv, FIX.id, lambda forward: _convolving(folded, conv, norm, forward))
    wrap_forward(norm, FIX.id, lambda forward: _passing(norm, forward))


def _convolving(folded: "_Folded", conv: Any, norm: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if norm.training or self is not conv or len(args) != 1 or kwargs:  # or a copy of it
            return forward(self, *args, **kwargs)
        weight, bias = folded.current()
        return self._conv_forward(args[0], weight, bias)

    return under


def _passing(norm: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training or self is not norm or len(args) != 1:
            return forward(self, *args, **kwargs)
        return args[0]

    return under


class _Folded:
    """The folded weight and bias, made again when a value they come from has changed."""

    def __init__(self, torch: Any, conv: Any, norm: Any) -> None:
        self._torch, self._conv, self._norm = torch, conv, norm
        self._key: tuple[Any, ...] = ()
        self._made: tuple[Any, Any] = (None, None)
        self.current()

    def current(self) -> tuple[Any, Any]:
        if not self._torch.compiler.is_compiling() and self._key != self._state():
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
    """Return a mode that sees every operator. Its base is a class of torch's, so it is made when
    torch has been imported."""
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

        def pairs(self) -> list[tuple[Any, Any]]:
            return [
                (self._outputs[key][0], norm)
                for key, norm in self._fed.items()
                if not self._used.get(key)
                and self._calls[id(norm)] == self._calls[id(self._outputs[key][0])] == 1
            ]

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.uses(list(tensors_in(torch, (args, kwargs or {}))))
            return function(*args, **(kwargs or {}))

    return Watch()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
