"""What was kept, written into copies of the user's files."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ridgeline.changes.change import NotWritten, of
from ridgeline.patch import patched
from ridgeline.records.edit import Edit, Patched
from ridgeline.records.trial import Applied


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


def _text(texts: dict[str, str | None], file: str) -> str | None:
    if file not in texts:
        try:
            texts[file] = Path(file).read_text()
        except (OSError, UnicodeDecodeError):
            texts[file] = None
    return texts[file]
