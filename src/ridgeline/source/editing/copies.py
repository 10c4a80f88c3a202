"""Copies of the user's files beside them, under names that are free or ours, with the imports among
them led to the copies. A copy is written whole or not at all, and never over what we did not
write."""

import ast
import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.edit import Edit, Patched, Rewrite
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing.patching import patched
from ridgeline.source.editing.tree import MARK, Cannot
from ridgeline.source.file import calls_in, decoded, encoded, parsed, text_of
from ridgeline.source.program import ImportedFile, imported_files

SIGN = "written by ridgeline optimize"
_SIGNED = re.compile(rf"^# {SIGN}(?: from .*)? \(([0-9a-f]{{8}})\)\r?\n", re.MULTILINE)
_OPENING_LINES = re.compile(r"(?:#![^\n]*\n)?(?:[ \t\f]*#.*?coding[:=][^\n]*\n)?")
_MAX_NUMBERED_NAMES = 100
_FROM = re.compile(r"(\s*from\s+)([.\w]+)(\s+import\b)")
_WHY = "its copy has the changes"


def importers(file: Path, every: Sequence[ImportedFile]) -> set[Path]:
    """Return the files that must be led to the copy of a file. A package's __init__ stays as it is:
    the files that use it are led past it."""
    if file.name == "__init__.py":
        raise Cannot(Obstacle.PACKAGE_FILE)
    found = [one for one in every if one.file == file]
    inits = {one.importer for one in found if one.importer.name == "__init__.py"}
    for init in inits:
        if not _only_imports(init):
            raise Cannot(Obstacle.PACKAGE_DOES_MORE, package=str(init))
        for one in every:
            if one.file == init and one.importer.name != "__init__.py" and one.how == "module":
                raise Cannot(
                    Obstacle.REACHED_THROUGH_PACKAGE,
                    line=one.first,
                    importer=str(one.importer),
                    package=str(init),
                )
    left = {one.importer for one in found} - inits
    if not left:
        raise Cannot(Obstacle.NO_IMPORT_LEADS_TO_IT)
    return left


def redirected(
    importer: Path, copies: Mapping[Path, str], every: Sequence[ImportedFile]
) -> list[Rewrite]:
    """Return the edits that lead one file's imports to copies, which are given by the stems of
    their names."""
    statements: dict[int, list[ImportedFile]] = {}
    for one in every:
        if one.importer == importer and one.file in copies:
            statements.setdefault(one.first, []).append(one)
    lines = text_of(importer).split("\n")
    found = []
    for first, led in sorted(statements.items()):
        before = "\n".join(lines[first - 1 : led[0].last])
        if not led[0].alone:
            raise Cannot(Obstacle.MORE_THAN_IMPORT, line=first, importer=str(importer))
        after = _redirected_text(before, led, copies)
        found.append(
            Rewrite(
                file=str(importer), first=first, last=led[0].last, before=before, after=after,
                why=_WHY,
            )
        )  # fmt: skip
    return found


def _redirected_text(text: str, led: Sequence[ImportedFile], copies: Mapping[Path, str]) -> str:
    hows = {one.how for one in led}
    if hows == {"names"}:
        one = led[0]
        return _FROM.sub(lambda m: m[1] + _dotted(one, copies[one.file]) + m[3], text, count=1)
    for one in led:
        stem = copies[one.file]
        if one.how == "submodule":
            head, word, tail = text.partition("import")
            name = re.compile(rf"\b{one.name}\b(\s+as\s+\w+)?")
            tail = name.sub(lambda m: f"{stem}{m[1] or f' as {one.name}'}", tail, count=1)  # noqa: B023
            text = head + word + tail
        elif one.how == "module":
            text = _module(text, one, stem)
    return _past_package(text, [one for one in led if one.how == "package"], copies)


