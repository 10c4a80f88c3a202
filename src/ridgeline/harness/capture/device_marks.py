"""The device's own clock: an event on the stream wherever a phase begins.

Between two events lies what the device did, or waited for, in that phase: under `input` the time it
had nothing left to do. Events are read when they have passed, never waited for. Recording one costs
the host 2 to 4 µs.
"""

import itertools
from collections import deque
from typing import Any

from ridgeline.harness.capture.timeline import EVALUATION, FORWARD, INPUT, PHASES, QUIET, TRANSFER

MOST_PENDING = 256
"""Steps whose events have not passed yet; a host this far ahead loses the oldest."""
MOST_MARKS = 2000
"""In one step: a policy that calls its model 10,000 times a step is timed by its ends."""

Marks = list[tuple[int, Any]]


class DeviceMarks:
    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._free: list[Any] = []
        self._marks: Marks = []
        self._waiting: deque[tuple[int, Marks]] = deque()

    def mark(self, phase: int) -> None:
        if len(self._marks) < MOST_MARKS and not self._cuda.is_current_stream_capturing():
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))

    def cut(self, index: int, phase: int, trains: bool) -> None:
        """The step `index` ends here, in `phase`; the next begins."""
        marks = _told(self._marks, trains)
        self._marks = []
        self.mark(phase)
        if self._marks and marks:
            self._waiting.append((index, [*marks, self._marks[0]]))
        if len(self._waiting) > MOST_PENDING:
            self._waiting.popleft()

    def passed(self) -> list[tuple[int, int, dict[int, int]]]:
        """Steps the device is done with: index, length, phases; in nanoseconds."""
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
        """Until the device is past the last step: a pause of ours, or the program's end."""
        if self._waiting:
            self._waiting[-1][1][-1][1].synchronize()

    def forget(self) -> None:
        self._waiting.clear()
        self._marks = []


def _told(marks: Marks, trains: bool) -> Marks:
    """What was quiet is evaluation, with the wait before it; or, where nothing trains, forward."""
    told: Marks = []
    since = 0
    for phase, event in marks:
        if phase == QUIET and trains:
            told[since:] = [(EVALUATION if p == INPUT else p, e) for p, e in told[since:]]
            phase = EVALUATION
        elif phase == QUIET:
            phase = FORWARD
        told.append((phase, event))
        if phase not in (INPUT, TRANSFER):
            since = len(told)
    return told


def named(phases: dict[int, int]) -> dict[Any, int]:
    return {PHASES[phase]: ns for phase, ns in phases.items() if ns}
