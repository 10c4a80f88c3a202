"""The command a program is started with, and what is around it."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.harness.capture.launch import command, environment


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["python", "-m", "ridgeline", "run", "x.py"], []),
        (["python", "/bin/ridgeline", "run", "-O"], []),
        (["python", "-u", "-m", "ridgeline"], ["-u"]),
        (["python", "-O", "-X", "dev", "-W", "ignore", "-m", "ridgeline"],
         ["-O", "-X", "dev", "-W", "ignore"]),
        (["python", "-Xdev", "-Werror", "-m", "ridgeline"], ["-Xdev", "-Werror"]),
        (["python", "-um", "ridgeline"], ["-u"]),
        (["python", "-I", "-m", "ridgeline"], []),
        (["python", "-OIum", "ridgeline"], ["-Ou"]),
        (["python", "--check-hash-based-pycs=always", "-m", "ridgeline"],
         ["--check-hash-based-pycs=always"]),
    ],
)  # fmt: skip
def test_the_interpreters_options_are_passed_on(
    words: list[str], flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    made = command("script", "train.py", ["--epochs", "1"])
    assert made == [sys.executable, *flags, "train.py", "--epochs", "1"]


@pytest.mark.parametrize(
    ("kind", "words"), [("module", ["-m", "pkg.train"]), ("code", ["-c", "pkg.train"])]
)
def test_modules_and_code_are_started_as_python_does(
    kind: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ridgeline"])
    assert command(kind, "pkg.train", ["-x"])[1:] == [*words, "-x"]


@pytest.mark.parametrize("before", [None, "", "lib", os.pathsep.join(["a", "b"])])
def test_the_search_path_is_the_programs_own_behind_ours(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    made = environment(tmp_path, 0)
    first, *rest = made["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert os.pathsep.join(rest) == (before or "")
    assert made.get("RIDGELINE_BEFORE") == before
