"""The time of a step: by phase on the host and on the device, and what the kernel accounts for it.

`Timeline` keeps exclusive nanoseconds by phase, on a stack.

Some programs run forward and backward inside `optimizer.step(closure)`: each moment belongs to the
innermost phase. Under all phases lies `other`, or `transfer` between a batch handed out and the
first forward after it. The wait for a batch that an evaluation then consumes is evaluation.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any, Literal

from ridgeline.records.run import Phase, ThreadTime

PHASES: tuple[Phase, ...] = (
    "input", "transfer", "forward", "backward", "optimizer", "evaluation", "other",
)  # fmt: skip
INPUT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, OTHER = range(len(PHASES))
QUIET, QUIET_INPUT = len(PHASES), len(PHASES) + 1
"""Calls that do not train, and the wait for their batches. They are evaluation or, in a program
that never trains, forward and input."""
_PHASE_SLOTS = len(PHASES) + 2

Mark = Callable[[int], None]
"""Called with the phase that begins now, to mark it on the device's own clock."""


class Timeline:
    """The stack of phases, and the times of the step in progress."""

    __slots__ = ("_base", "_clock", "_last", "_pending", "_spent", "_stack", "mark", "start_ns")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stack: list[int] = []
        self._base = OTHER
        self._spent = [0] * _PHASE_SLOTS
        self._pending = 0
        """Time spent waiting for batches that no forward has used yet."""
        self.mark: Mark | None = None
        self.start_ns = self._last = clock()

    @property
    def phase(self) -> int:
        return self._stack[-1] if self._stack else self._base

    def enter(self, phase: int) -> None:
        self._charge(self._clock())
        if phase != INPUT:
            if self._pending:
                self._spent[QUIET_INPUT if phase == QUIET else INPUT] += self._pending
                self._pending = 0
            self._base = OTHER
        self._stack.append(phase)
        if self.mark is not None:
            self.mark(phase)

    def leave(self) -> None:
        self._charge(self._clock())
        stack = self._stack
        if stack and stack.pop() == INPUT and not stack:
            self._base = TRANSFER
        if self.mark is not None:
            self.mark(self.phase)

    def unwind(self) -> None:
        """Leave all phases. An optimizer step that raised does not leave its phase itself."""
        self._charge(self._clock())
        self._stack.clear()

    def count_quiet_as_training(self) -> None:
        """Count the time of calls that did not look like training as training."""
        spent = self._spent
        spent[FORWARD] += spent[QUIET]
        spent[INPUT] += spent[QUIET_INPUT]
        spent[QUIET] = spent[QUIET_INPUT] = 0

    def cut(self) -> tuple[int, int, list[int]]:
        """End the step. Return its start, its length and its times by phase; `folded` names
        these."""
        now = self._clock()
        self._charge(now)
        spent, start = self._spent, self.start_ns
        spent[INPUT] += self._pending
        self._spent = [0] * _PHASE_SLOTS
        self._pending = 0
        self.start_ns = now
        return start, now - start, spent

    def restart(self, now: int) -> int:
        """End a step that is only timed, and return its length."""
        dur = now - self.start_ns
        self._stack.clear()
        self._base = OTHER
        self._pending = 0
        self.start_ns = self._last = now
        return dur

    def resume(self) -> None:
        """Begin the step only now, because the time since the last step was spent on our own
        work."""
        self.start_ns = self._last = self._clock()

    def _charge(self, now: int) -> None:
        stack = self._stack
        phase = stack[-1] if stack else self._base
        if phase == INPUT:
            self._pending += now - self._last
        else:
            self._spent[phase] += now - self._last
        self._last = now


def folded(spent: Sequence[int], trains: bool) -> dict[Phase, int]:
    """Return the times by name of phase. Calls that do not train are evaluation if the program
    trains; else they are forward."""
    times = list(spent[: len(PHASES)])
    if trains:
        times[EVALUATION] += spent[QUIET] + spent[QUIET_INPUT]
    else:
        times[FORWARD] += spent[QUIET]
        times[INPUT] += spent[QUIET_INPUT]
    return {PHASES[phase]: ns for phase, ns in enumerate(times) if ns}


def phase_name(phase: int, trains: bool) -> Phase:
    if phase == QUIET:
        return "evaluation" if trains else "forward"
    return PHASES[phase]


MAX_PENDING_STEPS = 256
"""Number of steps that the host may be ahead of the device; beyond that the oldest step loses its
device time."""
MAX_MARKS_PER_STEP = 2000
"""Number of marks in one step. In a program that calls its model 10,000 times a step, the later
phases of the step are not marked."""

Marks = list[tuple[int, Any]]


