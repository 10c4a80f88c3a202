"""A model's products in 16 bits, put on from outside: autocast around its forward, its outputs in
float32 again, so that a loss outside the model is computed as it was."""

from collections.abc import Callable
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.cross_entropies import CLASSES
from ridgeline.fixes.outputs import mapped
from ridgeline.fixes.program import Model, Program
from ridgeline.records.ground import Ground

MAX_SAVED_WORK_SHARE = 15 / 16
"""The largest share of the device's working time that 16-bit types save."""
HALF = "large logits stay in 16 bits"
"""Said of a trial in which a loss that was put on casts them itself."""


def reason_to_skip(ground: Ground) -> str:
    if any(ground.autocast):
        return f"the program has autocast already ({', '.join(ground.autocast)})"
    kinds = {kind for module in ground.modules for kind in module.dtypes}
    return "" if "float32" in kinds or not kinds else "the model is in another type already"


def bound(ground: Ground) -> float | None:
    """Return the bound if 15/16 of the device's work goes. Products in 16 bits are up to 15 times
    as fast as those in float32 without tensor cores (H200, datasheet), and the rest moves half the
    bytes."""
    if not ground.busy and ground.products_share is None:
        return None
    return speedup_without(MAX_SAVED_WORK_SHARE * max(ground.busy, ground.products_share or 0.0))


def resists(torch: Any, model: Model) -> str:
    """Why it is left as it is; "" where it can be put on."""
    name = type(model.inner).__name__
    if name.lower().endswith(("loss", "criterion")):
        return f"{name} is a loss, which stays in float32"
    if torch.is_autocast_enabled(model.device):
        return "the program has autocast already"
    if isinstance(model.inner, torch.jit.ScriptModule):
        return f"{name} is TorchScript"
    if all(p.dtype != torch.float32 for p in model.inner.parameters() if p.is_floating_point()):
        return f"{name} is in another type already"
    return ""


def cast(program: Program, model: Model, fix: str, kind: str) -> str:
    torch, device = program.torch, model.device
    told: list[str] = []

    def stays(tensor: Any) -> bool:
        large = tensor.dim() > 1 and tensor.size(-1) >= CLASSES and tensor.requires_grad
        if large and program.half_logits and not told:
            told.append(HALF)
            program.did(fix, HALF)
        return bool(large and program.half_logits)

    around(
        model.inner, fix, lambda forward: _under(torch, device, kind, forward, stays),
        outside=True,
    )  # fmt: skip
    return f"autocast({device!r}, {kind}) around {type(model.inner).__name__}"


def said(what: str) -> tuple[str, str]:
    """Device and class of what `cast` has said."""
    first = what.partition("; ")[0]
    return first.partition("'")[2].partition("'")[0] or "cuda", first.rpartition(" ")[2]


def _under(
    torch: Any, device: str, kind: str, forward: Forward, stays: Callable[[Any], bool]
) -> Forward:
    small = getattr(torch, kind)

    def back(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype == small and not stays(tensor) else tensor

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device):  # the program's own, or ours outside
            return forward(self, *args, **kwargs)
        with torch.autocast(device, dtype=small):
            found = forward(self, *args, **kwargs)
        return mapped(torch, found, back)

    return under
