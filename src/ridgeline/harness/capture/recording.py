"""What a run keeps beside its steps: the trace, the memory history, and what the program is.

Turned by the windows, at the end of a step; each turn is a pause of ours, and the step it falls
into is named "disturbed".
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from ridgeline.harness.capture import compiling, flags
from ridgeline.harness.capture.journal import Journal
from ridgeline.harness.capture.memory_history import MemoryHistory, Where
from ridgeline.harness.capture.tracing import Tracing
from ridgeline.records.run import Capture, OutOfMemory, Settings, Status

WAITING = 0.2
"""Of the steps so far, in the loader: from here on a run looks for the line by itself."""


class Recording:
    def __init__(
        self, torch: Any, journal: Journal, settings: Settings, where: Where, world: int
    ) -> None:
        self._torch = torch
        self._journal = journal
        self._settings = settings
        self._world = world
        directory, rank = journal.directory, journal.rank
        self._trace_target = directory.path / f"trace-rank{rank}.json"
        self.tracing = Tracing(torch, self._trace_target, self.miss)
        self.memory = MemoryHistory(
            torch, directory.memory_file(rank), where, self._ran_out, self.fault
        )
        self._trace_file = ""
        self._memory_file = ""
        self._out_of_memory: OutOfMemory | None = None
        self._missing: list[str] = []
        self._problems: list[str] = []
        self._sampler: Any = None
        self._input_ns = self._steps_ns = 0
        self.autocast: set[str] = set()
        self.scaler = False

    def miss(self, sentence: str) -> None:
        if sentence not in self._missing and len(self._missing) < 20:
            self._missing.append(sentence)

    def fault(self, where: str, error: BaseException) -> None:
        sentence = f"{where}: {type(error).__name__}: {error}"[:300]
        if sentence not in self._problems and len(self._problems) < 20:
            self._problems.append(sentence)

    def settled(self) -> None:
        """The first timed step comes next."""
        with self._guarded("memory history"):
            written = self.memory.stop()
            self._memory_file = written.name if written is not None else ""

    def trace_begins(self, cuda: bool) -> bool:
        with self._guarded("trace"):
            return self.tracing.start(cuda)
        return False

    def trace_ends(self, keep: bool = True) -> None:
        if not self.tracing.running:
            return
        with self._guarded("trace"):
            written = self.tracing.stop(keep and not self._journal.broken)
            self._trace_file = written.name if written is not None else ""

    def close(self) -> None:
        """No window is open any more."""
        self.trace_ends(keep=False)
        with self._guarded("memory history"):
            self.memory.stop()
        self.stop_sampling()
        with self._guarded("sampling in workers"):
            from ridgeline.harness.capture.sampling import workers

            workers.uninstall()

    def capture(self, seen: dict[str, Any], cuda: int | None, ended: Status, why: str) -> Capture:
        """Everything known, in one record."""
        facts: dict[str, Any] = dict(seen)
        with self._guarded("flags"):
            facts["flags"] = flags.flags(self._torch, tuple(sorted(self.autocast)), self.scaler)
        with self._guarded("device"):
            facts["device"] = flags.device(self._torch, cuda)
        with self._guarded("torch.compile"):
            facts["compilations"] = compiling.compilations()
            facts["graph_breaks"] = compiling.graph_breaks()
        with self._guarded("distributed"):
            facts["distributed"] = self._backend()
        if self._journal.broken:
            self.fault("the run", OSError(self._journal.broken))
        return Capture(
            rank=self._journal.rank,
            world=self._world,
            pid=os.getpid(),
            trace_file=self._trace_file,
            calls=self.tracing.calls if self._trace_file else (),
            memory_file=self._memory_file,
            out_of_memory=self._out_of_memory,
            ended=ended,
            why=why,
            missing=tuple(self._missing),
            problems=tuple(self._problems),
            **facts,
        )

    def workers_sample(self, directory: Path) -> None:
        """In every run: it costs the process that trains nothing."""
        with self._guarded("sampling in workers"):
            from ridgeline.harness.capture.sampling import workers

            workers.install(directory, asked=self._settings.python)

    def step(self, index: int, input_ns: int, dur_ns: int) -> None:
        """A step has ended. The first pays for caches and lazy start-up, and does not count."""
        if index:
            self._input_ns += input_ns
            self._steps_ns += dur_ns

    def sample(self, makes_batches: bool = False) -> None:
        """While steps are timed, and not while they are traced. In a run that did not ask for it
        only where the program makes its own batches and that takes long: then it is the loader's
        time that a sample is paid with."""
        if self._sampler is not None or self.tracing.running:
            return
        waits = makes_batches and self._input_ns >= WAITING * self._steps_ns > 0
        if not (self._settings.python or waits):
            return
        with self._guarded("sampling"):
            from ridgeline.harness.capture.sampling.sampler import Sampler

            self._sampler = Sampler(self._journal.directory.path, asked=self._settings.python)
            self._sampler.start()
            self._sampler.watch_this_thread()  # the one that trains, whichever it is

    def stop_sampling(self) -> None:
        if self._sampler is not None:
            with self._guarded("sampling"):
                self._sampler.stop()
                if self._sampler.problem:
                    self.miss(self._sampler.problem)
            self._sampler = None

    def _backend(self) -> str:
        distributed = self._torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return ""
        return str(distributed.get_backend())

    def note_host_memory(self, step: int, phase: str) -> None:
        """Note that the host ran out of memory, if the uncaught exception says so. If a device ran
        out of memory, that is already known."""
        if self._out_of_memory is None:
            with self._guarded("out of memory"):
                from ridgeline.harness.capture.host_memory import died_of

                self._out_of_memory = died_of(getattr(sys, "last_value", None), step, phase)

    def _ran_out(self, what: OutOfMemory) -> None:
        self._out_of_memory = what

    def _guarded(self, where: str) -> "_Guarded":
        return _Guarded(self, where)


class _Guarded(contextlib.AbstractContextManager[None]):
    """A fault of ours is written down, and goes no further."""

    def __init__(self, recording: Recording, where: str) -> None:
        self._recording = recording
        self._where = where

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self._recording.fault(self._where, error)
            return True
        return False
