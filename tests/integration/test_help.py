"""Asking for help costs nothing: no torch, no numpy, no rich."""

import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline
from tests.integration.cold_and_warm import Outcome, Warm, cold

HEAVY = {"torch", "numpy", "rich", "duckdb", "psutil"}

IMPORTED = """
import sys
from ridgeline.cli import main
try:
    main()
except SystemExit as end:
    print("exit", end.code, file=sys.stderr)
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def imported_by(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the packages it left imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    status, modules = done.stderr.splitlines()[-2:]
    assert status == "exit 0"
    return done.stdout, set(modules.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        ["--version"],
        ["model", "--help"],
        ["hardware", "--help"],
        ["explain", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    _, modules = imported_by(*arguments)
    assert "ridgeline" in modules
    assert modules & HEAVY == set()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, ridgeline; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()


@pytest.fixture(scope="module")
def help_text(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return cold(["--help"], tmp_path_factory.mktemp("anywhere"))


def test_help_lists_the_commands_with_a_line_each(help_text: Outcome) -> None:
    assert help_text.code == 0
    lines = [line.split() for line in help_text.out.splitlines()]
    for command in ("hardware", "model"):
        assert any(line[:1] == [command] and len(line) > 4 for line in lines)
    assert help_text.err == ""


def test_version_is_the_package_version(tmp_path: Path) -> None:
    done = cold(["--version"], tmp_path)
    assert (done.code, done.out) == (0, f"ridgeline {ridgeline.__version__}\n")


def test_help_of_model_shows_its_options_and_examples(warm: Warm, tmp_path: Path) -> None:
    text = warm(["model", "--help"], tmp_path).out
    for option in (
        "--input", "--train", "--optimizer", "--meta", "--measure", "--fit", "--sweep",
        "--generate", "--json", "--output", "--budget", "--device", "--dtype",
    ):  # fmt: skip
        assert option in text
    assert "ridgeline model net.py:build --input 32x3x224x224" in text


def test_no_command_shows_the_help(tmp_path: Path) -> None:
    done = cold([], tmp_path)
    assert "Commands:" in done.out + done.err
    assert "Traceback" not in done.err
