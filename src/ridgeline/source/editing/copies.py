"""Copies of the user's files beside them, under names that are free or ours, with the imports of
the files among them led to the copies."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.edit import Edit, Patched
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.decoding import decoded
from ridgeline.source.editing.modules import Reached, python_path, reached
from ridgeline.source.editing.patching import patched
from ridgeline.source.editing.redirect import importers, redirected

SIGN = "written by ridgeline optimize"
_SIGNED = re.compile(rf"^# {SIGN}(?: from .*)? \(([0-9a-f]{{8}})\)\r?\n", re.MULTILINE)
_FIRST = re.compile(r"(?:#![^\n]*\n)?(?:[ \t\f]*#.*?coding[:=][^\n]*\n)?")
_TRIES = 100


class Copy(Struct, frozen=True, kw_only=True):
    original: Path
    to: Path
    patched: Patched


class Copies(Struct, frozen=True, kw_only=True):
    made: tuple[Copy, ...] = ()
    """The script's first."""
    left: tuple[tuple[str, str], ...] = ()
    """Files whose changes no copy can hold, and why."""
    said: tuple[str, ...] = ()
    """Names that were taken, in a sentence each."""


def copies(script: Path, edits: Mapping[Path, Sequence[Edit]]) -> Copies:
    """`edits` by resolved path; only the script's, and those of files it imports, get a copy."""
    start = script.resolve()
    every = reached(script, python_path()) if set(edits) - {start} else ()
    left: dict[Path, str] = {}
    while True:
        wanted = [file for file in edits if file not in left]
        try:
            files = _all(start, wanted, every)
            break
        except _Not as why:
            left[why.file] = str(why)
    said: list[str] = []
    names = {file: free(_typed(file, script), said) for file in files}
    stems = {file: to.stem for file, to in names.items() if file != start}
    made = []
    for file in files:
        more = redirected(file, stems, every) if stems else []
        text = file.read_bytes()
        done = patched(str(_typed(file, script)), text, [*edits.get(file, ()), *more])
        made.append(Copy(original=_typed(file, script), to=names[file], patched=_signed(done)))
    made.sort(key=lambda copy: copy.original.resolve() != start)
    return Copies(
        made=tuple(made),
        left=tuple((str(_typed(file, script)), why) for file, why in left.items()),
        said=tuple(said),
    )


class _Not(Exception):
    def __init__(self, file: Path, why: str) -> None:
        super().__init__(why)
        self.file = file


def _all(start: Path, wanted: Sequence[Path], every: Sequence[Reached]) -> list[Path]:
    """Those files, and the files that must be led to their copies, up to the script."""
    found: list[Path] = []
    for one in wanted:
        waiting = [one]
        while waiting:
            file = waiting.pop()
            if file in found:
                continue
            found.append(file)
            try:
                above = importers(file, every) if file != start else set()
                for importer in above:
                    redirected(importer, {file: "copy"}, every)
            except Cannot as cannot:
                raise _Not(one, cannot.why) from cannot
            waiting += sorted(above - set(found))
    return found


def _typed(file: Path, script: Path) -> Path:
    """As the user would type it: beside the script, or from where the command was given."""
    if file == script.resolve():
        return script
    if file.is_relative_to(script.resolve().parent):
        return script.parent / file.relative_to(script.resolve().parent)
    return Path(os.path.relpath(file)) if file.is_relative_to(Path.cwd()) else file


def free(original: Path, said: list[str]) -> Path:
    """optimized_train.py, or the next number, where that is a file of the user's."""
    for number in range(1, _TRIES):
        tail = "" if number == 1 else f"_{number}"
        to = original.with_name(f"optimized_{original.stem}{tail}{original.suffix}")
        if not to.exists() or is_ours(to):
            if number > 1:
                first = f"optimized_{original.stem}{original.suffix}"
                said.append(f"{first} is a file of yours, or changed by you: see {to.name}")
            return to
    raise Cannot(f"there are {_TRIES} files beside {original} whose names begin with optimized_")


def is_ours(file: Path) -> bool:
    """Written by us, and as we left it."""
    try:
        text = decoded(file.read_bytes()).text
    except OSError:
        return False
    found = _SIGNED.search(text)
    return found is not None and _digest(text.replace(found[0], "", 1)) == found[1]


def signed(text: str, source: str = "") -> str:
    """With a line at its top that says whose it is; below an interpreter's and an encoding's."""
    newline = "\r\n" if "\r\n" in text else "\n"
    opening = _FIRST.match(text)
    at = opening.end() if opening else 0
    name = f" from {source}" if source else ""
    return f"{text[:at]}# {SIGN}{name} ({_digest(text)}){newline}{text[at:]}"


def signed_comment(text: str) -> str:
    """Return Markdown, HTML or SVG with the line that marks our files in a comment at its top."""
    opening, closing = "<!--\n", "-->\n"
    return f"{opening}# {SIGN} ({_digest(opening + closing + text)})\n{closing}{text}"


def _signed(done: Patched) -> Patched:
    name = Path(done.file).name
    plain = name.isascii() and name.isprintable() and "coding" not in name
    return replace(done, text=signed(done.text, name if plain else ""))


def _digest(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    return hashlib.sha256(raw.replace(b"\r\n", b"\n")).hexdigest()[:8]