def _module(text: str, one: ImportedFile, stem: str) -> str:
    if not one.alias:
        raise Cannot(
            Obstacle.USED_BY_WHOLE_NAME, line=one.first, importer=str(one.importer), name=one.name
        )
    name = re.compile(rf"(?<![\w.]){re.escape(one.name)}(?![\w.])(\s+as\s+\w+)?")
    return name.sub(f"{_dotted(one, stem)} as {one.alias}", text, count=1)


def _dotted(one: ImportedFile, stem: str) -> str:
    name = one.dotted(stem)
    if not name:
        raise Cannot(Obstacle.OTHER_PATH, line=one.first, importer=str(one.importer))
    return name


def _past_package(text: str, led: Sequence[ImportedFile], copies: Mapping[Path, str]) -> str:
    """Rewrite `from pkg import Net, other` to import each name from the file that has it."""
    if not led:
        return text
    if any(not one.name for one in led):
        return text  # import a.b: the package itself
    node = ast.parse(text.strip()).body[0]
    assert isinstance(node, ast.ImportFrom)
    indent = text[: len(text) - len(text.lstrip())]
    by_file: dict[Path, list[str]] = {}
    gone = set()
    for one in led:
        gone.add(one.alias)
        said = one.name if one.alias == one.name else f"{one.name} as {one.alias}"
        by_file.setdefault(one.file, []).append(said)
    rest = [alias for alias in node.names if (alias.asname or alias.name) not in gone]
    sample = {one.file: one for one in led}
    lines = [
        f"from {_dotted(sample[file], copies[file])} import {', '.join(names)}"
        for file, names in by_file.items()
    ]
    if rest:
        node.names = rest
        lines.append(ast.unparse(node))
    return "\n".join(indent + line for line in lines)


def _only_imports(init: Path) -> bool:
    source = parsed(text_of(init))
    return source is not None and all(
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Assign) and not any(calls_in(node)))
        for node in source.module.body
    )