class DeviceMarks:
    """Marks phases by CUDA events, and reads the times between them once the device is past
    them."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._free: list[Any] = []
        self._marks: Marks = []
        self._waiting: deque[tuple[int, Marks]] = deque()

    def mark(self, phase: int) -> None:
        if len(self._marks) < MAX_MARKS_PER_STEP and not self._cuda.is_current_stream_capturing():
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))

    def cut(self, index: int, phase: int, trains: bool) -> None:
        """End the step `index` here, in `phase`, and begin the next."""
        marks = _resolved(self._marks, trains)
        self._marks = []
        self.mark(phase)
        if self._marks and marks:
            self._waiting.append((index, [*marks, self._marks[0]]))
        if len(self._waiting) > MAX_PENDING_STEPS:
            self._waiting.popleft()

    def passed(self) -> list[tuple[int, int, dict[int, int]]]:
        """Return the steps that the device has completed: index, length and times by phase, in
        ns."""
        done = []
        while self._waiting and self._waiting[0][1][-1][1].query():
            index, marks = self._waiting.popleft()
            phases: dict[int, int] = {}
            total = 0
            for (phase, begin), (_, end) in itertools.pairwise(marks):
                ns = int(begin.elapsed_time(end) * 1e6)
                phases[phase] = phases.get(phase, 0) + ns
                total += ns
            self._free.extend(event for _, event in marks[:-1])
            done.append((index, total, phases))
        return done

    def wait(self) -> None:
        """Wait until the device has completed the last step."""
        if self._waiting:
            self._waiting[-1][1][-1][1].synchronize()

    def forget(self) -> None:
        self._waiting.clear()
        self._marks = []


def _resolved(marks: Marks, trains: bool) -> Marks:
    """Replace the marks of calls that do not train. In a program that trains they and the wait
    before them are evaluation; else they are forward."""
    resolved: Marks = []
    since = 0
    for phase, event in marks:
        if phase == QUIET and trains:
            resolved[since:] = [(EVALUATION if p == INPUT else p, e) for p, e in resolved[since:]]
            phase = EVALUATION
        elif phase == QUIET:
            phase = FORWARD
        resolved.append((phase, event))
        if phase not in (INPUT, TRANSFER):
            since = len(resolved)
    return resolved


def named_phases(phases: dict[int, int]) -> dict[Any, int]:
    return {PHASES[phase]: ns for phase, ns in phases.items() if ns}


class SystemTime:
    """Time that the kernel worked for this process, all threads included but not its workers."""

    def __init__(self, clock: Callable[[], int], spent: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._spent = spent or _system_s
        self._began: tuple[int, float] | None = None
        self._passed_s = self._worked_s = 0.0

    @property
    def share(self) -> float | None:
        """Share of the time in the windows so far. It exceeds 1 if the kernel worked for several
        threads at once."""
        return self._worked_s / self._passed_s if self._passed_s else None

    def begin(self, anew: bool = False) -> None:
        """Begin a window. With `anew`, earlier windows do not count."""
        if anew:
            self._passed_s = self._worked_s = 0.0
        self._began = self._clock(), self._spent()

    def end(self) -> None:
        """End the window, if one has begun."""
        began, self._began = self._began, None
        if began is not None:
            self._passed_s += (self._clock() - began[0]) / 1e9
            self._worked_s += self._spent() - began[1]


def _system_s() -> float:
    with suppress(ImportError):  # only Unix has this module
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_stime
    return 0.0


WindowKind = Literal["light", "traced"]
_ACCOUNT = "/proc/thread-self/schedstat"


class ThreadAccount:
    """Adds up the kernel's account of a thread over all windows of a kind. A window that ends on
    another thread than it began on does not count."""

    def __init__(
        self,
        clock: Callable[[], int],
        read: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._clock = clock
        self._read = read or read_account
        self._began: tuple[WindowKind, int, int, tuple[int, int]] | None = None
        self._sums: dict[WindowKind, ThreadTime] = {}

    def begin(self, kind: WindowKind) -> None:
        account = self._read()
        self._began = None if account is None else (kind, get_ident(), self._clock(), account)

    def end(self) -> None:
        """Add the window that has begun to the sums; do nothing if none has begun."""
        began, self._began = self._began, None
        if began is None or began[1] != get_ident() or (account := self._read()) is None:
            return
        kind, _, start, before = began
        sum_so_far = self._sums.get(kind, ThreadTime())
        self._sums[kind] = ThreadTime(
            wall_ns=sum_so_far.wall_ns + self._clock() - start,
            processor_ns=sum_so_far.processor_ns + account[0] - before[0],
            queued_ns=sum_so_far.queued_ns + account[1] - before[1],
        )

    def of(self, kind: WindowKind) -> ThreadTime | None:
        """Return the sums for a kind of window. Return None if no such window has ended, or if the
        kernel keeps no account."""
        return self._sums.get(kind)


def read_queued(torch: Any) -> int | None:
    """Return how long the calling thread has waited for a processor so far, in nanoseconds. Return
    None if the kernel keeps no account, or if the program's own threads crowd its processors: then
    they wait for each other, which is the program's own time."""
    allowed = getattr(os, "sched_getaffinity", None)
    processors = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    account = read_account() if torch.get_num_threads() <= processors else None
    return account[1] if account is not None else None


def read_account() -> tuple[int, int] | None:
    """Return the calling thread's nanoseconds on a processor and in the run queue; None if the
    kernel keeps no account."""
    try:
        file = os.open(_ACCOUNT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        processor, queued = os.read(file, 100).split()[:2]
        return int(processor), int(queued)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
