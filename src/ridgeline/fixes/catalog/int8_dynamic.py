"""Linear layers in 8 bits on a CPU, for inference: weights once, a scale a row; inputs as they
come. It alters what the model computes, so it is never tried unasked: `--allow int8-dynamic`.

The layers stay what they are, with their parameters: programs ask for `layer.weight.dtype` or load
another checkpoint. What is packed is kept beside them, and packed again when a weight has changed.

If the outputs of the model are too far off, it is measured how far each layer's own output is off,
and the layers that tolerate 8 bits least keep float32: as few as it takes.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.fixes import precision
from ridgeline.fixes.fix import EditByHand, Fix, Source, speedup_without
from ridgeline.fixes.model_forward import Forward, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.rehearsal import Evidence, rehearse
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied

MIN_WEIGHT_ELEMENTS = 4096
"""For smaller weights packing the inputs costs more than the product."""
MAX_ERROR_SHARE = 0.1
"""Share of the outputs' norm by which they may be off: a model that is further off is another one.
"""
COMPARED_BATCHES = 4
"""Batches on which the outputs are compared, within the steps of a trial that are not timed."""
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


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.trains:
        return because(Skip.TRAINS)
    if ground.device != "cpu":
        return because(Skip.NO_CPU_WORK)
    if ground.compiled:
        return because(Skip.COMPILED_MODEL)
    if any(ground.autocast):
        return because(Skip.ALREADY_SET, setting="autocast")
    fits = precision.trains_in(ground, "float32")
    return None if fits else because(Skip.NO_FLOAT32, model="the model")


def bound(ground: Ground) -> float | None:
    """Return the bound if almost all of the time of products goes. 8-bit instructions multiply 4
    (VNNI) to 32 (AMX) times as many numbers at once as those of float32. Weights are packed once
    and not at every call. They take a quarter of the bytes, so that they may fit into a cache. The
    time outside products stays."""
    return speedup_without(ground.products_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def pack(model: Model) -> Reason | tuple[Reason, ...]:
        inner, off = model.inner, [False]
        obstacle = _obstacle(torch, model)
        if obstacle is not None:
            return obstacle
        layers = _layers(torch, inner)
        if not layers:
            return because(Skip.NO_LARGE_LINEAR, min_elements=MIN_WEIGHT_ELEMENTS)
        exact = rehearse(torch, inner, model.args, model.kwargs)
        if exact.writes:
            return because(Skip.WRITES_BUFFERS)
        packed = [_Packed(torch, name, layer, off) for name, layer in layers.items()]

        def evidence_of_one_call() -> Evidence:
            evidence = Evidence(torch)
            evidence.add(exact.returned, rehearse(torch, inner, model.args, model.kwargs).returned)
            return evidence

        evidence = evidence_of_one_call()
        used = [one for one in packed if one.calls]
        fault = evidence.fault("int8", MAX_ERROR_SHARE)
        if fault is not None and used:
            _measure_layers(used, evidence_of_one_call)
            evidence = _keep_tolerant(used, evidence_of_one_call) or evidence
        small = [one for one in used if not one.is_exact]
        if not small:
            off[0] = True
            return fault if used and fault is not None else because(Skip.LINEAR_NOT_CALLED)
        _compare_later_batches(program, inner, evidence, off, model.place)
        return _done(model.name, used, small), evidence.result

    program.on_model(FIX.id, pack)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """There are no edits: weights may be loaded after the model is made, and must be packed after
    that."""
    raise EditByHand(ByHand.INT8_LAYERS, cause=applied.targets[-1].done)


def _obstacle(torch: Any, model: Model) -> Reason | None:
    inner = model.inner
    if inner.training:
        return because(Skip.TRAINING_MODE)
    if model.device != "cpu":
        return because(Skip.NO_CPU_WORK)
    if torch.backends.quantized.engine in ("", "none"):
        return because(Skip.NO_INT8_PRODUCTS)
    if isinstance(inner, torch.jit.ScriptModule):
        return because(Skip.TORCHSCRIPT, model=model.name)
    return because(Skip.FILLS_A_CACHE) if model.fills_cache else None


def _layers(torch: Any, model: Any) -> dict[str, Any]:
    return {
        name: one
        for name, one in model.named_modules()
        if type(one) is torch.nn.Linear
        and one.weight.dtype == torch.float32
        and one.weight.numel() >= MIN_WEIGHT_ELEMENTS
    }


def _measure_layers(used: "Sequence[_Packed]", call: Callable[[], Evidence]) -> None:
    """Measure in one call of the model how far each layer's own output is off."""
    for one in used:
        one.is_measured = True
    try:
        call()
    finally:
        for one in used:
            one.is_measured = False


