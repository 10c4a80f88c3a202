"""One fused operator in the place of attention that is written out."""

from collections.abc import Mapping

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.fused_attention import fused
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Rewrite
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Skip
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


def reason_to_skip(ground: Ground) -> Reason | None:
    found = "written-attention" in ground.findings
    return None if found else because(Skip.NO_WRITTEN_ATTENTION)


def apply(program: Program, options: Mapping[str, str]) -> None:
    """Change nothing here: the trial runs the rewritten functions of its plan (`trials.begin`)."""
    program.found_nothing(FIX.id, because(Skip.NOTHING_REWRITTEN))


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Return the lines that the trial ran, for the copy."""
    found: list[Edit] = []
    for file, line in applied.lines:
        text = source(file)
        unreadable = because(ByHand.FILE_UNREADABLE, file=file)
        new = fused(text, line) if text is not None else unreadable
        if isinstance(new, Reason):
            raise EditByHand(ByHand.FUSED_ATTENTION, cause=new, file=file, line=line)
        found.append(
            Rewrite(
                file=file, first=new.first, last=new.last, before=new.before, after=new.after,
                why="scores and weights stay on the chip",
            )
        )  # fmt: skip
    return tuple(dict.fromkeys(found))