def write_copy(patched: Patched, to: Path, *, overwrite: bool = False) -> None:
    """Write the new source to `to`, with the original's permissions. `overwrite` allows a file that
    is not ours; the original is never written to."""
    target = Path(os.path.realpath(to))
    raw = encoded(patched.text, patched.encoding)
    try:
        _refuse(patched, target, overwrite)
        _write_whole(target, raw, _mode(Path(patched.file)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "Name another place for the copy."
        raise RidgelineError(f"{to} cannot be written: {reason}.", hint) from error


def write_text(text: str, to: Path) -> None:
    """Write a text whole or not at all."""
    try:
        _write_whole(to, text.encode("utf-8", "surrogateescape"), _mode(to))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RidgelineError(f"{to} cannot be written: {reason}.", "") from error


def _refuse(patched: Patched, target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    original = Path(patched.file)
    if original.exists() and original.samefile(target):
        raise UsageError(
            f"{target} is the original, which is never changed.", "Name another file for the copy."
        )
    if target.is_dir():
        raise UsageError(f"{target} is a directory.", "Name a file for the copy.")
    if not overwrite and MARK.encode() not in target.read_bytes():
        raise UsageError(
            f"{target} exists and was not written by Ridgeline.",
            "Name another file, or allow it to be overwritten.",
        )


def _mode(original: Path) -> int:
    try:
        return stat.S_IMODE(original.stat().st_mode)
    except OSError:
        return 0o644


def _write_whole(target: Path, raw: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Write the name to the disk too; some file systems do not support that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Copy(Struct, frozen=True, kw_only=True):
    original: Path
    to: Path
    patched: Patched


class Copies(Struct, frozen=True, kw_only=True):
    made: tuple[Copy, ...] = ()
    """The copies that were made, the script's first."""
    left: tuple[tuple[str, Reason], ...] = ()
    """Files whose edits no copy can hold, each with the reason."""
    taken: tuple[Reason, ...] = ()
    """Names that a copy could not have, because the user has files of these names."""


def copies(script: Path, edits: Mapping[Path, Sequence[Edit]]) -> Copies:
    """Return copies of the files with edits, which are given by resolved path: the script and the
    files that it imports."""
    start = script.resolve()
    every = imported_files(script) if set(edits) - {start} else ()
    left: dict[Path, Reason] = {}
    while True:
        wanted = [file for file in edits if file not in left]
        try:
            files = _with_importers(start, wanted, every)
            break
        except _NoCopy as error:
            left[error.file] = error.reason
    taken: list[Reason] = []
    names = {file: free(_typed(file, script), taken) for file in files}
    stems = {file: to.stem for file, to in names.items() if file != start}
    made = []
    for file in files:
        more = redirected(file, stems, every) if stems else []
        text = file.read_bytes()
        done = patched(str(_typed(file, script)), text, [*edits.get(file, ()), *more])
        made.append(
            Copy(original=_typed(file, script), to=names[file], patched=_signed_patch(done))
        )
    made.sort(key=lambda copy: copy.original.resolve() != start)
    return Copies(
        made=tuple(made),
        left=tuple((str(_typed(file, script)), why) for file, why in left.items()),
        taken=tuple(taken),
    )


class _NoCopy(Exception):
    def __init__(self, file: Path, reason: Reason) -> None:
        super().__init__(reason)
        self.file, self.reason = file, reason


def _with_importers(
    start: Path, wanted: Sequence[Path], every: Sequence[ImportedFile]
) -> list[Path]:
    """Return files with edits, and the files that must be led to their copies, up to the script."""
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
                raise _NoCopy(one, cannot.reason) from cannot
            waiting += sorted(above - set(found))
    return found


def _typed(file: Path, script: Path) -> Path:
    """Return a path as the user would type it: beside the script, or from where the command was
    given."""
    if file == script.resolve():
        return script
    if file.is_relative_to(script.resolve().parent):
        return script.parent / file.relative_to(script.resolve().parent)
    return Path(os.path.relpath(file)) if file.is_relative_to(Path.cwd()) else file


def free(original: Path, taken: list[Reason]) -> Path:
    """Return the name of a copy: optimized_train.py, or with the next number if that is a file of
    the user's, which is then added to `taken`."""
    for number in range(1, _MAX_NUMBERED_NAMES):
        tail = "" if number == 1 else f"_{number}"
        to = original.with_name(f"optimized_{original.stem}{tail}{original.suffix}")
        if not to.exists() or is_ours(to):
            if number > 1:
                first = f"optimized_{original.stem}{original.suffix}"
                taken.append(because(ByHand.NAME_TAKEN, file=first, copy=to.name))
            return to
    begin = f"whose names begin with optimized_{original.stem}"
    raise RidgelineError(
        f"There are {_MAX_NUMBERED_NAMES} files beside {original} {begin}.", "Remove some of them."
    )


def is_ours(file: Path) -> bool:
    """Return whether a file was written by us and has not been changed since."""
    try:
        text = decoded(file.read_bytes()).text
    except OSError:
        return False
    found = _SIGNED.search(text)
    return found is not None and _digest(text.replace(found[0], "", 1)) == found[1]


def signed(text: str, source: str = "") -> str:
    """Return a text with a line at its top that says who wrote it, below the lines that name the
    interpreter and the encoding."""
    newline = "\r\n" if "\r\n" in text else "\n"
    opening = _OPENING_LINES.match(text)
    at = opening.end() if opening else 0
    name = f" from {source}" if source else ""
    return f"{text[:at]}# {SIGN}{name} ({_digest(text)}){newline}{text[at:]}"


def signed_comment(text: str) -> str:
    """Return Markdown, HTML or SVG with the line that marks our files in a comment at its top."""
    opening, closing = "<!--\n", "-->\n"
    return f"{opening}# {SIGN} ({_digest(opening + closing + text)})\n{closing}{text}"


def _signed_patch(done: Patched) -> Patched:
    name = Path(done.file).name
    plain = name.isascii() and name.isprintable() and "coding" not in name
    return replace(done, text=signed(done.text, name if plain else ""))


def _digest(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    return hashlib.sha256(raw.replace(b"\r\n", b"\n")).hexdigest()[:8]
