"""The portable reader on every Python that the package supports, not only on the tests' own.

CPython 3.11.0 to 3.11.4 (Debian 12 has 3.11.2) let a possessive group of a regular expression match
one item too far: the portable reader then lost every event of a trace.
"""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traces_alike import alike

import ridgeline

SYSTEM_PYTHON = Path("/usr/bin/python3")

READ = """
import json, sys
from pathlib import Path
from ridgeline.trace.reading import reader
from ridgeline.trace.reading.portable import Portable

reader._decoder = lambda path: Portable()
for path in sys.argv[1:]:
    origin = reader.parse(Path(path)).origin
    losses = [(loss.reason, loss.count) for loss in origin.losses]
    print(json.dumps([origin.events, losses]))
"""


def test_the_system_python_reads_the_same_events_as_this_one(tmp_path: Path) -> None:
    """It borrows the packages of the tests' own Python: both have one binary interface."""
    if not SYSTEM_PYTHON.exists() or _abi(SYSTEM_PYTHON) != _abi(Path(sys.executable)):
        pytest.skip("the system has no Python that could load this environment's packages")
    paths = []
    for index, text in enumerate(text for text in alike().values() if b"traceEvents" in text):
        damaged = text.replace(b'"dur"', b'"dur" 7', 1)  # so that events are read one by one
        for name, content in ((f"{index}.json", text), (f"{index}-damaged.json", damaged)):
            paths.append(tmp_path / name)
            paths[-1].write_bytes(content)
    assert _read(SYSTEM_PYTHON, paths) == _read(Path(sys.executable), paths)


def _abi(python: Path) -> str:
    told = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return told.stdout.strip()


def _read(python: Path, paths: list[Path]) -> list[Any]:
    """Events kept, and those lost by reason, of each file."""
    package = Path(ridgeline.__file__).parents[1]
    # An environment can borrow packages from another one, so every folder of packages counts.
    borrowed = (path for path in sys.path if path.endswith("-packages"))
    folders = [sysconfig.get_path("purelib"), *borrowed]
    packages = os.pathsep.join([str(package), *dict.fromkeys(folders)])
    child = subprocess.run(
        [python, "-c", READ, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]
    return [json.loads(line) for line in child.stdout.splitlines()]


def test_no_regular_expression_is_possessive_or_atomic() -> None:
    package = Path(ridgeline.__file__).parent
    found = [
        f"{file.relative_to(package)}:{line}: {pattern!r}"
        for file in sorted(package.rglob("*.py"))
        for line, pattern in _patterns(file)
        if _possessive(re._parser.parse(pattern))  # type: ignore[attr-defined]
    ]
    assert not found


def _patterns(file: Path) -> Iterator[tuple[int, Any]]:
    """Each text given first to a function of `re`, as far as the source spells it out."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        module, first = node.func.value, node.args[0]
        if isinstance(first, ast.BinOp) and isinstance(first.op, ast.Mod):
            first = first.left  # a limit filled in
        if not (isinstance(module, ast.Name) and module.id == "re"):
            continue
        if isinstance(first, ast.Constant) and isinstance(first.value, str | bytes):
            limit, one = ("%d", "1") if isinstance(first.value, str) else (b"%d", b"1")
            yield node.lineno, first.value.replace(limit, one)  # type: ignore[arg-type]


def _possessive(parsed: Any) -> bool:
    constants = re._constants  # type: ignore[attr-defined]
    for code, argument in parsed:
        if code in (constants.POSSESSIVE_REPEAT, constants.ATOMIC_GROUP):
            return True
        if any(_possessive(part) for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns inside one item of a parsed pattern."""
    if isinstance(argument, re._parser.SubPattern):  # type: ignore[attr-defined]
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _parts(part)
