"""One fused operator in the place of attention that is written out."""

from collections.abc import Mapping

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.fused_attention import fused
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Rewrite
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="sdpa",
    group="model",
    title="fused attention",
    usual=True,
    alters="rounding",
    answers=("written-attention",),
    why="Scores and weights stay on the chip: their tensors, as large as the sequence squared, are "
    "neither written nor read.",
    wrong_when="The weights themselves are wanted, for a picture or a loss.",
)


def reason_to_skip(ground: Ground) -> str:
    return (
        ""
        if "written-attention" in ground.findings
        else "no attention that is written out was found to cost time"
    )


def apply(program: Program, options: Mapping[str, str]) -> None:
    """The functions to be run from rewritten source are part of the plan: see `trials.begin`."""
    program.found_nothing(FIX.id, "no function of the model was the one to be rewritten")


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """The lines the trial ran, in the copy."""
    found: list[Edit] = []
    for file, line in at(applied):
        text = source(file)
        new = fused(text, line) if text is not None else f"{file} cannot be read"
        if text is None or isinstance(new, str):
            raise EditByHand(
                f"{new}; in {file}, near line {line}, put "
                "torch.nn.functional.scaled_dot_product_attention in the place of the attention"
            )
        found.append(
            Rewrite(
                file=file, first=new.first, last=new.last, before=new.before, after=new.after,
                why="scores and weights stay on the chip",
            )
        )  # fmt: skip
    return tuple(dict.fromkeys(found))
