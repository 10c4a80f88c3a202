"""`ridgeline optimize` as typed: what it teaches, and what it refuses before anything is run."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from ridgeline.cli.optimize import command
from ridgeline.cli.target import target_of
from tests.integration.cold_and_warm import Warm, cold

NEVER_RUN = "raise SystemExit('the program was run')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(NEVER_RUN)
    (tmp_path / "package").mkdir()
    return tmp_path


def test_help_teaches_what_it_does_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ridgeline.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*{'torch', 'numpy', 'rich', 'libcst'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "optimize", "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == "\n"
    words = " ".join(done.stdout.split())
    assert "SCRIPT|-m MODULE|-c CODE" in words
    assert "ridgeline optimize train.py --epochs 1" in words
    assert "Your files are not touched" in words
    assert "Ctrl-C ends the search" in words
    assert "Exit codes: 0 measured" in words
    for option in (
        *("--budget", "--goal", "--keep-exact", "--batch", "--allow", "--seed", "--fresh"),
        *("--no-write", "--json", "--output", "--quiet"),
    ):
        assert f"{option} " in words


def test_the_list_of_commands_has_a_line_for_it(tmp_path: Path) -> None:
    lines = cold(["--help"], tmp_path).out.splitlines()
    (line,) = (line for line in lines if line.split()[:1] == ["optimize"])
    assert "proven faster and equal" in line


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ([], "there is no program to optimize"),
        (["--budget", "5m"], "there is no program to optimize"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["package"], "package is a folder"),
        (["-m"], "-m needs a module"),
        (["-c"], "-c needs a program"),
        (["--budget", "soon", "train.py"], "--budget 'soon' is not a time"),
        (["--budget", "0s", "train.py"], "--budget '0s' is not a time"),
        (["--budget", "-5m", "train.py"], "--budget '-5m' is not a time"),
        (["--goal", "money", "train.py"], "'money' is not one of"),
        (["--allow", "magic", "train.py"], "--allow magic: there is no such fix"),
        (["--seed", "one", "train.py"], "'one' is not a valid integer"),
        (["-o", "result.txt", "train.py"], "no format is known for .txt"),
        (["-o", "nowhere/result.json", "train.py"], "nowhere"),
        (["--fast", "train.py"], "no such option"),
        (["--", "--budget", "5m"], "there is no file --budget"),
    ],
)
def test_what_makes_no_sense_is_said_before_the_program_runs(
    typed: list[str], says: str, warm: Warm, folder: Path
) -> None:
    done = warm(["optimize", *typed], folder)
    assert done.code == 2
    assert done.out == ""
    assert says in done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) <= 4
    assert sorted(path.name for path in folder.iterdir()) == ["package", "train.py"]


def test_a_name_that_is_no_change_is_answered_with_those_there_are(
    warm: Warm, folder: Path
) -> None:
    done = warm(["optimize", "--allow", "int8", "train.py"], folder)
    assert "int8-dynamic" in done.err


def test_what_follows_the_script_is_the_scripts() -> None:
    words = ["--budget", "5m", "train.py", "--budget", "1h", "--json", "-o", "x.txt", "--", "-q"]
    context = command.make_context("optimize", words)
    given = target_of(context)
    assert given is not None
    assert (given.kind, given.name) == ("script", "train.py")
    assert given.arguments == ("--budget", "1h", "--json", "-o", "x.txt", "--", "-q")
    assert context.params["budget"] == "5m"
    assert (context.params["as_json"], context.params["output"]) == (False, None)


@pytest.mark.parametrize(
    ("words", "kind", "name", "arguments"),
    [
        (["-m", "package.train", "--epochs", "1"], "module", "package.train", ("--epochs", "1")),
        (["-mpackage.train"], "module", "package.train", ()),
        (["--no-write", "-c", "import torch", "-q"], "code", "import torch", ("-q",)),
        (["--keep-exact", "--", "-odd.py"], "script", "-odd.py", ()),
    ],
)
def test_the_program_is_named_as_python_takes_it(
    words: list[str], kind: str, name: str, arguments: tuple[str, ...]
) -> None:
    context: click.Context = command.make_context("optimize", words)
    given = target_of(context)
    assert given is not None
    assert (given.kind, given.name, given.arguments) == (kind, name, arguments)
