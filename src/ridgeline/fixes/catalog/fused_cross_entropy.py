"""Cross-entropy over a large vocabulary, compiled: one pass forward and one backward."""

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.cross_entropies import CLASSES, replaced
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.fixes.writing import cross_entropy_edits
from ridgeline.records.edit import Edit, Import
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

LEAST = 2**23
"""Logits: a pass over fewer takes some microseconds."""
CASTS = 1.5
"""Beside autocast the logits are turned into float32 and their gradient back: two passes to the
four or five of the loss."""
NONE = f"no cross-entropy of class numbers over {CLASSES:,} classes or more takes time"
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


def reason_to_skip(ground: Ground) -> str:
    if not ground.trains:
        return "nothing trains, so no loss keeps its softmax"
    if ground.device != "cuda":
        return "it is for a GPU, where each pass is a kernel of its own"
    if not ground.compiler:
        return "nothing here can compile: no Triton"
    return "" if ground.loss_share else NONE


def bound(ground: Ground) -> float | None:
    return speedup_without(CASTS * ground.loss_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    functional = program.torch.nn.functional
    least = int(options.get("elements", LEAST))
    functional.cross_entropy = fused(program, functional.cross_entropy, least)
    program.on_step(_forgets(program))
    program.found_nothing(FIX.id, f"{NONE} outside of what is compiled")


def _forgets(program: Program) -> Callable[[], None]:
    """The first loss is the plain one, whose peak of memory is not this one's."""
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
        """In a program that is all in 16 bits the loss is, too, and stays so."""
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

    def said(input: Any) -> str:
        return f"cross_entropy of {input.size(1):,} classes, compiled"

    return replaced(program, FIX.id, theirs, large, compute, said)


WRITTEN = '''\
@torch.compile
def fused_cross_entropy(input, target, weight=None, **settings):
    """Cross-entropy, and the cast to float32 before it, in one kernel."""
    return torch.nn.functional.cross_entropy(input.float(), target, weight, **settings)'''


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why = "one pass over the logits each way"
    edits = cross_entropy_edits(
        applied, source, "fused_cross_entropy", WRITTEN, why,
        otherwise="put torch.compile around a function that casts the logits to float32 and calls "
        "cross_entropy, and call that there",
    )  # fmt: skip
    files = dict.fromkeys(one.file for one in edits)
    return (*edits, *(Import(file=file, text="import torch") for file in files))
