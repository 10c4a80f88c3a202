"""The time of the loader that goes into opening and reading files."""

import ast
import re

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._batch_lines import batch_lines
from ridgeline.records.python_view import PythonLine

_OPENS = {"open", "read", "read_bytes", "read_text", "readinto", "readline", "readlines",
          "fromfile", "stat", "exists", "is_file", "isfile", "listdir", "iterdir", "scandir",
          "glob", "getsize", "pread", "imread"}  # fmt: skip
_PLACES = re.compile(
    r"^(?:pathlib|os|posixpath|genericpath|ntpath|io|_io|codecs|glob|fnmatch|tempfile|shutil)\."
    r"|^PIL\.Image\.open$|\.(?:read_bytes|read_text|open|imread)$"
    r"|^numpy\.(?:lib\.(?:_?npyio(?:_impl)?\.)?)?load$|^torch\.(?:serialization\.)?load$"
)
"""Library functions whose time is the file system's, or begins there."""
_LOADS = re.compile(r"\b(?:np|numpy|torch)\.load\s*\(")
_PARSES = re.compile(r"\b_?(?:json|pickle)\.(?:__init__\.)?load\b")
"""Of a file that is open already: reading where the same function opens it."""
_DECODES_TOO = re.compile(r"imread|\b_?(?:json|pickle)\.|\btorch\.(?:serialization\.)?load")


def reading_lines(case: Case) -> tuple[PythonLine, ...]:
    """Lines of the user's that open or read files, costliest first."""
    return tuple(line for line in batch_lines(case) if _reads(case, line))


def reading_share(case: Case) -> float:
    """Of the making of batches."""
    return sum(line.share for line in reading_lines(case))


def decodes_too(line: PythonLine) -> bool:
    """Whether what reads the file makes something of it on the way: the time is of both."""
    return bool(_DECODES_TOO.search(f"{line.source} {line.calls}"))


def _reads(case: Case, line: PythonLine) -> bool:
    if _PARSES.search(f"{line.calls} {line.source}") and "loads" not in line.calls:
        return _opens(case, line)
    if "." in line.calls:  # the library function most of its time is in
        return bool(_PLACES.search(line.calls))
    if line.calls:  # a built-in one
        return line.calls in _OPENS or (line.calls == "load" and bool(_LOADS.search(line.source)))
    return bool(_called(line.source) & _OPENS or _LOADS.search(line.source))


def _opens(case: Case, line: PythonLine) -> bool:
    """Whether the function around the line opens a file."""
    if "open" in _called(line.source):
        return True
    source = case.sources.get(line.file)
    around = source.walk(source.scope(line.line)) if source is not None else ()
    calls = [node.func for node in around if isinstance(node, ast.Call)]
    return any((getattr(f, "id", "") or getattr(f, "attr", "")) == "open" for f in calls)


def _called(text: str) -> set[str]:
    """Names called in a line, which may be half a statement."""
    try:
        tree: ast.AST = ast.parse(text.rstrip(" :") + (":\n pass" if text.endswith(":") else ""))
    except SyntaxError:
        return set(re.findall(r"(\w+)\s*\(", text))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}
