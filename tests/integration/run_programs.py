"""Runs the programs of tests/programs, plain and under `ridgeline run`, two at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.records.run import Capture, Step
from ridgeline.records.run_summary import RunSummary
from tests.programs.truth import told

PROGRAMS = Path(__file__).parents[1] / "programs"
TIMEOUT_S = 240
RUN = ("-m", "ridgeline", "run", "-o", "result.json", "--full")
_PLAIN = """
import json, os, runpy, sys
import torch
for line in sys.stdin:
    script, arguments, folder, output = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            sys.stdout = open(output, "w")
            sys.argv = [script, *arguments]
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""Plain runs as forks of one process that has imported torch: each saves its 2 seconds."""


@dataclass(frozen=True)
class Program:
    """A program, and how its steps are to be found."""

    script: str
    arguments: tuple[str, ...] = ()
    stepping: str = "optimizer"
    ranks: int = 1
    own_process: bool = False
    """Its plain run may not be a fork: it starts processes, or brings a framework."""
    prefetches: bool = False
    """Its loader is a batch ahead, so that samples are right only in sum."""
    without: frozenset[str] = field(default_factory=frozenset)
    """What is not compared, each for the reason beside it."""

    @property
    def path(self) -> str:
        return str(PROGRAMS / f"{self.script}.py")

    def __str__(self) -> str:
        return "-".join([self.script, *self.arguments])


@dataclass
class Ran:
    """What a program said under `ridgeline run`, and what the run left."""

    out: str
    err: str
    code: int
    folder: Path

    @cached_property
    def summary(self) -> RunSummary:
        return msgspec.json.decode((self.directory / "summary.json").read_bytes(), type=RunSummary)

    @cached_property
    def result(self) -> dict[str, Any]:
        """What `-o` wrote."""
        return json.loads((self.folder / "result.json").read_text())

    @property
    def directory(self) -> Path:
        (found,) = (self.folder / ".ridgeline" / "runs").iterdir()
        return found

    def capture(self, rank: int = 0) -> Capture:
        path = self.directory / f"capture-rank{rank}.json"
        return msgspec.json.decode(path.read_bytes(), type=Capture)

    def steps(self, rank: int = 0) -> list[Step]:
        name = f"steps-rank{rank}.jsonl" if rank else "steps.jsonl"
        lines = (self.directory / name).read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Step) for line in lines]

    def truth(self, rank: int = 0) -> dict[str, Any]:
        """The counts the program itself printed, under us."""
        lines = [line for line in self.out.splitlines() if line.startswith('{"steps"')]
        return told(lines[rank])


class Runner:
    """Starts every program asked for at once, and works through them by twos."""

    def __init__(self, home: Path, programs: Sequence[Program]) -> None:
        self._home = home
        self._pool = ThreadPoolExecutor(2)
        self._server: subprocess.Popen[str] | None = None
        self._plain: dict[str, Future[str]] = {}
        self._profiled: dict[str, Future[Ran]] = {}
        # The longest first, so that none is left over alone at the end.
        for program in sorted(programs, key=lambda p: (p.ranks, p.own_process), reverse=True):
            if program.own_process:
                self._plain[str(program)] = self._pool.submit(self._run_plain, program)
            self._profiled[str(program)] = self._pool.submit(self._run_profiled, program)

    def profiled(self, program: Program) -> Ran:
        return self._profiled[str(program)].result()

    def plain_output(self, program: Program) -> str:
        if str(program) not in self._plain:
            self._plain[str(program)] = Future()
            self._plain[str(program)].set_result(self._fork_plain(program))
        return self._plain[str(program)].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._server is not None:
            self._server.communicate(timeout=TIMEOUT_S)

    def _folder(self, name: str) -> Path:
        folder = self._home / name
        folder.mkdir()
        return folder

    def _run_plain(self, program: Program) -> str:
        done = _run(_command(program, ()), self._folder(f"{program}-plain"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run_profiled(self, program: Program) -> Ran:
        folder = self._folder(str(program))
        done = _run(_command(program, RUN), folder)
        return Ran(done.stdout, done.stderr, done.returncode, folder)

    def _fork_plain(self, program: Program) -> str:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-c", _PLAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=_environment(),
            )  # fmt: skip
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        folder = self._folder(f"{program}-plain")
        output = folder / "out"
        asked = [program.path, program.arguments, str(folder), str(output)]
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline().strip() == "0", f"{program} fails without us"
        return output.read_text()


def _command(program: Program, ours: Sequence[str]) -> list[str]:
    launcher: list[str] = []
    if program.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher += [str(program.ranks)]
    return [sys.executable, *launcher, *ours, program.path, *program.arguments]


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
