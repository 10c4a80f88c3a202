"""Bad input gets a sentence with the cause and what to try, and the right exit code."""

import json
from pathlib import Path

import pytest

from tests.integration.cold_and_warm import Warm, cold

USAGE, NOTHING_MEASURED = 2, 4
SHAPE = ("--input", "2x4")

CASES = {
    "no such command": (["modle"], USAGE, "The commands are: run, optimize, runs"),
    "no target": (["model"], USAGE, "TARGET"),
    "no such option": (["model", "bad.py:fine", "--trian"], USAGE, "--train"),
    "no callable named": (["model", "bad.py", *SHAPE], USAGE, "file.py:callable"),
    "no such file": (["model", "nowhere.py:fine", *SHAPE], USAGE, "no file nowhere.py"),
    "no such module": (["model", "nowhere:fine", *SHAPE], USAGE, "no module called 'nowhere'"),
    "no such name": (["model", "bad.py:fien", *SHAPE], USAGE, "did you mean fine"),
    "not callable": (["model", "bad.py:number", *SHAPE], NOTHING_MEASURED, "is a int"),
    "not a module": (["model", "bad.py:gives_text", *SHAPE], NOTHING_MEASURED, "returned a str"),
    "takes arguments": (["model", "bad.py:needs_argument", *SHAPE], NOTHING_MEASURED, "width"),
    "builder raises": (["model", "bad.py:raises", *SHAPE], NOTHING_MEASURED, "bad.py:16"),
    "builder exits": (["model", "bad.py:leaves", *SHAPE], NOTHING_MEASURED, "I am a script"),
    "broken file": (["model", "broken.py:fine", *SHAPE], NOTHING_MEASURED, "SyntaxError"),
    "missing import": (["model", "lacks.py:fine", *SHAPE], NOTHING_MEASURED, "no_such_package"),
    "forward raises": (["model", "bad.py:Breaks", *SHAPE], NOTHING_MEASURED, "KeyError at bad.py"),
    "wrong shape": (["model", "bad.py:fine", "--input", "2x5"], NOTHING_MEASURED, "2x5:float32"),
    "no inputs": (["model", "bad.py:fine"], USAGE, "--input"),
    "not a shape": (["model", "bad.py:fine", "--input", "2by4"], USAGE, "not a shape"),
    "no such dtype": (["model", "bad.py:fine", "--input", "2x4:int3"], USAGE, "no dtype 'int3'"),
    "empty dimension": (["model", "bad.py:fine", "--input", "0x4"], USAGE, "size 0"),
    "astronomic dimension": (
        ["model", "bad.py:fine", "--input", "99999999999999999999x8"], USAGE, "more elements than",
    ),
    "no GPU here": (["model", "bad.py:fine", *SHAPE, "--device", "cuda:9"], None, "cuda"),
    "no such device": (["model", "bad.py:fine", *SHAPE, "--device", "tpu9"], USAGE, "tpu9"),
    "no such optimizer": (["model", "bad.py:fine", *SHAPE, "--optimizer", "lion"], USAGE, "adamw"),
    "bad budget": (["model", "bad.py:fine", *SHAPE, "--budget", "soon"], USAGE, "500ms"),
    "bad size": (["model", "bad.py:fine", *SHAPE, "--fit", "lots"], USAGE, "80GiB"),
    "bad sweep": (["model", "bad.py:fine", *SHAPE, "--sweep", "width=1,2"], USAGE, "batch=1,2"),
    "sweep of a superscript": (
        ["model", "bad.py:fine", *SHAPE, "--sweep", "batch=²,3"], USAGE, "not understood",
    ),
    "short sweep": (["model", "bad.py:fine", *SHAPE, "--sweep", "batch=4"], USAGE, "two sizes"),
    "no such format": (["model", "bad.py:fine", *SHAPE, "-o", "x.docx"], USAGE, ".md"),
    "no such folder": (["model", "bad.py:fine", *SHAPE, "-o", "no/x.md"], USAGE, "no folder no"),
    "nothing to train": (["model", "bad.py:frozen", *SHAPE, "--train"], USAGE, "--train"),
    "forward exits": (
        ["model", "bad.py:Leaves", *SHAPE], NOTHING_MEASURED, "SystemExit at bad.py:64: bye",
    ),
    "no gradient to train on": (
        ["model", "bad.py:Detached", *SHAPE, "--train"], NOTHING_MEASURED, "needs a gradient",
    ),
    "one token": (["model", "bad.py:fine", *SHAPE, "--generate", "1"], USAGE, "two tokens"),
    "needs values on meta": (
        ["model", "bad.py:ValueAsked", *SHAPE, "--meta"], NOTHING_MEASURED, "without --meta",
    ),
    "too large": (
        ["model", "net.py:huge", "--input", "1x1048576"], NOTHING_MEASURED, "add --meta",
    ),
    "generation of floats": (
        ["model", "bad.py:fine", *SHAPE, "--generate", "4"], USAGE, "1x128:int64",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(nets: Path) -> Path:
    (nets / "broken.py").write_text("def fine(:\n")
    (nets / "lacks.py").write_text("import no_such_package\n")
    return nets


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_a_sentence_and_an_exit_code(case: str, warm: Warm, folder: Path) -> None:
    arguments, code, words = CASES[case]
    done = warm(arguments, folder)
    assert done.code == (code or done.code)
    assert done.code in (USAGE, NOTHING_MEASURED)
    assert words in done.err
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert done.out == ""
    assert len(done.err.strip().splitlines()) <= 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"], ["run", "--foo"], ["run", "--steps", "x", "train.py"], ["compare"],
        ["runs", "shw"], ["runs", "rm"], ["optimize"], ["compare", "a", "b", "--budget", "soon"],
    ],
)  # fmt: skip
def test_every_usage_error_has_one_form(warm: Warm, folder: Path, arguments: list[str]) -> None:
    done = warm(arguments, folder)
    assert (done.code, done.out) == (USAGE, "")
    message, hint = done.err.splitlines()
    assert message.startswith("ridgeline: ")
    assert hint.startswith("  ")


