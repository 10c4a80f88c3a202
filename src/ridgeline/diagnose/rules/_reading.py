"""The time of the loader that goes into opening and reading files."""

import ast
import re

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rules._batch_lines import batch_lines
from ridgeline.records.python_view import PythonLine

_OPENS = {"open", "read", "read_bytes", "read_text", "readinto", "readline", "readlines",
          "fromfile", "stat", "exists", "is_file", "isfile", "listdir", "iterdir", "scandir",
          "glob", "getsize", "pread"}  # fmt: skip
_PLACES = re.compile(
    r"^(?:pathlib|os|posixpath|genericpath|ntpath|io|_io|codecs|glob|fnmatch|tempfile|shutil)\."
    r"|^PIL\.Image\.open$|\.(?:read_bytes|read_text|open)$"
)
"""Library functions whose time is the file system's."""


def reading_lines(case: Case) -> tuple[PythonLine, ...]:
    """Lines of the user's that open or read files, costliest first."""
    return tuple(line for line in batch_lines(case) if _reads(line))


def reading_share(case: Case) -> float:
    """Of the making of batches."""
    return sum(line.share for line in reading_lines(case))


def _reads(line: PythonLine) -> bool:
    if "." in line.calls:  # the library function most of its time is in
        return bool(_PLACES.search(line.calls))
    if line.calls:  # a built-in one
        return line.calls in _OPENS
    return bool(_called(line.source) & _OPENS)


def _called(text: str) -> set[str]:
    """Names called in a line, which may be half a statement."""
    try:
        tree: ast.AST = ast.parse(text.rstrip(" :") + (":\n pass" if text.endswith(":") else ""))
    except SyntaxError:
        return set(re.findall(r"(\w+)\s*\(", text))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}
