"""What was kept, written into copies of the user's files."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ridgeline import units
from ridgeline.changes.change import NotWritten, of
from ridgeline.optimization.contest import Bench, typical_ms
from ridgeline.patch import patched, write_copy
from ridgeline.records.edit import Edit, Patched
from ridgeline.records.optimized import Optimized, Total, Written
from ridgeline.records.run import Target
from ridgeline.records.trial import Applied
from ridgeline.trials.arm import Outcome


class Patches(Struct, frozen=True, kw_only=True):
    files: tuple[Patched, ...] = ()
    by_hand: tuple[str, ...] = ()
    """What could not be edited safely: what to write where."""


def patches(script: Path, applied: Sequence[Applied]) -> Patches:
    """Of the files the changes were put on; global settings go into the script."""
    edits: dict[str, list[Edit]] = {}
    by_hand: list[str] = []
    texts: dict[str, str | None] = {}
    for one in applied:
        try:
            for edit in of(one.change).written(one, lambda file: _text(texts, file)):
                edits.setdefault(edit.file or str(script), []).append(edit)
        except NotWritten as why:
            by_hand.append(str(why))
    done = [patched(file, Path(file).read_bytes(), found) for file, found in edits.items()]
    by_hand += [refused.write for file in done for refused in file.refused]
    return Patches(
        files=tuple(file for file in done if file.done), by_hand=tuple(dict.fromkeys(by_hand))
    )


def write(target: Target, found: Optimized, bench: Bench) -> Written:
    """The copies beside the originals, and what the patched script does by itself."""
    assert found.total is not None
    made = patches(Path(target.name), found.total.applied)
    copies = [(file, Path(file.file)) for file in made.files]
    names = []
    for file, path in copies:
        to = path.with_name(f"optimized_{path.name}")
        write_copy(file, to, overwrite=True)
        names.append(str(to))
    own = [file for file, path in copies if path.resolve() == Path(target.name).resolve()]
    whole = len(own) == len(copies) and not made.by_hand and bool(copies)
    return Written(
        files=tuple(names),
        diff="".join(file.diff for file in made.files),
        by_hand=made.by_hand,
        checked=_checked(found.total, bench.by_itself(names[0])) if whole else "",
    )


def _checked(total: Total, outcome: Outcome) -> str:
    """Whether the copy is as fast as the trial it was made from."""
    if outcome.trial is None:
        return f"the copy does not run: {outcome.failed}"
    alone = typical_ms((outcome.trial,))
    gain = total.before_ms / alone if alone else 0.0
    if gain < 1 + (total.ratio.value - 1) / 2:
        return (
            f"the copy by itself is {gain:.2f} × as fast, not {total.ratio.value:.2f} ×: it is not "
            "what was tried"
        )
    return f"the copy by itself takes {units.seconds(alone / 1e3)} a step, {gain:.2f} ×"


def _text(texts: dict[str, str | None], file: str) -> str | None:
    if file not in texts:
        try:
            texts[file] = Path(file).read_text()
        except (OSError, UnicodeDecodeError):
            texts[file] = None
    return texts[file]
