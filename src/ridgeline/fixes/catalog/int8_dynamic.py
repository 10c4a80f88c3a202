"""Linear layers in 8 bits on a CPU, for inference: weights once, a scale a row; inputs as they
come. It alters what the model computes, so it is never tried unasked: `--allow int8-dynamic`.

The layers stay what they are, with their parameters: programs ask for `layer.weight.dtype` or load
another checkpoint. What is packed is kept beside them, and packed again when a weight has changed.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.evidence import Evidence
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.rehearsal import rehearsed
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.units import plural

LEAST = 4096
"""Elements of a weight: below it, packing inputs costs more than the product."""
MOST_OFF = 0.1
"""Of the outputs' norm: a model that is further off is another model."""
BATCHES = 4
"""On which the outputs are compared: within the steps of a trial that are not timed."""
FIX = Fix(
    id="int8-dynamic",
    group="model",
    title="Linear layers in int8",
    alters="semantics",
    precision="int8",
    slot="precision",
    why="Weights take a quarter of the bytes, and a CPU multiplies four times as many 8-bit "
    "numbers at once. Inputs are rounded to 8 bits as they come, with a scale of their own.",
    wrong_when="Accuracy was not measured on data with known answers: outputs near those of the "
    "model as it was are evidence, not proof.",
)


def reason_to_skip(ground: Ground) -> str:
    if ground.trains:
        return "the program trains, and 8-bit weights have no gradients"
    if ground.device != "cpu":
        return "it is for a CPU"
    if ground.compiled:
        return "the program compiles its model, which 8-bit layers would cut to pieces"
    if any(ground.autocast):
        return f"the program has autocast already ({', '.join(ground.autocast)})"
    kinds = {kind for module in ground.modules for kind in module.dtypes}
    return "" if "float32" in kinds or not kinds else "the model is in another type already"


def bound(ground: Ground) -> float | None:
    """Return the bound if almost all of the time of products goes. 8-bit instructions multiply 4
    (VNNI) to 32 (AMX) times as many numbers at once as those of float32. Weights are packed once
    and not at every call. They take a quarter of the bytes, so that they may fit into a cache. The
    time outside products stays."""
    return speedup_without(ground.products_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def pack(model: Model) -> str:
        inner, off = model.inner, [False]
        why = _resists(torch, model)
        layers = [] if why else _layers(torch, inner)
        if not layers:
            program.found_nothing(
                FIX.id, why or f"no Linear layer has a weight of {LEAST:,} elements or more"
            )
            return ""
        exact = rehearsed(torch, inner, model.args, model.kwargs)
        if exact.writes:
            program.found_nothing(
                FIX.id, "the model writes its buffers as it runs: it cannot be run twice to see"
            )
            return ""
        packed = [_Packed(torch, layer, off) for layer in layers]
        evidence = Evidence(torch)
        evidence.add(exact.returned, rehearsed(torch, inner, model.args, model.kwargs).returned)
        used = [one for one in packed if one.calls]
        fault = _fault(evidence, len(used))
        if fault:
            off[0] = True
            program.found_nothing(FIX.id, fault)
            return ""
        _follow(program, inner, evidence, off, model.place)
        many = plural(len(used), "Linear layer")
        return f"int8 weights in {many} of {type(inner).__name__}; {evidence.words}"

    program.on_model(FIX.id, pack)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """By hand: weights may be loaded after the model is made, and must be packed after that."""
    raise EditByHand(
        f"{applied.what}; write once the weights are loaded, before the first call: model = "
        "torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear: "
        "torch.ao.quantization.per_channel_dynamic_qconfig}); with torchao, which replaces it: "
        "quantize_(model, Int8DynamicActivationInt8WeightConfig())"
    )


def _resists(torch: Any, model: Model) -> str:
    inner = model.inner
    if inner.training:
        return "the model is in training mode, and 8-bit weights have no gradients"
    if model.device != "cpu":
        return "the model is not on the CPU"
    if torch.backends.quantized.engine in ("", "none"):
        return "torch has no 8-bit products for this processor"
    if isinstance(inner, torch.jit.ScriptModule):
        return f"{type(inner).__name__} is TorchScript"
    given = (*model.args, *model.kwargs.values())
    if any(hasattr(one, "get_seq_length") for one in given):
        return "the model fills a cache as it runs: it cannot be run twice to see"
    return ""


def _layers(torch: Any, model: Any) -> list[Any]:
    return [
        one
        for one in model.modules()
        if type(one) is torch.nn.Linear
        and one.weight.dtype == torch.float32
        and one.weight.numel() >= LEAST
    ]


def _fault(evidence: Evidence, used: int) -> str:
    if not used:
        return "its Linear layers are not called one by one: a fused path uses their weights"
    return evidence.fault("int8", MOST_OFF)


def _follow(program: Program, inner: Any, evidence: Evidence, off: list[bool], place: str) -> None:
    """The next batches are compared too, each by two calls more."""
    torch = program.torch
    handles: list[Any] = []
    pending = [True]  # the call that is about to come has been compared
    inside = [False]

    def compare(module: Any, args: Any, kwargs: Any) -> None:
        if inside[0] or torch.compiler.is_compiling() or (pending and pending.pop()):
            return
        inside[0] = off[0] = True
        try:
            exact = rehearsed(torch, module, args, kwargs).returned
            off[0] = False
            evidence.add(exact, rehearsed(torch, module, args, kwargs).returned)
        finally:
            inside[0] = off[0] = False
        if evidence.batches == BATCHES:
            handles.pop().remove()
            program.did(FIX.id, evidence.words, place)

    handles.append(inner.register_forward_pre_hook(compare, with_kwargs=True))


class _Packed:
    """A layer's weight and bias in the form the 8-bit product takes."""

    def __init__(self, torch: Any, layer: Any, off: list[bool]) -> None:
        self._torch, self._layer = torch, layer
        self.calls = 0
        # Without VNNI pairs of 8-bit products are added in 16 bits, which 7-bit inputs do not
        # overflow.
        vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
        self._narrow = not vnni()
        self._key: tuple[Any, ...] = ()
        self._made: Any = None
        around(layer, FIX.id, lambda forward: self._instead(forward, off))

    def _instead(self, forward: Forward, off: list[bool]) -> Forward:
        product = self._torch.ops.quantized.linear_dynamic

        def under(layer: Any, *args: Any, **kwargs: Any) -> Any:
            plain = off[0] or layer is not self._layer or layer.training
            if plain or len(args) != 1 or kwargs or args[0].dtype != self._torch.float32:
                return forward(layer, *args, **kwargs)
            self.calls += 1
            return product(args[0], self._now(), self._narrow)

        return under

    def _now(self) -> Any:
        held = [one for one in (self._layer.weight, self._layer.bias) if one is not None]
        key = tuple((id(one), one.is_inference() or one._version) for one in held)
        if key != self._key:
            torch, weight = self._torch, self._layer.weight.detach()
            scales = (weight.abs().amax(1).double() / 127).clamp_min(1e-12)
            zeros = torch.zeros(len(scales), dtype=torch.long)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the types are deprecated, and their products stay
                small = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
                bias = None if self._layer.bias is None else self._layer.bias.detach()
                self._made = torch.ops.quantized.linear_prepack(small, bias)
            self._key = key
        return self._made
