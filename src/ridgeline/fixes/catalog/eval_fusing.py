"""Batch norms folded into the convolutions before them, in evaluation."""

from collections.abc import Mapping

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.folding import fold, pairs
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
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


def reason_to_skip(ground: Ground) -> str:
    if ground.trains:
        return "the program trains: batch norms use each batch's own statistics"
    return "" if ground.convolutions else "no convolution was seen"


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def fuse(model: Model) -> str:
        inner = model.inner
        if inner.training:
            program.found_nothing(FIX.id, "the model is in training mode")
            return ""
        found = pairs(torch, inner, model.args, model.kwargs)
        for conv, norm in found:
            fold(torch, conv, norm, FIX.id)
        if not found:
            program.found_nothing(
                FIX.id,
                "no convolution's output goes to a batch norm in evaluation and nowhere else",
            )
            return ""
        return f"{len(found)} batch norms of {type(inner).__name__} folded"

    program.on_model(FIX.id, fuse)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    raise EditByHand(
        "write for each convolution and the batch norm after it, when the weights are loaded: "
        "conv, bn = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, bn), torch.nn.Identity()"
    )
