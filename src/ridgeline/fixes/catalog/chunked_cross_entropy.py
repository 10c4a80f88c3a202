"""Cross-entropy over a large vocabulary, some rows at a time."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.fixes.cross_entropies import CLASSES, replaced
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.fixes.writing import cross_entropy_edits
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

CHUNK = 2**24
"""Elements at a time: 64 MiB of float32, small beside logits worth the trouble, and enough rows to
keep a GPU busy (333 of GPT-2's 50,257 classes)."""
FIX = Fix(
    id="chunked-cross-entropy",
    group="model",
    title="cross-entropy in chunks",
    alters="rounding",
    slot="loss",
    answers=("huge-logits", "activation-peak"),
    saves="memory",
    why="Softmax of the logits is computed for some rows at a time and again in the backward: one "
    "or two tensors of the size of the logits are never made.",
    wrong_when="The loss is inside a compiled region, where it is fused already; or gradients of "
    "gradients are wanted.",
)


def reason_to_skip(ground: Ground) -> str:
    return "" if ground.trains else "nothing trains, so no loss keeps its softmax"


def apply(program: Program, options: Mapping[str, str]) -> None:
    functional = program.torch.nn.functional
    functional.cross_entropy = chunked(
        program, functional.cross_entropy, int(options.get("elements", CHUNK))
    )
    program.found_nothing(
        FIX.id,
        f"no cross-entropy of class numbers over {CLASSES:,} classes or more was large enough to "
        "be cut",
    )


def chunked(program: Program, theirs: Any, chunk: int) -> Any:
    """torch.nn.functional.cross_entropy, cut where that is worth it."""
    from ridgeline.fixes.chunked_loss import chunked_cross_entropy

    def rows(input: Any) -> int:
        return max(chunk // int(input.size(1)), 1)

    def said(input: Any) -> str:
        return f"cross_entropy of {input.size(1):,} classes, {rows(input)} rows at a time"

    def compute(input: Any, target: Any, weight: Any, ignored: int, how: str, smooth: float) -> Any:
        return chunked_cross_entropy(input, target, weight, ignored, how, smooth, rows(input))

    def large(input: Any, target: Any) -> bool:
        return bool(input.numel() >= 2 * chunk)

    return replaced(program, FIX.id, theirs, large, compute, said)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    rows = applied.what.rpartition(" rows")[0].rpartition(" ")[2]
    code = (Path(__file__).parents[1] / "chunked_loss.py").read_text(encoding="utf-8")
    body = re.sub(r"  # (type: ignore|fmt: skip).*", "", code.partition('"""\n\n')[2])
    why = "the logits' softmax is never whole in memory"
    return cross_entropy_edits(
        applied, source, "chunked_cross_entropy", body.strip(), why,
        otherwise="use chunked_cross_entropy there, from ridgeline.fixes.chunked_loss",
        settings={"rows": rows},
    )  # fmt: skip