def _keep_tolerant(
    used: "Sequence[_Packed]", evidence_of_one_call: Callable[[], Evidence]
) -> Evidence | None:
    """Let the layers that are least off compute in 8 bits: as many as the outputs of the model
    tolerate, found by halving. Return the evidence of that choice; None if none may."""
    ranked = sorted(used, key=lambda one: one.error_share)
    found: Evidence | None = None
    tolerated, beyond = 0, len(ranked)
    while tolerated + 1 < beyond:
        tried = (tolerated + beyond) // 2
        _use_only(ranked, tried)
        evidence = evidence_of_one_call()
        if evidence.fault("int8", MAX_ERROR_SHARE) is None:
            tolerated, found = tried, evidence
        else:
            beyond = tried
    _use_only(ranked, tolerated)
    return found


def _use_only(ranked: "Sequence[_Packed]", count: int) -> None:
    for place, one in enumerate(ranked):
        one.is_exact = place >= count


def _done(model: str, used: "Sequence[_Packed]", small: "Sequence[_Packed]") -> Reason:
    exact = [one for one in used if one.is_exact]
    if not exact:
        return because(Done.INT8_WEIGHTS, model=model, layers=len(small))
    worst = max(exact, key=lambda one: one.error_share)
    return because(
        Done.INT8_SOME_WEIGHTS, model=model, layers=len(small), exact=len(exact),
        most_sensitive=worst.name, error_share=worst.error_share,
    )  # fmt: skip


def _compare_later_batches(
    program: Program, inner: Any, evidence: Evidence, off: list[bool], place: str
) -> None:
    """Compare the outputs of the next batches too, each by two more calls."""
    torch = program.torch
    handles: list[Any] = []
    pending = [True]  # the call that is about to come has been compared
    inside = [False]

    def compare(module: Any, args: Any, kwargs: Any) -> None:
        if inside[0] or torch.compiler.is_compiling() or (pending and pending.pop()):
            return
        inside[0] = off[0] = True
        try:
            exact = rehearse(torch, module, args, kwargs).returned
            off[0] = False
            evidence.add(exact, rehearse(torch, module, args, kwargs).returned)
        finally:
            inside[0] = off[0] = False
        if evidence.batches == COMPARED_BATCHES:
            handles.pop().remove()
            program.did(FIX.id, evidence.result, place)

    handles.append(inner.register_forward_pre_hook(compare, with_kwargs=True))


class _Packed:
    """A layer's weight and bias in the form the 8-bit product takes."""

    def __init__(self, torch: Any, name: str, layer: Any, off: list[bool]) -> None:
        self._torch, self.name, self._layer = torch, name, layer
        self.calls = 0
        self.is_exact = False
        """Whether the layer computes in float32, because the model does not tolerate its 8 bits."""
        self.is_measured = False
        """Whether `own_error` is measured, and the output stays exact meanwhile."""
        self.own_error = Evidence(torch)
        """How far the layer's output is off, given exact inputs."""
        # Without VNNI pairs of 8-bit products are added in 16 bits, which 7-bit inputs do not
        # overflow.
        vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
        self._narrow = not vnni()
        self._key: tuple[Any, ...] = ()
        self._made: Any = None
        wrap_forward(layer, FIX.id, lambda forward: self._instead(forward, off))

    @property
    def error_share(self) -> float:
        """The error of the layer's own output; infinite where it is not known or not finite."""
        share = self.own_error.error_share
        return share if math.isfinite(share) else math.inf

    def _instead(self, forward: Forward, off: list[bool]) -> Forward:
        product = self._torch.ops.quantized.linear_dynamic

        def under(layer: Any, *args: Any, **kwargs: Any) -> Any:
            plain = off[0] or layer is not self._layer or layer.training
            if plain or len(args) != 1 or kwargs or args[0].dtype != self._torch.float32:
                return forward(layer, *args, **kwargs)
            if self.is_exact:
                return forward(layer, *args, **kwargs)
            self.calls += 1
            changed = product(args[0], self._now(), self._narrow)
            if not self.is_measured:
                return changed
            exact = forward(layer, *args, **kwargs)
            self.own_error.add(exact, changed)
            return exact

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
