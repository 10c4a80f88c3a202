"""Cross-entropy over a large vocabulary, some rows at a time."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.cross_entropy import MIN_CLASSES, replaced
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import code_of, cross_entropy_edits
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied

CHUNK_ELEMENTS = 2**24
"""Logits that are worked on at a time: 64 MiB in float32, small beside logits worth the trouble,
and enough rows to keep a GPU busy (333 of GPT-2's 50,257 classes)."""
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


def reason_to_skip(ground: Ground) -> Reason | None:
    return None if ground.trains else because(Skip.DOES_NOT_TRAIN)


def apply(program: Program, options: Mapping[str, str]) -> None:
    functional = program.torch.nn.functional
    functional.cross_entropy = chunked(
        program, functional.cross_entropy, int(options.get("elements", CHUNK_ELEMENTS))
    )
    program.found_nothing(FIX.id, because(Skip.NO_LARGE_LOSS, min_classes=MIN_CLASSES))


def chunked(program: Program, theirs: Any, chunk_elements: int) -> Any:
    """Return torch.nn.functional.cross_entropy, some rows at a time where that is worth it."""
    from ridgeline.fixes.torch_functions import chunked_cross_entropy

    def rows(input: Any) -> int:
        return max(chunk_elements // int(input.size(1)), 1)

    def done(input: Any) -> Reason:
        return because(Done.LOSS_CHUNKED, classes=int(input.size(1)), rows=rows(input))

    def compute(input: Any, target: Any, weight: Any, ignored: int, how: str, smooth: float) -> Any:
        return chunked_cross_entropy(input, target, weight, ignored, how, smooth, rows(input))

    def large(input: Any, target: Any) -> bool:
        return bool(input.numel() >= 2 * chunk_elements)

    return replaced(program, FIX.id, theirs, large, compute, done)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    code = code_of("ChunkedCrossEntropy", "chunked_cross_entropy")
    why = "the logits' softmax is never whole in memory"
    name = "chunked_cross_entropy"
    return cross_entropy_edits(applied, source, name, code, why, ByHand.CHUNKED_CROSS_ENTROPY)
