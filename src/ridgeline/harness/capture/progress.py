"""A run's progress: which window each step falls into, and what is done when a step ends.

The windows follow each other: settle, light, traced, light again, alone. The trace comes early, so
that a program of twenty steps still gets one, and timing goes on after it until there are enough
steps. `Windows` and `Thinning` touch neither torch nor a clock: they are given the times.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from msgspec import Struct

from ridgeline.harness.capture import live
from ridgeline.harness.capture.held_tensors import HoldersWatch
from ridgeline.harness.capture.inventory import (
    Children,
    GradientClearing,
    Loaders,
    Optimizers,
    Roots,
)
from ridgeline.harness.capture.memory_watch import MemoryReadings, stock
from ridgeline.harness.capture.pause_watch import PauseWatch
from ridgeline.harness.capture.program_exit import exit_at_once, farewell
from ridgeline.harness.capture.recording import Compiling, Journal, Recording
from ridgeline.harness.capture.step_boundaries import End, Stepping
from ridgeline.harness.capture.step_counts import Counts, Draft, Drafts, Losses
from ridgeline.harness.capture.step_times import (
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    QUIET_INPUT,
    DeviceMarks,
    SystemTime,
    ThreadAccount,
    Timeline,
    phase_name,
)
from ridgeline.records.run import Settings, Status, StepMemory, StepWindow, Window
from ridgeline.records.step_memory import Stock

MIN_SETTLE_STEPS = 3
MAX_SETTLE_STEPS = 30
"""A program that compiles in every step never settles, which is a finding. It is timed after this
many steps all the same."""
MIN_LIGHT_STEPS = 10
"""Steps that are timed before the trace, and the smallest number of timed steps in a run whose
steps are slow."""
MAX_WAIT_FOR_TRACE_NS = 5_000_000_000
"""The trace begins after this time even if fewer than `MIN_LIGHT_STEPS` steps were timed: ten steps
may take ten minutes."""
MIN_LIGHT_NS = 2_000_000_000
"""Shortest total of timed steps: enough for twenty telemetry samples, or forty steps of 50 ms."""
MAX_LIGHT_NS = 30_000_000_000
"""After this much timed, `MIN_LIGHT_STEPS` steps are enough."""

Order = Literal["", "light", "trace", "untrace", "alone"]


class _Open(Struct):
    kind: Literal["settle", "light", "traced", "memory", "alone"]
    first_step: int
    start_ns: int
    steps: int = 0


class Windows:
    """Decides which window the program is in. `step_done` returns what must happen after a step."""

    def __init__(self, settings: Settings, now_ns: int) -> None:
        self._settings = settings
        self._open = _Open("settle", 0, now_ns)
        self._closed: list[Window] = []
        self._compiled_at = -1
        self._light_steps = 0
        self._light_ns = 0
        self._traced = settings.trace_steps == 0
        self._disturbed = False

    @property
    def label(self) -> StepWindow:
        """The window in which the step in progress is recorded."""
        if self._disturbed:
            return "disturbed"
        kind = self._open.kind
        return "light" if kind == "alone" else kind

    @property
    def kind(self) -> str:
        return self._open.kind

    def step_done(self, index: int, now_ns: int, dur_ns: int, compiled: bool) -> Order:
        opened = self._open
        opened.steps += 1
        was_disturbed, self._disturbed = self._disturbed, False
        if compiled:
            self._compiled_at = opened.steps
        if opened.kind == "light" and not was_disturbed and not compiled:
            self._light_steps += 1
            self._light_ns += dur_ns
        order = self._next(opened)
        if order:
            self._enter_window(order, index + 1, now_ns)
        return order

    @property
    def is_traced(self) -> bool:
        """Whether the trace has been recorded, or none is wanted."""
        return self._traced and self._open.kind != "traced"

    @property
    def is_disturbed(self) -> bool:
        return self._disturbed

    def disturb(self) -> None:
        """Mark the step in progress as disturbed by work of ours."""
        self._disturbed = True

    def no_trace(self) -> None:
        """Go on without a traced window, because there can be none or it was cut short."""
        self._traced = True
        if self._open.kind == "traced":
            self._open.kind = "light"
            self._disturbed = True

    def again(self, index: int, now_ns: int) -> None:
        """Begin again with the first window, because the end of a step is only known from now
        on."""
        self.__init__(self._settings, now_ns)  # type: ignore[misc]
        self._open.first_step = index

    def all(self, now_ns: int) -> tuple[Window, ...]:
        return (*self._closed, self._shut(now_ns))

    def _next(self, opened: _Open) -> Order:
        settings = self._settings
        if opened.kind == "settle":
            calm = opened.steps - max(self._compiled_at, 0) >= 2
            ready = opened.steps >= MIN_SETTLE_STEPS and calm
            return "light" if ready or opened.steps >= MAX_SETTLE_STEPS else ""
        if opened.kind == "traced":
            return "untrace" if opened.steps >= settings.trace_steps else ""
        if opened.kind == "light" and not self._traced:
            slow = opened.steps >= MIN_SETTLE_STEPS and self._light_ns >= MAX_WAIT_FOR_TRACE_NS
            enough = opened.steps >= min(MIN_LIGHT_STEPS, settings.steps)
            return "trace" if enough or slow else ""
        if opened.kind == "light" and not settings.full:
            enough = self._light_steps >= settings.steps and self._light_ns >= MIN_LIGHT_NS
            slow = self._light_steps >= MIN_LIGHT_STEPS and self._light_ns >= MAX_LIGHT_NS
            return "alone" if enough or slow else ""
        return ""

    def _enter_window(self, order: Order, first: int, now_ns: int) -> None:
        self._closed.append(self._shut(now_ns))
        if order == "trace":
            self._open = _Open("traced", first, now_ns)
            self._traced = True
        elif order == "untrace":
            self._open = _Open("light", first, now_ns)
            self._disturbed = True
        else:
            self._open = _Open("light" if order == "light" else "alone", first, now_ns)

    def _shut(self, now_ns: int) -> Window:
        opened = self._open
        return Window(
            kind=opened.kind,
            first_step=opened.first_step,
            steps=opened.steps,
            start_ns=opened.start_ns,
            end_ns=now_ns,
        )


MIN_DETAILED_STEPS = 30
"""The first timed steps are recorded in every detail; a short program has no others."""
DETAIL_EVERY_NS = 100_000_000
"""At most one detailed step in this much time. A detailed step costs a quarter of a millisecond,
0.25 % of this time."""
MAX_STEPS_PER_DETAILED = 32
"""At least one in this many steps is recorded in detail."""


class Thinning:
    """Chooses how many steps are recorded in detail: `every` is 1 for all, n for one step in n. The
    other steps are only timed."""

    def __init__(self) -> None:
        self._seen = 0
        self._ns = 0
        self.every = 1

    def step(self, dur_ns: int) -> None:
        """Note that a detailed step in a light window has ended."""
        self._seen += 1
        self._ns += dur_ns
        if self._seen >= MIN_DETAILED_STEPS:
            mean = max(self._ns / self._seen, 1)
            self.every = max(min(int(DETAIL_EVERY_NS / mean), MAX_STEPS_PER_DETAILED), 1)


class Gate:
    """While it is closed, every seam runs the function's body alone and records nothing."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False


