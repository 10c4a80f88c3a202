"""A run in progress: what each seam tells it becomes steps, and each step's end turns the windows.

Everything here runs inside the user's program, between its own lines. Each entry point is guarded:
a fault of ours is written down, the seams go quiet, and the program goes on.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from ridgeline.capture import marks
from ridgeline.capture.batches import NOTHING, Amount, amount
from ridgeline.capture.compiling import Compiling
from ridgeline.capture.device_marks import DeviceMarks
from ridgeline.capture.drafts import Counts, Draft, Drafts
from ridgeline.capture.instrument import Gate
from ridgeline.capture.journal import Journal
from ridgeline.capture.losses import Losses
from ridgeline.capture.recording import Recording
from ridgeline.capture.seen import Loaders, Optimizers, Root, Roots
from ridgeline.capture.stepping import End, Stepping
from ridgeline.capture.timeline import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    INPUT,
    OPTIMIZER,
    PHASES,
    Timeline,
)
from ridgeline.capture.windows import Windows
from ridgeline.records.run import Settings, Status

MOST_FAULTS = 5
"""After so many faults of ours the seams go quiet for good."""


class StopAfter(SystemExit):
    """Raised where the last step that was asked for ends: the program ends as by sys.exit(0)."""


class Session:
    """One for the process; the seams call its methods."""

    def __init__(
        self, torch: Any, directory: Path, settings: Settings, rank: int, world: int
    ) -> None:
        self.gate = Gate()
        self.detach: Callable[[bool], None] = lambda compiled: None
        """Takes the seams off; set by whoever put them on. `compiled`: only what is safe."""
        self._torch = torch
        self._settings = settings
        self._clock = perf_counter_ns
        self._timeline = Timeline(self._clock)
        self._stepping = Stepping()
        self._windows = Windows(settings, self._clock())
        self._journal = Journal(directory, rank)
        self._losses = Losses(torch)
        self._drafts = Drafts(self._losses)
        self._compiling = Compiling()
        self._roots = Roots(torch)
        self._optimizers = Optimizers()
        self._loaders = Loaders()
        self._recording = Recording(torch, self._journal, settings, self._where, world)
        self._counts = Counts()
        self._index = 0
        self._thread: int | None = None
        self._optimizer_depth = 0
        self._in_backward = False
        self._batch = NOTHING
        self._eval_trains = False
        self._eval_with_grad = False
        self._cuda: int | None = None
        self._marks: DeviceMarks | None = None
        self._off = False
        self._stopped = False
        self._faults = 0
        if settings.python:
            self._recording.workers_sample(directory)
        self._recording.memory.watch()

    # Seams. Each pair returns and takes a token; None: not ours to note.

    def input_begins(self, iterator: Any) -> Any:
        if self._off or not self._mine():
            return None
        try:
            if self._optimizer_depth:  # a step that raised never said that it ended
                self._optimizer_depth = 0
                self._timeline.unwind()
            end = self._stepping.input_begins()
            if end is not End.NO:
                self._end_step(end)
            self._timeline.enter(INPUT)
        except Exception as error:
            return self._broke("input", error)
        return iterator

    def input_seen(self, iterator: Any, batch: Any) -> Any:
        try:
            if not self._off and self._mine():
                self._loaders.handed_out(iterator)
                given = amount(self._torch, batch)
                have = self._batch
                self._batch = Amount(have.samples + given.samples, have.tokens + given.tokens)
        except Exception as error:
            self._broke("input", error)
        return batch

    def input_ends(self, token: Any) -> None:
        if token is not None and not self._off:
            self._timeline.leave()

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._off or not self._mine():
            return None
        try:
            self._compiling.watch()
            root = self._roots.of(module)
            grad = self._torch.is_grad_enabled()
            training = grad and (module.training or self._eval_trains)
            if training and not root.loss:
                end = self._stepping.training_forward_begins()
                if end is not End.NO:
                    self._end_step(end)
            self._note_call(root, id(module), training, grad, args, kwargs)
            infers = not self._stepping.trains
            self._timeline.enter(FORWARD if training or infers else EVALUATION)
            self.gate.closed = True
            return (root, id(module), training)
        except Exception as error:
            return self._broke("forward", error)

    def call_ends(self, token: Any) -> None:
        if token is None or self._off:
            return
        self.gate.closed = False
        try:
            self._timeline.leave()
            root, who, training = token
            if not root.loss:
                end = self._stepping.call_done(who, training)
                if end is not End.NO:
                    self._end_step(end)
        except Exception as error:
            self._broke("forward", error)
            return
        self._stop_if_due()

    def backward_begins(self, tensors: Any) -> Any:
        if self._off or not self._mine():
            return None
        try:
            if self._eval_with_grad and not self._counts.forwards:
                self._eval_trains = True  # a model fine-tuned in eval mode
            self._counts.backwards += 1
            self._counts.loss = self._loss(tensors)
            self._timeline.enter(BACKWARD)
            self._in_backward = self.gate.closed = True
        except Exception as error:
            return self._broke("backward", error)
        return True

    def backward_ends(self, token: Any) -> None:
        if token is None or self._off:
            return
        self._in_backward = self.gate.closed = False
        self._timeline.leave()
        self._stepping.backward_done()

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if self._off:
            self._wake()
        if self._off or not (self._in_backward or self._mine(trains=True)):
            return
        try:
            self._optimizer_depth += 1
            if self._optimizer_depth == 1:
                self._timeline.enter(OPTIMIZER)
        except Exception as error:
            self._broke("optimizer", error)

    def optimizer_ends(self, optimizer: Any, *rest: Any) -> None:
        if self._off or not (self._in_backward or self._mine()) or not self._optimizer_depth:
            return
        try:
            self._optimizer_depth -= 1
            if self._optimizer_depth:  # a subclass that calls its parent's step
                return
            self._timeline.leave()
            self._counts.optimizer_steps += 1
            self._optimizers.stepped(optimizer)
            end = self._stepping.optimizer_stepped(id(optimizer))
            if end is not End.NO:
                self._end_step(end)
        except Exception as error:
            self._broke("optimizer", error)
            return
        self._stop_if_due()

    def scaler_begins(self, scaler: Any, optimizer: Any) -> Any:
        if self._off or not self._mine(trains=True):
            return None
        self._recording.scaler = True
        return (optimizer, self._counts, self._counts.optimizer_steps, self._index)

    def scaler_ends(self, token: Any) -> None:
        """The scaler left the optimizer alone: the step ends all the same."""
        if token is None or self._off:
            return
        try:
            optimizer, counts, before, index = token
            if self._index == index and counts.optimizer_steps == before:
                counts.skipped = True
                end = self._stepping.optimizer_stepped(id(optimizer))
                if end is not End.NO:
                    self._end_step(end)
        except Exception as error:
            self._broke("scaler", error)
            return
        self._stop_if_due()

    def zero_grad_begins(self, optimizer: Any) -> Any:
        if self._off or not self._mine():
            return None
        self._timeline.enter(OPTIMIZER)
        return True

    def zero_grad_ends(self, token: Any) -> None:
        if token is not None and not self._off:
            self._timeline.leave()

    def profiler_begins(self, profiler: Any) -> Any:
        """The program starts a profiler of its own: ours makes room."""
        tracing = self._recording.tracing
        if tracing.running and not tracing.starting:
            self._recording.trace_ends(keep=False)
            self._recording.miss("no trace: the program profiles itself")
            self._windows.no_trace()
            self._timeline.mark = self._marks.mark if self._marks is not None else None
            self._timeline.resume()
        return None

    # What a program says itself.

    def said_step(self) -> None:
        if self._off:
            return
        try:
            self._end_step(self._stepping.said())
        except Exception as error:
            self._broke("ridgeline.step", error)
            return
        self._stop_if_due()

    def region_begins(self, name: str) -> Any:
        record = self._torch.profiler.record_function(name)
        record.__enter__()
        return (name, self._clock(), record)

    def region_ends(self, token: Any) -> None:
        name, began, record = token
        record.__exit__(None, None, None)
        regions = self._counts.regions
        regions[name] = regions.get(name, 0) + self._clock() - began

    # The end.

    def farewell(self, ended: Status, why: str) -> None:
        """The program is over: nothing of ours is left open, and everything known is written."""
        self._off = self.gate.closed = True
        self._compiling.leave()
        self._recording.close()
        try:
            self._deliver(last=True)
            self._journal.flush(self._clock())
        except Exception as error:
            self._recording.fault("steps", error)
        if self._stopped and ended == "finished":
            ended = "stopped"
        self._write_capture(ended, why)

    def forked(self) -> None:
        """In a child of the program: nothing is ours to note here."""
        self._off = self.gate.closed = True
        marks.listener = None
        if self._recording.tracing.running and sys.getprofile() is not None:
            sys.setprofile(None)  # the profiler's, which would go on collecting

    @property
    def compiled(self) -> bool:
        return self._compiling.seen

    # Inside.

    def _mine(self, trains: bool = False) -> bool:
        """Whether this is the thread that trains: the first seen, until another one steps."""
        here = get_ident()
        if self._thread == here:
            return True
        if self._thread is None or (trains and not self._stepping.trains):
            self._thread = here
            return True
        return False

    def _note_call(
        self, root: Root, who: int, training: bool, grad: bool, args: Any, kwargs: Any
    ) -> None:
        if training or not self._stepping.trains:
            counts = self._counts
            if not root.loss:
                counts.forwards += 1
                counts.call(who, amount(self._torch, (*args, *kwargs.values())))
            counts.batch(self._batch)
            root.calls += 1
            if root.calls == 1:
                self._first_call(root, args, kwargs)
        else:
            root.evaluation_calls += 1
            self._eval_with_grad = self._eval_with_grad or (grad and not root.loss)
        self._batch = NOTHING

    def _first_call(self, root: Root, args: Any, kwargs: Any) -> None:
        self._roots.describe(root, args, kwargs)
        if root.cuda_index is not None and self._marks is None:
            self._cuda = root.cuda_index
            self._marks = DeviceMarks(self._torch, root.cuda_index)
            self._timeline.mark = self._marks.mark
        for kind in ("cuda", "cpu"):
            if self._torch.is_autocast_enabled(kind):
                dtype = str(self._torch.get_autocast_dtype(kind)).removeprefix("torch.")
                self._recording.autocast.add(f"{kind} {dtype}")

    def _loss(self, tensors: Any) -> Any:
        if self._recording.tracing.running:
            return None  # a copy of ours would stand in the trace
        try:
            return self._losses.note(tensors)
        except Exception:
            return None  # a tensor of somebody's own kind

    def _end_step(self, end: End) -> None:
        compile_ns = self._compiling.take()
        start, dur, spent = self._timeline.cut()
        now = self._timeline.start_ns
        draft = Draft(self._index, start, dur, spent, self._windows.label, self._counts, compile_ns)
        self._counts = Counts()
        if end in (End.MERGE, End.DROP):
            draft = self._begin_again(draft, end, start)
        if self._journal.due(now):
            draft.memory = self._recording.device_memory(self._cuda)
        self._drafts.add(draft)
        if self._timeline.mark is not None and self._marks is not None:
            self._marks.cut(draft.index, self._timeline.phase)
        order = self._windows.step_done(draft.index, now, dur, compile_ns > 0)
        self._index = draft.index + 1
        if order:
            self._turn(order)
        elif self._recording.tracing.running:
            self._recording.tracing.step()
        if order or self._journal.due(now):
            self._deliver()
            self._journal.flush(now)
        if order:
            self._timeline.resume()

    def _begin_again(self, draft: Draft, end: End, start: int) -> Draft:
        if end is End.MERGE:
            draft = self._drafts.merged(draft)
        self._drafts.again()
        self._journal.again()
        if self._marks is not None:
            self._marks.forget()
        if self._recording.tracing.running:
            self._recording.trace_ends(keep=False)
            self._timeline.mark = self._marks.mark if self._marks is not None else None
        self._windows.again(0, start)
        draft.index, draft.window = 0, "settle"
        return draft

    def _turn(self, order: str) -> None:
        if order == "light":
            self._recording.settled()
        elif order == "trace":
            if self._recording.tracing.blocked():
                self._recording.miss("no trace: the program profiles itself")
                self._windows.no_trace()
            elif not self._recording.trace_begins(self._cuda is not None):
                self._windows.no_trace()
            if self._recording.tracing.running:
                self._timeline.mark = None  # nor do our events
        elif order == "untrace":
            self._recording.trace_ends()
            self._timeline.mark = self._marks.mark if self._marks is not None else None
        elif order == "alone" and not self._settings.stop_after:
            self._alone()
        if not self._off:
            self._write_capture("running", "")

    def _alone(self) -> None:
        """The windows are over: the program runs on without us."""
        self._deliver(last=True)
        self._journal.flush(self._clock())
        self._recording.close()
        self._off = self.gate.closed = True
        self._compiling.leave()
        self._write_capture("running", "")
        # Inference may have been an evaluation before training: the optimizer's hooks stay on.
        if self._stepping.mode != "call":
            marks.listener = None
            self.detach(self._compiling.seen)

    def _wake(self) -> None:
        if self._stepping.mode == "call" and self._faults < MOST_FAULTS and not self._stopped:
            self._off = self.gate.closed = False
            self._timeline.unwind()
            self._timeline.resume()

    def _deliver(self, last: bool = False) -> None:
        """Hand over the steps the device is done with; the `last` time it is waited for."""
        if self._marks is not None:
            if last:
                self._marks.wait()
            for index, total, phases in self._marks.passed():
                self._drafts.timed(index, total, phases)
                self._journal.add(self._drafts.until(index))
        if last or self._marks is None:
            self._journal.add(self._drafts.rest())

    def _write_capture(self, ended: Status, why: str) -> None:
        now = self._clock()
        seen = {
            "stepping": self._stepping.mode,
            "steps": self._index,
            "windows": self._windows.all(now),
            "modules": self._roots.all(),
            "optimizers": self._optimizers.all(self._stepping.anchor.who),
            "loaders": self._loaders.all(),
            "ended_ns": now if ended != "running" else 0,
        }
        self._journal.capture(self._recording.capture(seen, self._cuda, ended, why))

    def _where(self) -> tuple[int, str, int | None]:
        """The step, the phase ("" when nobody looks any more), and the thread that trains."""
        return self._index, "" if self._off else PHASES[self._timeline.phase], self._thread

    def _stop_if_due(self) -> None:
        if self._settings.stop_after and self._index >= self._settings.stop_after:
            self._stopped = True
            raise StopAfter(0)

    def _broke(self, where: str, error: Exception) -> None:
        """A fault of ours: the program must not notice."""
        self._recording.fault(where, error)
        self._faults += 1
        self.gate.closed = False
        if self._faults >= MOST_FAULTS:
            self._off = self.gate.closed = True
