"""Products of large Linear layers in float8, the rest in bfloat16. It alters what the model
computes, so it is never tried unasked: `--allow fp8-linear`."""

from collections.abc import Mapping
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

TILE = 16
"""The product wants rows, columns and depth to be multiples of it."""
MIN_WIDTH = 512
"""A weight with fewer rows or columns is left: making scales takes longer than the product gains.
"""
MAX_ERROR_SHARE = 0.2
"""Share of the outputs' norm by which they may be off. A float8 number has 3 bits of mantissa, 6 %
apart: through many layers the outputs of a sound model are a few percent off."""
FIX = Fix(
    id="fp8-linear",
    group="model",
    title="Linear layers in float8",
    alters="semantics",
    precision="float8",
    slot="precision",
    together=("compile",),
    why="Tensor cores multiply float8 numbers twice as fast as bfloat16, and what is kept for the "
    "backward takes half the bytes. Each tensor is scaled by its largest element; the last layer "
    "and all that is no Linear layer stay in bfloat16.",
    wrong_when="Layers are small, or nothing is compiled: finding the largest elements and casting "
    "are passes over memory that only a compiler fuses. A training must be watched to its end.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.capability < (8, 9):
        return because(Skip.GPU_LACKS, feature="float8 in its tensor cores")
    if any("float16" in kind.split() for kind in ground.autocast) or ground.flags.gradient_scaler:
        return because(Skip.FLOAT16_WITH_SCALER)
    fits = precision.trains_in(ground, "float32", "bfloat16")
    return None if fits else because(Skip.NO_FLOAT32, model="the model")


def bound(ground: Ground) -> float | None:
    """Return the bound if almost all of the device's work goes. Products in 8 bits are 30 times as
    fast as those in float32 without tensor cores (H200, datasheet), and the rest moves half the
    bytes, as under autocast."""
    if not ground.busy and ground.products_share is None:
        return None
    return speedup_without(max(ground.busy, ground.products_share or 0.0))


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    anywhere = options.get("device") == "cpu"
    min_width = int(options.get("least") or MIN_WIDTH)

    def shrink(model: Model) -> Reason | tuple[Reason, ...]:
        obstacle = _obstacle(torch, model, anywhere)
        if obstacle is not None:
            return obstacle
        layers = _layers(torch, model.inner, min_width)
        if not layers:
            return because(Skip.NO_WIDE_LINEAR, min_width=min_width)
        before = rehearse(torch, model.inner, model.args, model.kwargs).returned
        plain = [(one, vars(one).get("forward")) for one in (model.inner, *layers)]
        used: set[int] = set()
        for layer in layers:
            wrap_forward(layer, FIX.id, lambda forward: _product(torch, forward, used))
        cast = _cast_rest(program, model)
        evidence = Evidence(torch)
        evidence.add(before, rehearse(torch, model.inner, model.args, model.kwargs).returned)
        fault = evidence.fault("float8", MAX_ERROR_SHARE)
        fault = fault if used else because(Skip.LINEAR_NOT_ALIGNED, multiple=TILE)
        if fault is not None:
            _restore_forwards(plain)
            return fault
        done = because(
            Done.FLOAT8_PRODUCTS, model=model.name, layers=len(used), rest_in_bfloat16=cast
        )
        return done, evidence.result

    program.on_model(FIX.id, shrink)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """There are no edits: which layers to convert is a choice of the one who trains."""
    raise EditByHand(ByHand.FLOAT8_LAYERS, cause=applied.targets[-1].done)


def _obstacle(torch: Any, model: Model, anywhere: bool) -> Reason | None:
    if model.device != "cuda" and not anywhere:
        return because(Skip.NO_GPU)
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        return because(Skip.TORCH_LACKS, feature="float8 products")
    if isinstance(model.inner, torch.jit.ScriptModule):
        return because(Skip.TORCHSCRIPT, model=model.name)
    if _autocast(torch, model.device) == torch.float16:
        return because(Skip.FLOAT16_WITH_SCALER)
    return None


def _layers(torch: Any, model: Any, min_width: int) -> list[Any]:
    """Return the wide Linear layers but the last, whose outputs are what the loss sees."""
    every = [one for one in model.modules() if type(one) is torch.nn.Linear][:-1]
    kinds = (torch.float32, torch.bfloat16)
    return [
        one
        for one in every
        if one.weight.dtype in kinds
        and all(n >= min_width and n % TILE == 0 for n in one.weight.shape)
    ]


def _autocast(torch: Any, device: str) -> Any:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _cast_rest(program: Program, model: Model) -> bool:
    """Put the rest of the model under bfloat16 autocast, unless the program does so. Return whether
    that was done."""
    torch = program.torch
    in_float32 = any(one.dtype == torch.float32 for one in model.inner.parameters())
    if _autocast(torch, model.device) is not None or not in_float32:
        return False
    precision.cast(program, model, FIX.id, "bfloat16")
    return True


def _restore_forwards(plain: list[tuple[Any, Any]]) -> None:
    for module, forward in plain:
        if forward is not None:
            module.forward = forward
        elif "forward" in vars(module):
            del module.forward


def _product(torch: Any, forward: Forward, used: set[int]) -> Forward:
    from ridgeline.fixes.torch_functions import float8_linear

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return forward(self, *args, **kwargs)
        found = float8_linear(args[0], self.weight, self.bias)
        if found is None:
            return forward(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            used.add(id(self))
        return found

    return under
