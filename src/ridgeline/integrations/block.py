"""`with ridgeline.profile() as run: …`: records a block of code as `ridgeline run` records a
program; and the notebook extension: after `%load_ext ridgeline`, `%%ridgeline` profiles a cell."""

import shlex
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from ridgeline.harness.capture import live, watching
from ridgeline.harness.capture.watch_lock import EXIT_WAIT_S
from ridgeline.integrations.run_lifecycle import begin_run, finish_run
from ridgeline.records.facts import Trust, because
from ridgeline.records.run import Settings, Status, Target
from ridgeline.records.run_directory import RunDirectory, runs_root
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.verdict import DoubtCode, LimitCode, Verdict
from ridgeline.report.document import Document, Span
from ridgeline.report.notebook import ShownAsPage, shown_in_notebook

_USAGE = "%%ridgeline [--steps N] [--trace-steps N] [--python] [--full] [--quiet] [NAME]"


class profile(ShownAsPage):
    """Profile a block of code: what limits it, and where the time of each step goes.

    When the block has ended, its report is printed; a notebook shows its page, then and whenever
    `run` is the last line of a cell. `run.summary` holds the figures, and `run.directory` is the
    folder with everything that was recorded. Under `ridgeline run`, and inside another `profile`,
    nothing is recorded a second time, and the summary says so. Call `run.step()` (the same as
    `ridgeline.step()`) at the end of each iteration if the loop has no optimizer step to see.
    """

    def __init__(
        self,
        name: str = "block",
        *,
        steps: int = 40,
        trace_steps: int = 3,
        python: bool = False,
        full: bool = False,
        price_per_hour: float | None = None,
        carbon_g_per_kwh: float | None = None,
        runs_dir: str | Path | None = None,
        quiet: bool = False,
    ) -> None:
        self.name = name
        self.summary: RunSummary | None = None
        self.directory: Path | None = None
        self._root = Path(runs_dir) if runs_dir is not None else None
        self._settings = Settings(
            steps=steps,
            trace_steps=trace_steps,
            python=python,
            full=full,
            price_per_hour=price_per_hour,
            carbon_g_per_kwh=carbon_g_per_kwh,
            quiet=quiet,
        )
        self._run: RunDirectory | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "profile":
        if live.session is not None:
            self.summary = _recorded_elsewhere(self.name)
            return self
        import torch

        from ridgeline.harness.capture.seams import begin

        self._run = self._make()
        self.directory = self._run.path
        self._watcher = watching.start(self._run)
        begin(torch, str(self._run.path), self._settings)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        session = live.session
        if self._run is None or session is None:
            return
        from ridgeline.harness.capture.seams import end

        end(session, *_ending(kind, error))
        if self._watcher is not None:
            try:
                self._watcher.wait(EXIT_WAIT_S)  # on a full disk it never learns that the run ended
            except subprocess.TimeoutExpired:
                self._watcher.kill()
                self._watcher.wait()
        self._conclude(self._run)

    @staticmethod
    def step() -> None:
        from ridgeline.harness.capture.live import step

        step()

    def document(self) -> Document:
        if self.summary is None:
            return Document(answer=(Span(f"{self.name} has not ended yet"),))
        from ridgeline.report.views import run

        return run.document(self.summary)

    def page_document(self) -> Document:
        if self.summary is None or self._run is None:
            return self.document()
        from ridgeline.diagnosis.run_page import run_page
        from ridgeline.report.views.run import run_report

        directory, summary = self._run, self.summary
        page = run_report(summary, lambda: run_page(directory, summary)).page
        assert page is not None
        return page()

    def _make(self) -> RunDirectory:
        root = self._root or runs_root()
        directory = RunDirectory.make(root, f"{datetime.now():%m%d-%H%M%S}-{self.name}")
        begin_run(directory, Target(kind="block", name=self.name), self._settings)
        return directory

    def _conclude(self, directory: RunDirectory) -> None:
        quiet = self._settings.quiet
        self.summary = finish_run(
            directory,
            time.perf_counter_ns(),
            say=lambda text: None if quiet else print(text, file=sys.stderr),
        )
        if quiet:
            return
        if shown_in_notebook(self):
            return
        from rich.console import Console

        from ridgeline.report.renderers import terminal

        terminal.render(
            self.document(), Console(file=sys.stderr, highlight=False, force_jupyter=False)
        )


def _recorded_elsewhere(name: str) -> RunSummary:
    """Return the summary of a block that the run around it records."""
    trust = Trust(confidence="unreliable", doubts=(because(DoubtCode.RECORDED_ELSEWHERE),))
    reason = because(LimitCode.RECORDED_ELSEWHERE)
    return RunSummary(
        name=name,
        run_dir="",
        command="",
        status="running",
        verdict=Verdict(bound="unknown", reason=reason, trust=trust),
    )


def _ending(kind: type[BaseException] | None, error: BaseException | None) -> tuple[Status, str]:
    if kind is None:
        return "finished", ""
    if issubclass(kind, KeyboardInterrupt):
        return "interrupted", ""
    return "raised", f"{kind.__name__}: {error}"[:200]


def load_ipython_extension(shell: Any) -> None:
    def ridgeline(line: str, cell: str) -> None:
        """Profile this cell: what limits it, and where the time of each step goes."""
        with profile_of_line(line):
            shell.run_cell(cell).raise_error()

    ridgeline.__doc__ = f"{ridgeline.__doc__}\n\n{_USAGE}"
    shell.register_magic_function(ridgeline, magic_kind="cell", magic_name="ridgeline")


def profile_of_line(line: str) -> profile:
    """Return the profiler with the options that the line of the magic names."""
    words = shlex.split(line)
    given: dict[str, Any] = {}
    name = "cell"
    while words:
        word = words.pop(0)
        if word in ("--steps", "--trace-steps"):
            if not words or not words[0].isdigit():
                raise ValueError(f"{word} needs a number: {_USAGE}")
            given[word[2:].replace("-", "_")] = int(words.pop(0))
        elif word in ("--python", "--full", "--quiet"):
            given[word[2:]] = True
        elif word.startswith("-"):
            raise ValueError(f"unknown option {word}: {_USAGE}")
        else:
            name = word
    return profile(name, **given)
