"""Products of a large vocabulary padded to whole tiles."""

from collections.abc import Mapping
from typing import Any

from ridgeline.changes.around import Forward, around, worn
from ridgeline.changes.change import Change, NotWritten, Source
from ridgeline.changes.program import Model, Program
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

TILE = 64
LEAST = 1024
"""Below it the padding, up to 63 columns, costs more than it brings."""
CHANGE = Change(
    id="padded-vocabulary",
    group="model",
    title="padded vocabulary",
    alters="rounding",
    precision="bfloat16",
    answers=("misaligned-shape",),
    together=("autocast",),
    why="Rows of the logits that are no multiple of 16 bytes are read element by element. The "
    "weight is padded with zeros in the product and the extra columns are cut off: the same "
    "logits, the parameter as it was.",
    wrong_when="The program views the logits as one row: they are no longer contiguous.",
)


def able(ground: Ground) -> str:
    if ground.device != "cuda":
        return "only a GPU's tensor cores mind a product's alignment"
    return "this GPU has no tensor cores" if ground.capability < (7, 0) else ""


def put_on(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def pad(model: Model) -> str:
        heads = [
            (name, one)
            for name, one in model.inner.named_modules()
            if type(one) is torch.nn.Linear and padding(one.out_features) and one.weight.is_cuda
        ]
        small = torch.is_autocast_enabled(model.device) or "autocast" in " ".join(worn(model.inner))
        halves = (torch.bfloat16, torch.float16)
        fit = [(name, one) for name, one in heads if small or one.weight.dtype in halves]
        if not fit:
            program.found_nothing(
                CHANGE.id,
                "its products are not in 16 bits"
                if heads
                else f"no large layer on a GPU has a width that is no multiple of {TILE}",
            )
            return ""
        for _, head in fit:
            around(head, CHANGE.id, lambda forward: padded(torch, forward))
        said = [f"{name}: {one.out_features + padding(one.out_features)}" for name, one in fit]
        return f"padded in the product: {', '.join(said)}"

    program.on_model(CHANGE.id, pad)


def padding(size: int) -> int:
    """Columns to be added."""
    return -size % TILE if size >= LEAST else 0


def padded(torch: Any, forward: Forward) -> Forward:
    functional = torch.nn.functional

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra = padding(self.out_features)
        if len(args) != 1 or kwargs or not extra:
            return forward(self, *args, **kwargs)
        weight, bias = self.weight, self.bias
        device = weight.device.type
        if torch.is_autocast_enabled(device):  # half the bytes to pad
            small = torch.get_autocast_dtype(device)
            weight = weight.to(small)
            bias = None if bias is None else bias.to(small)
        weight = functional.pad(weight, (0, 0, 0, extra))
        bias = None if bias is None else functional.pad(bias, (0, extra))
        return functional.linear(args[0], weight, bias)[..., : self.out_features]

    return under


def written(applied: Applied, source: Source) -> tuple[Edit, ...]:
    raise NotWritten(
        f"{applied.what}; write in the model's forward, for logits = self.head(x): logits = "
        "F.linear(x, F.pad(self.head.weight, (0, 0, 0, -V % 64)))[..., :V], or make the vocabulary "
        "a multiple of 64 where it is defined"
    )
