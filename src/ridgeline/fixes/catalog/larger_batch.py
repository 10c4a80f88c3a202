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
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Made, Program
from ridgeline.records.edit import Edit, Keyword
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.file import last_name, parsed

FACTORS = (2, 4, 8, 16, 32)
FEWEST = 16
"""Batches an epoch: with fewer an epoch is mostly its first and its last batch."""
EVALUATION = ("test", "val", "valid", "validation", "eval", "dev")
FIX = Fix(
    id="larger-batch",
    group="loop",
    title="a larger batch",
    alters="semantics",
    why="What a step costs whatever its size (launches, the update, Python) is divided over more "
    "samples, and larger products use the device better. The learning rate is left as it is: "
    "whether it has to grow with the batch is for the one who trains to decide.",
    wrong_when="Memory is full, the device is busy with large products already, or the training "
    "is known to need small batches. Steps an epoch, schedules by steps and the noise of the "
    "gradient all change.",
)


def reason_to_skip(ground: Ground) -> str:
    if not ground.loaders:
        return "the program has no DataLoader"
    sized = [one for one in ground.loaders if one.batch_size is not None]
    if not sized:
        return "its loaders put no batches together themselves"
    if not choices(ground):
        most = max(one.length or 0 for one in sized)
        return f"{most} batches an epoch are too few to be made larger"
    return ""


def bound(ground: Ground) -> float:
    """Making a sample and copying it costs the same in any batch; nothing says the like of the
    rest of a step."""
    stays = min(max(ground.input_share + ground.copy_share, 0.0), 1.0)
    return 1 / (stays + (1 - stays) / FACTORS[-1])


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    """In rising order: what runs out of memory ends the search."""
    lengths = [one.length for one in ground.loaders if one.batch_size is not None]
    most = None if None in lengths or not lengths else max(n or 0 for n in lengths)
    fit = [n for n in FACTORS if most is None or most // n >= FEWEST]
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
    """By the line that makes the loader: it may make one for every epoch."""

    def enlarge(made: Made) -> str:
        given = made.arguments
        why = _against(given, factor)
        if not why and not trains.setdefault(made.place, _random(given) or not trains):
            why = "it neither shuffles nor is the first: taken for one of an evaluation"
        if why:
            program.found_nothing(FIX.id, why)
            return ""
        before = given.get("batch_size", 1)
        given["batch_size"] = before * factor
        return (
            f"DataLoader(batch_size={before * factor}), {factor} × {before}, the learning rate "
            "as it was"
        )

    program.on_loader(FIX.id, enlarge)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    factor = int(applied.what.partition("), ")[2].partition(" ×")[0])
    edits: list[Edit] = []
    for file, line in at(applied):
        size = _written_size(source(file), line)
        if isinstance(size, str):
            raise EditByHand(
                f"{file}:{line} {size}: make that {factor} times as large; the learning rate was "
                "left as it is"
            )
        edits.append(
            Keyword(
                file=file, line=line, call="DataLoader", name="batch_size",
                value=str(size * factor), why="larger steps; the learning rate is as it was",
            )
        )  # fmt: skip
    return tuple(edits)


def _against(given: Mapping[str, Any], factor: int) -> str:
    if given.get("batch_sampler") is not None:
        return "the program puts its batches together itself (batch_sampler)"
    size = given.get("batch_size", 1)
    if not isinstance(size, int):
        return "the loader puts no batches together (batch_size=None)"
    if _evaluates(given.get("dataset")):
        return "the dataset says that it is for evaluation"
    samples = _samples(given)
    if samples is not None and samples // (size * factor) < FEWEST:
        left = samples // (size * factor)
        return f"{left} batches of {size * factor} would be left in an epoch, fewer than {FEWEST}"
    return ""


def _random(given: Mapping[str, Any]) -> bool:
    sampler = given.get("sampler")
    if sampler is None:
        return bool(given.get("shuffle"))
    return "Random" in type(sampler).__name__ or bool(getattr(sampler, "shuffle", False))


def _evaluates(dataset: Any) -> bool:
    """As torchvision's and Hugging Face's say it; nothing of the dataset's own is run."""
    own = getattr(dataset, "__dict__", None)
    own = own if isinstance(own, dict) else {}
    return own.get("train") is False or str(own.get("split", own.get("_split"))) in EVALUATION


def _samples(given: Mapping[str, Any]) -> int | None:
    sampler = given.get("sampler")
    try:
        return len(given["dataset"] if sampler is None else sampler)
    except Exception:  # a stream, or a length of the user's own, which may raise what it likes
        return None


def _written_size(text: str | None, line: int) -> int | str:
    """As the call on that line says it; else why it cannot be known."""
    file = parsed(text or "")
    if file is None:
        return "cannot be read"
    found = [call for call in file.calls_on_line(line) if last_name(call) == "DataLoader"]
    if len(found) != 1:
        return "makes its DataLoader by another name, with some batch_size"
    call = found[0]
    named = [word.value for word in call.keywords if word.arg == "batch_size"]
    size = named[0] if named else call.args[1] if len(call.args) > 1 else ast.Constant(1)
    if isinstance(size, ast.Constant) and type(size.value) is int:
        return size.value
    return f"has batch_size={ast.unparse(size)}"