PROFILES_ITSELF = "no trace: the program profiles itself"


class Progress:
    def __init__(
        self, torch: Any, directory: Path, settings: Settings, rank: int, world: int
    ) -> None:
        self.detach: Callable[[bool, bool, bool], None] = lambda compiled, traced, goes_on: None
        """Takes the seams off, as far as that is safe. `Seams` sets it."""
        self.gate = Gate()
        self.off = False
        """Whether nothing is recorded any more: the windows or the program are over, or too many
        errors of ours occurred."""
        self.thread: int | None = None
        """The thread that trains."""
        self.clock = perf_counter_ns
        self._began_ns = self.clock()
        self.timeline = Timeline(self.clock)
        self.stepping = Stepping()
        self.compiling = Compiling()
        self.losses = Losses(torch)
        self.roots = Roots(torch)
        self.clearing = GradientClearing(torch)
        self.optimizers = Optimizers(self.clearing)
        self.loaders = Loaders()
        self.children = Children()
        self.counts = Counts.new()
        self.index = 0
        self.counts_alone = False
        """Whether `steps_alone` is counted, by a hook that was left on the optimizer."""
        self.steps_alone = 0
        """Number of steps after the windows were over."""
        self.detailed = True
        """Whether the step in progress is recorded in detail; else it is only timed."""
        self.needs_every_step = False
        """Whether every step must be recorded in detail, because the program does something that
        can only be followed step by step."""
        self._thinning = Thinning()
        self.system = SystemTime(self.clock)
        """Time that the kernel worked for the program in light windows."""
        self._account = ThreadAccount(self.clock)
        self.pauses = PauseWatch(self._in_progress)
        self._timed: list[tuple[int, int, int, StepMemory | None]] = []
        """Index, start, length and memory of steps that were only timed."""
        self._readings = MemoryReadings(torch, self.clock)
        self._holders = HoldersWatch(torch)
        self._torch = torch
        self._settings = settings
        self._world = world
        self._windows = Windows(settings, self.clock())
        self._journal = Journal(directory, rank)
        self._drafts = Drafts(self.losses)
        self.recording = Recording(
            torch, self._journal, settings, self._where, world, stock=self._stock
        )
        self._cuda: int | None = None
        self._marks: DeviceMarks | None = None

    def on_device(self, index: int) -> None:
        """Also time steps by the clock of the CUDA device that the program trains on."""
        if self._marks is None:
            self._cuda = index
            self._marks = DeviceMarks(self._torch)
            self._listen_to_device()

    def end_step(self, end: End) -> None:
        if end is End.EARLIER:
            self._merge_into_first()
            return
        compile_ns, trains = self.compiling.take(), self.stepping.trains
        start, dur, spent = self.timeline.cut()
        now = self.timeline.start_ns
        draft = Draft(
            self.index, start, dur, spent, self._windows.label, self.counts, trains, compile_ns
        )
        self.counts = Counts.new()
        waited = spent[INPUT] if trains else spent[INPUT] + spent[QUIET_INPUT]
        self.recording.step(self.index, waited, dur)
        if end in (End.MERGE, End.DROP):
            draft = self._restart(draft, end, start)
        draft.memory = self._readings.read_if_due(self._cuda, now)
        if draft.window == "light":
            self._holders.read(draft.index, draft.memory)
        self._drafts.add(draft, self.stepping.uncertain)
        if self.timeline.mark is not None and self._marks is not None:
            self._marks.cut(draft.index, self.timeline.phase, trains)
        order = self._windows.step_done(draft.index, now, dur, compile_ns > 0)
        self.index = draft.index + 1
        if draft.window == "light" and not order:
            self._thinning.step(dur)
            if not compile_ns:
                known = spent[INPUT] + spent[FORWARD] + spent[BACKWARD] + spent[OPTIMIZER]
                self.pauses.step_ended(dur, dur - known)
        self._after_step(order, now)
        self._choose_detail()

    def time_step(self) -> None:
        """Note that a step has ended which is only timed."""
        now, start = self.clock(), self.timeline.start_ns
        dur = self.timeline.restart(now)
        memory = self._readings.read_if_due(self._cuda, now)
        self._holders.read(self.index, memory)
        self._timed.append((self.index, start, dur, memory))
        self.index += 1
        self.pauses.only_timed(dur)
        if self.index % self._thinning.every == 0 or self._journal.due(now):
            self._settle_timed()

    def detail_every_step(self) -> None:
        """Record every step in detail from here on, the one in progress included."""
        self.needs_every_step = True
        if not self.detailed:
            self._settle_timed()
            self.detailed = True
            self.gate.closed = self.off

    def _settle_timed(self) -> None:
        order: Order = ""
        for index, start, dur, memory in self._timed:
            draft = Draft(
                index, start, dur, [], "light", Counts.new(), True, memory=memory, detailed=False
            )
            self._drafts.add(draft, uncertain=False)
            order = order or self._windows.step_done(index, start + dur, dur, False)
        self._timed.clear()
        self._after_step(order, self.timeline.start_ns)
        self._choose_detail()

    def _after_step(self, order: Order, now: int) -> None:
        if order:
            self._enter_window(order)
        elif self.recording.tracing.running:
            self.recording.tracing.step()
        if order or self._journal.due(now):
            self._deliver()
            self._journal.flush(now)
        if order or self._look_for_holders():
            self.timeline.resume()

    def _look_for_holders(self, at_last: bool = False) -> bool:
        """Look for what holds memory that grows, if it is due. Return whether time was spent."""
        if not (at_last or self._holders.is_due) or self.recording.tracing.running:
            return False
        with self.recording.guarded("what holds memory"):
            if self._holders.look(self.index, self.roots.alive()):
                self._windows.disturb()
                return True
        return False

    def _choose_detail(self) -> None:
        every = self._thinning.every
        thin = every > 1 and self.index % every != 0 and not self.off and self._can_time_only()
        thin = thin and not self._windows.is_disturbed
        self.detailed = not thin
        if not self.off:
            self.gate.closed = thin

    @property
    def spent_ns(self) -> int:
        """Time since torch was imported."""
        return self.clock() - self._began_ns

    @property
    def is_traced(self) -> bool:
        """Whether the trace has been recorded, or none is wanted."""
        return self._windows.is_traced

    def _can_time_only(self) -> bool:
        # On a GPU every step needs its phase marks, which cost a smaller share of the step.
        plain = self._marks is None and not (self.needs_every_step or self.recording.scaler)
        return plain and self.stepping.simple and not self.recording.tracing.running

    def yield_to_profiler(self) -> None:
        """Stop our trace, because the program starts a profiler of its own."""
        self._account.end()
        self.recording.trace_ends(keep=False)
        self.recording.miss(PROFILES_ITSELF, "profiles-itself")
        self._windows.no_trace()
        self._listen_to_device()
        self.timeline.resume()

    def stopping(self) -> None:
        """Leave a file that says that the program was told to end. It may go on by itself, unless
        the user requested a forced exit."""
        with contextlib.suppress(OSError):
            self._journal.directory.stopping_file.touch()
        if self._settings.at_once:
            path, rank = self._journal.directory.path, self._journal.rank
            exit_at_once(lambda: farewell(str(path), str(rank)), world=self._world)

    def farewell(self, ended: Status, why: str) -> bool:
        """Close everything of ours, and write all that is known. Return whether the last capture
        file, from which the watcher learns of the end, could be written."""
        self.system.end()
        self._account.end()
        complete = not self.off or self.counts_alone
        if self._timed:
            self._settle_timed()
        if not self.off and self.stepping.open and ended in ("finished", "stopped"):
            self._windows.disturb()  # it includes time after the last backward
            self.end_step(self.stepping.last())
        self.stop()
        self.compiling.leave()
        self.recording.close()
        try:
            self._deliver(last=True)
            self._journal.flush(self.clock())
        except Exception as error:
            self.recording.fault("steps", error)
        taken = self.index + self.steps_alone
        return self._write_capture(ended, why, steps_taken=taken if complete else None)

    def note_shortage(self) -> None:
        """Note that memory ran out, if the program died of that."""
        self.recording.note_shortage(*self._where()[:2], self.roots.alive())

    def stop(self) -> None:
        """Record nothing more."""
        self.off = self.gate.closed = self.detailed = True
        self.pauses.stop()

    def wake(self) -> None:
        """Record again: what looked like inference was an evaluation before training."""
        self.off = self.gate.closed = False
        self.timeline.unwind()
        self.timeline.resume()

    def _merge_into_first(self) -> None:
        """Join all steps so far into the first step; the step in progress is the second."""
        whole = self._drafts.whole
        if whole is not None:
            first = self._restart(whole, End.PLAIN, whole.start_ns)
            self._drafts.add(first, True)
            self._windows.step_done(0, self.timeline.start_ns, first.dur_ns, first.compile_ns > 0)
            self.index = 1

    def _restart(self, draft: Draft, end: End, start: int) -> Draft:
        if end is End.MERGE:
            draft = self._drafts.merged(draft)
        self._drafts.again()
        self._journal.again()
        self.pauses.forget()
        if self._marks is not None:
            self._marks.forget()
        if self.recording.tracing.running:
            self.recording.trace_ends(keep=False)
            self._listen_to_device()
        self._windows.again(0, start)
        self._account = ThreadAccount(self.clock)
        draft.index, draft.window = 0, "settle"
        return draft

    def _enter_window(self, order: str) -> None:
        recording = self.recording
        self.system.end()
        self._account.end()
        recording.stop_sampling()  # our own work here must not be sampled
        self.pauses.stop()  # a thread of ours would appear in the trace
        if order == "alone":
            self._look_for_holders(at_last=True)
        self._holders.forget()
        if order == "light":
            recording.stop_memory_history()
        elif order == "trace":
            if recording.tracing.blocked():
                recording.miss(PROFILES_ITSELF, "profiles-itself")
                self._windows.no_trace()
            elif recording.trace_begins(self._cuda is not None):
                self.timeline.mark = None  # our events would appear in the trace
            else:
                self._windows.no_trace()
        elif order == "untrace":
            recording.trace_ends()
            self._listen_to_device()
        elif order == "alone" and not self._settings.stop_after:
            self._leave_alone()
        if not self.off:
            self._write_capture("running", "")
            recording.sample(self.loaders.batches_made_here)
            if order in ("light", "untrace"):
                self.system.begin()
                self.pauses.start()
            self._account.begin("traced" if recording.tracing.running else "light")

    def _leave_alone(self) -> None:
        """End the recording after the last window; the program runs on without us."""
        self._deliver(last=True)
        self._journal.flush(self.clock())
        self.recording.close()
        self.stop()
        self.compiling.leave()
        self._write_capture("running", "")
        # Inference may have been an evaluation before training: the optimizer's hooks stay on.
        if self.stepping.mode != "call":
            live.listener = None
            self.detach(self.compiling.seen, self.recording.tracing.names_modules, True)

    def _deliver(self, last: bool = False) -> None:
        """Hand over the steps that the device has completed. With `last`, wait for the device
        first."""
        if self._marks is not None:
            if last:
                self._marks.wait()
            for index, total, phases in self._marks.passed():
                self._drafts.timed(index, total, phases)
                self._journal.add(self._drafts.until(index))
        if last or self._marks is None:
            self._journal.add(self._drafts.rest())

    def _listen_to_device(self) -> None:
        self.timeline.mark = self._marks.mark if self._marks is not None else None

    def _write_capture(self, ended: Status, why: str, steps_taken: int | None = None) -> bool:
        now = self.clock()
        seen = {
            "stepping": self.stepping.mode,
            "steps": self.index,
            "steps_taken": steps_taken,
            "windows": self._windows.all(now),
            "modules": self.roots.all(self.stepping.trains),
            "optimizers": self.optimizers.all(self.stepping.anchor.optimizer_id),
            "loaders": self.loaders.all(),
            "loaders_made": self.loaders.lines_made,
            "children": self.children.all(),
            "pauses": self.pauses.seen(),
            "system_share": self.system.share,
            "light_time": self._account.of("light"),
            "traced_time": self._account.of("traced"),
            "ended_ns": now if ended != "running" else 0,
            "held": self._holders.found,
            "memory_at_end": self._readings.last(self._cuda) if ended != "running" else None,
        }
        return self._journal.capture(self.recording.capture(seen, self._cuda, ended, why))

    def _in_progress(self) -> tuple[int, int, str, int | None]:
        """Return the index of the step in progress, when it began, its phase ("" if it is only
        timed), and the thread that trains. Another thread calls this."""
        try:
            phase = phase_name(self.timeline.phase, self.stepping.trains) if self.detailed else ""
        except IndexError:  # a phase ended between two reads
            phase = ""
        return self.index, self.timeline.start_ns, phase, self.thread

    def _stock(self) -> tuple[Stock, ...]:
        return stock(self._torch, self.roots.alive(), self.optimizers.alive())

    def _where(self) -> tuple[int, str, int | None]:
        """Return the step in progress, its phase ("" if nothing is recorded any more), and the
        thread that trains."""
        phase = "" if self.off else phase_name(self.timeline.phase, self.stepping.trains)
        return self.index + self.steps_alone, phase, self.thread
