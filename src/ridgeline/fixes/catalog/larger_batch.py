"""More samples a step. Another training: fewer, larger steps over the same samples, so it has a
column of its own, a sample's time against a sample's time.

Which loaders feed the training is not known when they are made: those that shuffle, and the first
one made. What says of itself that it is for evaluation is left.
"""

import ast
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import Made, Program
from ridgeline.records.edit import Edit, Keyword
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.file import last_name, parsed

FACTORS = (2, 4, 8, 16, 32)
MIN_BATCHES = 16
"""An epoch of fewer batches is mostly its first and its last batch."""
EVALUATION_SPLITS = ("test", "val", "valid", "validation", "eval", "dev")
FIX = Fix(
    id="larger-batch",
    group="loop",
    title="a larger batch",
    alters="semantics",
    own_process=True,
    why="What a step costs whatever its size (launches, the update, Python) is divided over more "
    "samples, and larger products use the device better. The learning rate is left as it is: "
    "whether it has to grow with the batch is for the one who trains to decide.",
    wrong_when="Memory is full, the device is busy with large products already, or the training "
    "is known to need small batches. Steps an epoch, schedules by steps and the noise of the "
    "gradient all change.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.loaders:
        return because(Skip.NO_LOADER)
    sized = [one for one in ground.loaders if one.batch_size is not None]
    if not sized:
        return because(Skip.NO_BATCHING)
    if not choices(ground):
        return because(Skip.TOO_FEW_BATCHES, batches=max(one.length or 0 for one in sized))
    return None


def bound(ground: Ground) -> float:
    """Return the bound if everything gets cheaper with the batch except making samples and copying
    them, which costs the same in any batch."""
    stays = min(max(ground.input_share + ground.copy_share, 0.0), 1.0)
    return 1 / (stays + (1 - stays) / FACTORS[-1])


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    """Return rising factors: the first one that runs out of memory ends the search."""
    lengths = [one.length for one in ground.loaders if one.batch_size is not None]
    most = None if None in lengths or not lengths else max(n or 0 for n in lengths)
    fit = [n for n in FACTORS if most is None or most // n >= MIN_BATCHES]
    return tuple({"factor": str(factor)} for factor in fit)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    factor = int(options.get("factor") or FACTORS[0])
    return replace(
        ground,
        loaders=tuple(
            replace(
                one,
                batch_size=one.batch_size * factor if one.batch_size is not None else None,
                length=one.length // factor if one.length is not None else None,
            )
            for one in ground.loaders
        ),
    )


def apply(program: Program, options: Mapping[str, str]) -> None:
    factor = int(options.get("factor") or FACTORS[0])
    trains: dict[str, bool] = {}
    """Whether the loader of a line feeds the training. A line may make one for every epoch."""

    def enlarge(made: Made) -> Reason:
        given = made.arguments
        obstacle = _obstacle(given, factor)
        if obstacle is not None:
            return obstacle
        if not trains.setdefault(made.place, _is_shuffled(given) or not trains):
            return because(Skip.EVALUATION_LOADER)
        before = given.get("batch_size", 1)
        size = given["batch_size"] = before * factor
        return because(Done.LARGER_BATCH, batch_size=size, factor=factor, before=before)

    program.on_loader(FIX.id, enlarge)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    factor = int(applied.targets[0].done.facts["factor"] or 1)
    edits: list[Edit] = []
    for file, line in applied.lines:
        size = _size_in_source(source(file), line)
        if isinstance(size, Reason):
            place = f"{file}:{line}"
            raise EditByHand(ByHand.BATCH_SIZE, cause=size, place=place, factor=factor)
        edits.append(
            Keyword(
                file=file, line=line, call="DataLoader", name="batch_size",
                value=str(size * factor), why="larger steps; the learning rate is as it was",
            )
        )  # fmt: skip
    return tuple(edits)


def _obstacle(given: Mapping[str, Any], factor: int) -> Reason | None:
    if given.get("batch_sampler") is not None:
        return because(Skip.NO_BATCHING)
    size = given.get("batch_size", 1)
    if not isinstance(size, int):
        return because(Skip.NO_BATCHING)
    if _evaluates(given.get("dataset")):
        return because(Skip.EVALUATION_DATASET)
    samples, larger = _samples(given), size * factor
    if samples is not None and samples // larger < MIN_BATCHES:
        return because(
            Skip.TOO_FEW_BATCHES_LEFT, batches=samples // larger, batch_size=larger,
            min_batches=MIN_BATCHES,
        )  # fmt: skip
    return None


def _is_shuffled(given: Mapping[str, Any]) -> bool:
    sampler = given.get("sampler")
    if sampler is None:
        return bool(given.get("shuffle"))
    return "Random" in type(sampler).__name__ or bool(getattr(sampler, "shuffle", False))


def _evaluates(dataset: Any) -> bool:
    """Return whether the dataset says so as those of torchvision and Hugging Face do. Nothing of
    the dataset's own is run."""
    own = getattr(dataset, "__dict__", None)
    own = own if isinstance(own, dict) else {}
    return (
        own.get("train") is False or str(own.get("split", own.get("_split"))) in EVALUATION_SPLITS
    )


def _samples(given: Mapping[str, Any]) -> int | None:
    sampler = given.get("sampler")
    try:
        return len(given["dataset"] if sampler is None else sampler)
    except Exception:  # a stream, or a length of the user's own, which may raise what it likes
        return None


def _size_in_source(text: str | None, line: int) -> int | Reason:
    """Return the batch size that the call on that line gives, or why it cannot be known."""
    file = parsed(text or "")
    if file is None:
        return because(ByHand.SIZE_UNREADABLE)
    found = [call for call in file.calls_on_line(line) if last_name(call) == "DataLoader"]
    if len(found) != 1:
        return because(ByHand.SIZE_OF_OTHER_NAME)
    call = found[0]
    named = [word.value for word in call.keywords if word.arg == "batch_size"]
    size = named[0] if named else call.args[1] if len(call.args) > 1 else ast.Constant(1)
    if isinstance(size, ast.Constant) and type(size.value) is int:
        return size.value
    return because(ByHand.SIZE_EXPRESSION, expression=ast.unparse(size))
