"""Products of large Linear layers in float8, the rest in bfloat16. It alters what the model
computes, so it is never tried unasked: `--allow fp8-linear`."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import precision
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

LEAST = 512
"""Columns and rows of a weight: below it, making scales takes longer than the product gains."""
MOST_OFF = 0.2
"""Of the outputs' norm. A float8 number has 3 bits of mantissa, 6 % apart: through many layers the
outputs of a sound model are a few percent off."""
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


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "it is for a GPU's tensor cores"
    if ground.capability < (8, 9):
        return "this GPU has no float8 in its tensor cores"
    if any("float16" in kind.split() for kind in ground.autocast) or ground.flags.gradient_scaler:
        return "the program trains in float16 with a scaled loss"
    kinds = {kind for module in ground.modules for kind in module.dtypes}
    fit = not kinds or kinds & {"float32", "bfloat16"}
    return "" if fit else "the model is in another type already"


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
    least = int(options.get("least") or LEAST)

    def shrink(model: Model) -> str:
        why = _resists(torch, model, anywhere)
        layers = [] if why else _layers(torch, model.inner, least)
        if not layers:
            program.found_nothing(
                FIX.id,
                why or f"no Linear layer but the last is {least} wide in multiples of 16",
            )
            return ""
        before = rehearsed(torch, model.inner, model.args, model.kwargs).returned
        plain = [(one, vars(one).get("forward")) for one in (model.inner, *layers)]
        used: set[int] = set()
        for layer in layers:
            around(layer, FIX.id, lambda forward: _product(torch, forward, used))
        cast = _cast(program, model)
        evidence = Evidence(torch)
        evidence.add(before, rehearsed(torch, model.inner, model.args, model.kwargs).returned)
        fault = _fault(evidence, len(used))
        if fault:
            _taken_off(plain)
            program.found_nothing(FIX.id, fault)
            return ""
        many = plural(len(used), "Linear layer")
        return f"float8 products in {many} of {type(model.inner).__name__}{cast}; {evidence.words}"

    program.on_model(FIX.id, shrink)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """By hand: which layers is a choice of the one who trains."""
    raise EditByHand(
        f"{applied.what}; write with torchao after the model is made: "
        "convert_to_float8_training(model, module_filter_fn=lambda layer, name: 'head' not in "
        "name), and autocast to bfloat16 around the model's call and the loss; or call "
        "float8_linear from ridgeline.fixes.float8 in the layers' forward"
    )


def _resists(torch: Any, model: Model, anywhere: bool) -> str:
    if model.device != "cuda" and not anywhere:
        return "it is for a GPU's tensor cores"
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        return "this version of torch has no float8 products"
    if isinstance(model.inner, torch.jit.ScriptModule):
        return f"{type(model.inner).__name__} is TorchScript"
    if _autocast(torch, model.device) == torch.float16:
        return "the program has float16 autocast"
    return ""


def _layers(torch: Any, model: Any, least: int) -> list[Any]:
    """All but the last: its outputs are what the loss sees."""
    every = [one for one in model.modules() if type(one) is torch.nn.Linear][:-1]
    kinds = (torch.float32, torch.bfloat16)
    return [
        one
        for one in every
        if one.weight.dtype in kinds and all(n >= least and n % 16 == 0 for n in one.weight.shape)
    ]


def _autocast(torch: Any, device: str) -> Any:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _cast(program: Program, model: Model) -> str:
    """bfloat16 around the rest, unless the program has it; in words."""
    torch = program.torch
    in_float32 = any(one.dtype == torch.float32 for one in model.inner.parameters())
    if _autocast(torch, model.device) is not None or not in_float32:
        return ""
    precision.cast(program, model, FIX.id, "bfloat16")
    return ", bfloat16 in the rest"


def _taken_off(plain: list[tuple[Any, Any]]) -> None:
    for module, forward in plain:
        if forward is not None:
            module.forward = forward
        elif "forward" in vars(module):
            del module.forward


def _product(torch: Any, forward: Forward, used: set[int]) -> Forward:
    from ridgeline.fixes.float8 import float8_linear

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


def _fault(evidence: Evidence, used: int) -> str:
    if not used:
        return "no product of its Linear layers has sizes in multiples of 16"
    return evidence.fault("float8", MOST_OFF)
