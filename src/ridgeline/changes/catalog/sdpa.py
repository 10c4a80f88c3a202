"""One fused operator in the place of attention that is written out."""

from collections.abc import Mapping

from ridgeline.changes.change import Change, NotWritten, Source
from ridgeline.changes.fused_attention import Fused, fused
from ridgeline.changes.places import at
from ridgeline.changes.program import Program
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

CHANGE = Change(
    id="sdpa",
    group="model",
    title="fused attention",
    alters="rounding",
    answers=("written-attention",),
    why="Scores and weights stay on the chip: their tensors, as large as the sequence squared, are "
    "neither written nor read.",
    wrong_when="The weights themselves are wanted, for a picture or a loss.",
)


def able(ground: Ground) -> str:
    return "" if "written-attention" in ground.findings else "no attention is written out"


def put_on(program: Program, options: Mapping[str, str]) -> None:
    """The functions to be run from rewritten source are part of the plan: see `trials.begin`."""
    program.found_nothing(CHANGE.id, "no function of the model was the one to be rewritten")


def written(applied: Applied, source: Source) -> tuple[Edit, ...]:
    for file, line in at(applied):
        text = source(file)
        found = fused(text, line) if text is not None else None
        if isinstance(found, Fused):
            raise NotWritten(
                f"in {file}, in the place of what lines {found.first} to {found.last} do from the "
                f"first product to the last:\n    {found.call}"
            )
    raise NotWritten("put torch.nn.functional.scaled_dot_product_attention in its place")
