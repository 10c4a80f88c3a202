"""Where the host's time goes: exclusive nanoseconds by phase, kept on a stack.

Some programs run forward and backward inside `optimizer.step(closure)`: each moment belongs to the
innermost phase. Under all phases lies `other`, or `transfer` between a batch handed out and the
first forward after it. The wait for a batch that an evaluation then consumes is evaluation.
"""

from collections.abc import Callable, Sequence

from ridgeline.records.run import Phase

PHASES: tuple[Phase, ...] = (
    "input", "transfer", "forward", "backward", "optimizer", "evaluation", "other",
)  # fmt: skip
INPUT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, OTHER = range(len(PHASES))
QUIET, QUIET_INPUT = len(PHASES), len(PHASES) + 1
"""Calls that do not train, and the wait for what they were given: evaluation, or, in a program that
never trains, forward and input."""
_KEPT = len(PHASES) + 2

Mark = Callable[[int], None]
"""Told the phase that begins now, for a device's own clock."""


class Timeline:
    """The stack, and what this step has collected."""

    __slots__ = ("_base", "_clock", "_last", "_pending", "_spent", "_stack", "mark", "start_ns")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stack: list[int] = []
        self._base = OTHER
        self._spent = [0] * _KEPT
        self._pending = 0
        """Input waited for and not yet consumed by a forward."""
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
        """A step of an optimizer that raised never said that it ended."""
        self._charge(self._clock())
        self._stack.clear()

    def nothing_was_quiet(self) -> None:
        """What did not look like training was."""
        spent = self._spent
        spent[FORWARD] += spent[QUIET]
        spent[INPUT] += spent[QUIET_INPUT]
        spent[QUIET] = spent[QUIET_INPUT] = 0

    def cut(self) -> tuple[int, int, list[int]]:
        """Ends the step: its start, its length, its phases as kept here (see `folded`)."""
        now = self._clock()
        self._charge(now)
        spent, start = self._spent, self.start_ns
        spent[INPUT] += self._pending
        self._spent = [0] * _KEPT
        self._pending = 0
        self.start_ns = now
        return start, now - start, spent

    def restart(self, now: int) -> int:
        """The step ends and the next begins, with nothing known but that: how long it was."""
        dur = now - self.start_ns
        self._stack.clear()
        self._base = OTHER
        self._pending = 0
        self.start_ns = self._last = now
        return dur

    def resume(self) -> None:
        """What passed since the cut was ours, not the program's."""
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
    """The phases by name, what was quiet counted where it belongs."""
    found = list(spent[: len(PHASES)])
    if trains:
        found[EVALUATION] += spent[QUIET] + spent[QUIET_INPUT]
    else:
        found[FORWARD] += spent[QUIET]
        found[INPUT] += spent[QUIET_INPUT]
    return {PHASES[phase]: ns for phase, ns in enumerate(found) if ns}


def named(phase: int, trains: bool) -> Phase:
    if phase == QUIET:
        return "evaluation" if trains else "forward"
    return PHASES[phase]
