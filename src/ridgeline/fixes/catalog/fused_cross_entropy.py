"""Cross-entropy over a large vocabulary, compiled: one pass forward and one backward."""

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.fixes.cross_entropy import MIN_CLASSES, replaced
from ridgeline.fixes.fix import Fix, Source, speedup_without
from ridgeline.fixes.model_edits import cross_entropy_edits
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Import
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied

MIN_LOGITS = 2**23
"""A pass over fewer logits takes some microseconds."""
CASTS_FACTOR = 1.5
"""The time that can be saved, as a multiple of the loss's own. Beside autocast the logits are
turned into float32 and their gradient back: two passes to the four or five of the loss."""
NO_LARGE_LOSS = because(Skip.NO_LARGE_LOSS, min_classes=MIN_CLASSES)
FIX = Fix(
    id="fused-cross-entropy",
    group="model",
    title="fused cross-entropy",
    usual=True,
    alters="rounding",
    slot="loss",
    answers=("huge-logits",),
    together=("autocast",),
    why="Softmax, loss and their gradient read and write tensors of the size of the logits five "
    "times; compiled into one kernel each way, twice. Beside autocast the logits stay in 16 bits, "
    "and are turned into float32 inside the kernel.",
    wrong_when="The loss is inside a compiled region, where it is fused already; or the number of "
    "rows is another at every step.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.trains:
        return because(Skip.DOES_NOT_TRAIN)
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if not ground.compiler:
        return because(Skip.NO_COMPILER)
    return None if ground.loss_share else NO_LARGE_LOSS


def bound(ground: Ground) -> float | None:
    return speedup_without(CASTS_FACTOR * ground.loss_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    functional = program.torch.nn.functional
    least = int(options.get("elements", MIN_LOGITS))
    functional.cross_entropy = fused(program, functional.cross_entropy, least)
    program.on_step(_reset_peak_once(program))
    program.found_nothing(FIX.id, NO_LARGE_LOSS)


def _reset_peak_once(program: Program) -> Callable[[], None]:
    """Forget the peak memory of the first loss, which is the plain one."""
    kept: list[bool] = []

    def step_ended() -> None:
        if program.half_logits and not kept:
            kept.append(True)
            if program.torch.cuda.is_initialized():
                program.torch.cuda.reset_peak_memory_stats()

    return step_ended


def fused(program: Program, theirs: Any, least: int) -> Any:
    torch = program.torch

    @torch.compile  # type: ignore[untyped-decorator]
    def fused_cross_entropy(input: Any, target: Any, **settings: Any) -> Any:
        return theirs(input.float(), target, **settings)

    def large(input: Any, target: Any) -> bool:
        """The loss of a program that is all in 16 bits is in 16 bits, too, and stays so."""
        wide = input.dtype == torch.float32
        cast = program.half_logits or torch.is_autocast_enabled(input.device.type)
        return input.numel() >= least and (wide or cast)

    def compute(input: Any, target: Any, weight: Any, ignored: int, how: str, smooth: float) -> Any:
        # The first is in float32: compiled for both, the kernel would not know how far its rows lie
        # apart, and takes some times as long.
        loss_of = fused_cross_entropy if program.half_logits else theirs
        program.half_logits = True
        return loss_of(
            input, target, weight=weight, ignore_index=ignored, reduction=how,
            label_smoothing=smooth,
        )  # fmt: skip

    def done(input: Any) -> Reason:
        return because(Done.LOSS_COMPILED, classes=int(input.size(1)))

    return replaced(program, FIX.id, theirs, large, compute, done)


CODE = '''\
@torch.compile
def fused_cross_entropy(input, target, weight=None, **settings):
    """Cross-entropy, and the cast to float32 before it, in one kernel."""
    return torch.nn.functional.cross_entropy(input.float(), target, weight, **settings)'''


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why, name = "one pass over the logits each way", "fused_cross_entropy"
    by_hand = ByHand.COMPILED_CROSS_ENTROPY
    edits = cross_entropy_edits(applied, source, name, CODE, why, by_hand)
    files = dict.fromkeys(one.file for one in edits)
    return (*edits, *(Import(file=file, text="import torch") for file in files))