def test_a_name_given_twice_is_refused(warm: Warm, folder: Path) -> None:
    twice = ["--input", "input=2x4", "--input", "input=3x4"]
    done = warm(["model", "bad.py:fine", *twice, "--no-time"], folder)
    assert done.code == USAGE
    assert "input" in done.err


def test_a_cold_failure_reads_the_same(folder: Path) -> None:
    done = cold(["model", "bad.py:raises", *SHAPE], folder)
    assert done.code == NOTHING_MEASURED
    assert done.err == (
        "ridgeline: building bad.py:raises raised ValueError at bad.py:16: no such checkpoint\n"
    )


def test_verbose_shows_where_it_came_from(warm: Warm, folder: Path) -> None:
    done = warm(["model", "bad.py:raises", *SHAPE, "-v"], folder)
    assert done.code == NOTHING_MEASURED
    assert "Traceback" in done.err
    assert 'raise ValueError("no such checkpoint")' in done.err
    assert done.err.rstrip().splitlines()[-1].startswith("ridgeline: building bad.py:raises")


def test_an_old_file_survives_a_failed_run(warm: Warm, folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"old": True}))
    done = warm(["model", "bad.py:Breaks", *SHAPE, "-o", str(kept)], folder)
    assert done.code == NOTHING_MEASURED
    assert json.loads(kept.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]


def test_one_bad_target_among_several_is_named(warm: Warm, folder: Path) -> None:
    done = warm(["model", "bad.py:fine", "bad.py:raises", *SHAPE, "--no-time"], folder)
    assert done.code == NOTHING_MEASURED
    assert "bad.py:raises" in done.err
    assert done.out == ""
