"""A race: sets of fixes timed against each other in one process of the program, in interleaved
blocks. If the process ends, it is started again, without the set under which it failed."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec
from msgspec import Struct

from ridgeline.fixes.fix import compiles_first
from ridgeline.records.facts import Ratio, Reason, Verdict, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.race import RaceBlock, RaceMember, RaceMessage, RaceRequest
from ridgeline.records.trial import Applied, Asked, NotApplied, TrialFailure
from ridgeline.statistics.paired import paired_ratio

MIN_GAIN = 1.02
"""A smaller gain does not matter."""
LEVEL = 0.01
"""Level of the intervals: a heat is looked at several times, and many sets are in it."""
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Rounds before the first look, and rounds after which a set that is undecided stays so."""
MIN_JUDGED_ROUNDS = 3
"""With fewer rounds, a set has no ratio: the interval of two reaches from nothing to a thousand."""
MIN_HOPEFUL_SHARE = 0.25
"""A set that cannot gain this part of what another surely gains does not prolong a heat."""
CHUNK_S = 1.5
"""Time between two looks, if the steps are short enough for more than `FIRST_ROUNDS` in it."""
SHORT_BLOCK_STEPS = 2
MIN_BLOCK_S = 0.004
"""Blocks of very short steps have as many of them as fit in this time."""
LONG_STEP_S = 0.1
"""Blocks of longer steps have one each."""
MAX_SKIPPED_STEP_S = 0.5
"""Steps are not skipped after a switch if they take longer: what the switch costs is a small part
of them."""
SET_UP_STEPS, LONG_SET_UP_STEPS = 3, 1
"""Steps that a set takes before it is timed, and the same for such long steps."""
MAX_BLOCK_STEPS = 16
MAX_STARTS_WITHOUT_PROGRESS = 2
SET_UP_LIMIT_S, COMPILING_LIMIT_S = 30.0, 240.0
"""A candidate that is not ready after so long is taken to hang; one that compiles may take
longer."""
MIN_SET_UP_LIMIT_S, SLOW_START_FACTOR = 10.0, 3.0
"""In a program that starts fast, a candidate is taken to hang after so many times as long as the
program takes to start, but not before these seconds: three numbers of workers that hang would take
the time of the race."""
SLOW_FACTOR = 8.0
"""A heat may take so many times as long as its steps should, before it is taken to hang."""
MIN_OWN_END_STEPS = 60
"""The diagnosis has run the program for so many steps, or to an end without an error. A process
that fails earlier than that fails because of a candidate."""
SAME_STEP = 24
"""Two processes that failed within so many steps of each other failed at the same step: a set takes
no more steps before it is timed."""
MIN_PATIENCE_S, MAX_PATIENCE_S = 5.0, 20.0
"""Time that a process has to finish its round once the time is over: as long as starting it again
takes, within these bounds."""
SetKey = bytes


def set_key(fixes: Sequence[Asked]) -> SetKey:
    return msgspec.json.encode(fixes, order="sorted")


class Standing(Struct, kw_only=True):
    """Says how a set of fixes did in a heat."""

    fixes: tuple[Asked, ...]
    verdict: Verdict = "UNDECIDED"
    ratio: Ratio | None = None
    """Against the heat's base."""
    failure: Reason | None = None
    """Why it could not be timed."""
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    step_ms: float = 0.0
    base_ms: float = 0.0
    """A step of the heat's base."""
    input_share: float = 0.0
    peak_bytes: int = 0
    compile_s: float = 0.0

    @property
    def is_applied(self) -> bool:
        """Whether each of its fixes found something to change."""
        applied = {one.fix for one in self.applied}
        return all(one.fix in applied for one in self.fixes)


class Heat(Struct, frozen=True):
    """The base of a heat, and how the others did against it."""

    base: Standing
    others: tuple[Standing, ...]
    control: Ratio | None
    """The base against itself."""
    rounds: int


class CannotRace(Exception):
    """The program cannot be raced; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(reason)


class _Entry:
    """A set in a heat, with what was measured of it."""

    def __init__(self, fixes: tuple[Asked, ...]) -> None:
        self.standing = Standing(fixes=fixes)
        self.blocks: dict[int, RaceBlock] = {}
        """The blocks by round. Rounds are counted over all requests of the heat."""
        self.is_set_up = False
        """Whether the program has run under it, so that it is known what was applied."""
        self.is_open = True


class RacedProgram(Protocol):
    """A running program whose steps are raced."""

    compiled: Path
    """The folder of what the race compiles."""

    @property
    def is_running(self) -> bool: ...

    def ask(self, request: RaceRequest) -> int:
        """Put a request before the program. Return its number."""

    def messages(self, deadline_s: float) -> Iterator[RaceMessage | None]:
        """Yield answers as they come, and None while none comes. End when the program has ended
        and all is read, or at `deadline_s` of the monotonic clock."""

    def failure(self) -> Reason | None:
        """Return why the program ended; None if it ended by itself without an error."""

    def end(self, patience_s: float = 2.0) -> None:
        """End the program and whatever it has started."""


class Race:
    def __init__(
        self, start: Callable[[], RacedProgram], left_s: Callable[[], float],
        whole_left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:  # fmt: skip
        """`start` starts the program; `left_s` returns the time that the race has left, and
        `whole_left_s` the time that the whole call has left."""
        self._start = start
        self._left_s = left_s
        self._whole_left_s = whole_left_s
        self._process: RacedProgram | None = None
        self._failed: dict[SetKey, Reason] = {}
        self._ends: list[_BadEnd] = []
        self._last_step = 0
        """How many steps the process had taken when it was last heard of."""
        self._starts_without_progress = 0
        self._round = 0
        self._is_ready = False
        """Whether the program takes steady steps."""
        self.measured: set[SetKey] = set()
        """The sets that were timed at least once."""
        self.step_s = 0.0
        """The latest time of a step of the base."""
        self.slowdown = 1.0
        """How many times as long as on an idle machine a step takes, because its thread waits for
        a processor."""
        self.starts = 0
        self.start_s = 0.0
        """What the program took until it could be raced."""
        self.compile_s = 0.0
        """The longest time that a set has compiled."""
        self._began_s = 0.0
        self.stopped: CannotRace | KeyboardInterrupt | None = None
        """What ended a heat that had measured something. The next heat raises it."""
        self.compiled: Path | None = None
        """The folder of what was compiled; None before a process was started."""

    def close(self) -> None:
        if self._process is not None:
            self._process.end()

    def heat(
        self, base: tuple[Asked, ...], sets: Sequence[tuple[Asked, ...]], limit_s: float
    ) -> Heat:
        """Time the sets against the base until each is decided, or until `limit_s` is over, but at
        least for one round while the race has time. A set that is decided leaves, except the
        winners. Raise CannotRace if the base cannot be timed. What ends a heat that has measured
        something, is raised by the next one."""
        if self.stopped is not None:
            raise self.stopped
        known = {set_key(base)}
        fresh = [known.add(key) or fixes for fixes in sets if (key := set_key(fixes)) not in known]  # type: ignore[func-returns-value]
        entries = [_Entry(base), _Entry(base), *map(_Entry, fresh)]
        for entry in entries[2:]:
            entry.standing.failure = self._failed.get(set_key(entry.standing.fixes))
        try:
            self._run_rounds(entries, limit_s)
        except (CannotRace, KeyboardInterrupt) as stopped:
            self._look(entries)
            if all(entry.standing.ratio is None for entry in entries[2:]):
                raise
            self.stopped = stopped
        control, _ = _ratio(entries[0], entries[1])
        others = tuple(entry.standing for entry in entries[2:])
        return Heat(entries[0].standing, others, control, len(entries[0].blocks))

    def _run_rounds(self, entries: list[_Entry], limit_s: float) -> None:
        """Run rounds of these sets, and judge them after each few."""
        rounds = 0
        deadline_s = math.inf
        while rounds < MAX_ROUNDS and time.monotonic() < deadline_s:
            able = [one for one in entries[2:] if one.is_open and one.standing.failure is None]
            if not _worth_deciding(able):
                return
            began_s = time.monotonic()
            self._make_ready()
            now = time.monotonic()  # what starting took is not the time of this heat
            first = math.isinf(deadline_s)
            deadline_s = now + limit_s if first else deadline_s + now - began_s
            last_s = now + self._left_s()
            deadline_s = min(deadline_s, last_s)
            if now >= deadline_s:
                return
            racing = [*entries[:2], *able]
            chunk = self._chunk(len(racing), rounds)
            rounds += self._measure(racing, chunk, deadline_s, deadline_s if rounds else last_s)
            self._look(entries)

    def _chunk(self, members: int, rounds: int) -> int:
        """Return how many rounds to run before the next look."""
        if not rounds:
            return FIRST_ROUNDS
        round_s = members * (self._block_steps() + self._skipped_steps()) * max(self.step_s, 1e-4)
        return max(FIRST_ROUNDS, min(round(CHUNK_S / round_s), MAX_ROUNDS - rounds))

    def _block_steps(self) -> int:
        if not self.step_s:
            return SHORT_BLOCK_STEPS
        if self.step_s > LONG_STEP_S:
            return 1
        wanted = math.ceil(MIN_BLOCK_S / self.step_s)
        return max(SHORT_BLOCK_STEPS, min(wanted, MAX_BLOCK_STEPS))

    def _skipped_steps(self) -> int:
        return 0 if self.step_s > MAX_SKIPPED_STEP_S else 1

    def _make_ready(self) -> None:
        """Wait until the program takes steady steps, and start it if it does not run."""
        process = self._running()
        if self._is_ready:
            return
        for message in process.messages(time.monotonic() + self._left_s()):
            if message is None:
                continue
            if message.fault:
                raise CannotRace(because(SearchCode.RACE_FAULT, error=message.fault))
            if message.ready:
                self._is_ready = True
                self.start_s = time.monotonic() - self._began_s
                self.step_s = self.step_s or message.step_ns / 1e9
                return
        failure = None if process.is_running else process.failure()
        if failure is not None:
            raise CannotRace(failure)

    def _measure(
        self, racing: list[_Entry], rounds: int, deadline_s: float, last_s: float
    ) -> int:  # fmt: skip
        """Run so many rounds of these sets until `deadline_s`, but one round at least until
        `last_s`. Return how many were complete."""
        request = RaceRequest(
            number=0, sets=tuple(entry.standing.fixes for entry in racing), rounds=rounds,
            block_steps=self._block_steps(), skipped_steps=self._skipped_steps(),
            set_up_steps=SET_UP_STEPS if self._skipped_steps() else LONG_SET_UP_STEPS,
        )  # fmt: skip
        asking = _Asking(self._round, deadline_s, last_s)
        self._round += rounds
        process = self._running()
        if not self._is_ready:
            return 0
        asking.number = process.ask(request)
        after_s = max(self._whole_left_s() - (last_s - time.monotonic()), 0.0)
        patience_s = min(max(self.start_s, MIN_PATIENCE_S), MAX_PATIENCE_S, after_s)
        for message in process.messages(last_s + patience_s):
            if message is None:
                if self._is_overdue(process, asking, racing, patience_s):
                    break
                continue
            asking.heard_s = time.monotonic()
            if message.fault:
                raise CannotRace(because(SearchCode.RACE_FAULT, error=message.fault))
            self._note(message, asking, racing)
            if message.measured and message.measured >= asking.number:
                return asking.complete
        if not process.is_running:
            self._note_end(process, asking, racing)
        process.end(0.0)
        self._process = None
        return asking.complete

    def _running(self) -> RacedProgram:
        """Return the process of the race, and start one if there is none."""
        if self._process is None or not self._process.is_running:
            if self._starts_without_progress >= MAX_STARTS_WITHOUT_PROGRESS:
                raise CannotRace(because(SearchCode.RACE_TOO_SHORT, starts=self.starts))
            if self._process is not None:
                self._process.end(0.0)
            self._process = self._start()
            self.compiled = self._process.compiled
            self._is_ready = False
            self._last_step = 0
            self._began_s = time.monotonic()
            self.starts += 1
            self._starts_without_progress += 1
        return self._process

    def _note(self, message: RaceMessage, asking: "_Asking", racing: list[_Entry]) -> None:
        member, block = message.member, message.block
        if member is not None:
            if asking.current is None or asking.current.member != member.member:
                asking.previous = asking.current
            asking.current = member
            self._last_step = max(self._last_step, member.steps)
            entry = racing[member.member]
            standing = entry.standing
            if member.error:
                self._give_up(standing, because(TrialFailure.RAISED, error=member.error))
            elif not member.began:
                entry.is_set_up = True
                standing.applied, standing.not_applied = member.applied, member.not_applied
                standing.compile_s = max(standing.compile_s, member.compile_s)
                self.compile_s = max(self.compile_s, member.compile_s)
        if block is not None:
            self._starts_without_progress = 0
            entry = racing[block.member]
            entry.blocks[asking.first_round + block.round] = block
            asking.complete = max(asking.complete, block.round + 1)
            self.measured.add(set_key(entry.standing.fixes))
            if not block.member:
                self.step_s = block.wall_ns / block.steps / 1e9

    def _is_overdue(
        self, process: RacedProgram, asking: "_Asking", racing: list[_Entry], patience_s: float
    ) -> bool:  # fmt: skip
        """Return whether the process has to be ended: it hangs, or the time is over."""
        now, current = time.monotonic(), asking.current
        fixes = racing[current.member].standing.fixes if current is not None else ()
        limit_s = COMPILING_LIMIT_S if compiles_first(fixes) else self._set_up_limit_s()
        limit_s += SLOW_FACTOR * self.step_s * len(racing) * (self._block_steps() + 1)
        if current is not None and now - asking.heard_s > limit_s:
            hangs = because(TrialFailure.TIMED_OUT, limit_s=limit_s, step=None)
            self._fail(racing, asking, hangs, hangs=True)
            return True
        until_s = asking.deadline_s if asking.complete else asking.last_s
        if now > until_s and asking.stopping_s is None:
            asking.stopping_s = now
            asking.number = process.ask(RaceRequest(number=0))
        return asking.stopping_s is not None and now > asking.stopping_s + patience_s

    def _set_up_limit_s(self) -> float:
        """Return the time that a set may need to be ready. Its workers may have to start as the
        program did."""
        return min(max(MIN_SET_UP_LIMIT_S, SLOW_START_FACTOR * self.start_s), SET_UP_LIMIT_S)

    def _note_end(self, process: RacedProgram, asking: "_Asking", racing: list[_Entry]) -> None:
        """Note which set the process ended under, if it did not reach its own end."""
        failure = process.failure()
        if failure is not None:
            self._fail(racing, asking, failure)

    def _fail(
        self, racing: list[_Entry], asking: "_Asking", reason: Reason, *, hangs: bool = False
    ) -> None:
        """Note that the process did not go on, and find out why. A program may end with an error of
        its own (an exit code, an exception that it raises at some step), whichever set is on: two
        processes then end at the same step. A set under which the program has run before is given
        up only if it ends under it twice."""
        suspect, reason = self._suspect(racing, asking, reason)
        step = asking.current.steps if asking.current is not None else self._last_step
        if step < MIN_OWN_END_STEPS:
            if suspect is None:
                raise CannotRace(reason)
            self._give_up(suspect, reason)
            self._give_up_alike(racing, suspect, reason, hangs=hangs)
            return
        before = [end for end in self._ends if abs(end.step - step) <= SAME_STEP]
        key = None if suspect is None else set_key(suspect.fixes)
        self._ends.append(_BadEnd(step, key))
        if before:
            for end in before:
                self._acquit(racing, end)
            return
        is_second = sum(end.suspect == key for end in self._ends) > 1
        if suspect is not None and (hangs or key not in self.measured or is_second):
            self._give_up(suspect, reason)

    def _suspect(
        self, racing: list[_Entry], asking: "_Asking", reason: Reason
    ) -> tuple[Standing | None, Reason]:
        """Return the set under which the process did not go on, and why. If it did not go on under
        the base, it could not go on from where the set before has left it; None if there was no
        set before."""
        base = racing[0].standing.fixes
        for member, cause in (
            (asking.current, reason),
            (asking.previous, because(SearchCode.RACE_CANNOT_GO_BACK, cause=reason)),
        ):
            standing = racing[member.member].standing if member is not None else None
            if standing is not None and standing.fixes != base:
                return standing, cause
        return None, reason

    def _acquit(self, racing: list[_Entry], end: "_BadEnd") -> None:
        """Let a set race again that was given up because of this end."""
        if end.suspect is not None and self._failed.pop(end.suspect, None) is not None:
            for entry in racing:
                if set_key(entry.standing.fixes) == end.suspect:
                    entry.standing.failure = None
                    entry.standing.verdict = "UNDECIDED"

    def _give_up(self, standing: Standing, reason: Reason) -> None:
        standing.failure = self._failed[set_key(standing.fixes)] = reason
        self._starts_without_progress = 0

    def _give_up_alike(
        self, racing: Sequence[_Entry], failed: Standing, reason: Reason, *, hangs: bool
    ) -> None:
        """Give up the sets that would end the process in the same way, without trying them: those
        with the same fix beside others and, where it hangs, with other options: workers that wait
        for each other do so whether they are two or four."""
        base = racing[0].standing.fixes
        added = [one for one in failed.fixes if one not in base]
        if len(added) != 1:
            return
        for entry in racing[2:]:
            alike = added[0] in entry.standing.fixes
            if hangs:
                alike = any(one.fix == added[0].fix for one in entry.standing.fixes)
            is_open = entry.standing.failure is None
            if alike and is_open and set_key(entry.standing.fixes) not in self.measured:
                self._give_up(entry.standing, because(SearchCode.RACE_FAILS_ALIKE, cause=reason))

    def _look(self, entries: list[_Entry]) -> None:
        """Judge each set by the rounds so far. A set that cannot win leaves."""
        base = entries[0]
        _fill_in(base)
        self._note_slowdown(base)
        for entry in entries[2:]:
            standing = entry.standing
            if standing.failure is not None:
                standing.verdict = "INVALID"
                continue
            standing.ratio, clocks = _ratio(base, entry)
            _fill_in(entry, clocks[1])
            standing.base_ms = _typical_ms(base, clocks[0])
            standing.verdict = _verdict(standing.ratio)
            can_win = standing.verdict in ("UNDECIDED", "FASTER")
            entry.is_open = can_win and (standing.is_applied or not entry.is_set_up)

    def _note_slowdown(self, base: _Entry) -> None:
        blocks = _steady(base)
        wall_ns = sum(block.wall_ns for block in blocks)
        worked_ns = wall_ns - sum(block.queued_ns for block in blocks)
        if worked_ns > 0:
            self.slowdown = wall_ns / worked_ns


def _worth_deciding(able: Sequence[_Entry]) -> list[_Entry]:
    """Return the sets that are undecided and could gain a good part of what the best surely gains.
    What gains less is raced again beside the best, whose step is shorter."""
    sure = [one.standing.ratio for one in able if one.standing.verdict == "FASTER"]
    best = max((ratio.ci_low for ratio in sure if ratio is not None), default=1.0)
    least = 1 + MIN_HOPEFUL_SHARE * (best - 1)
    undecided = [one for one in able if one.standing.verdict == "UNDECIDED"]
    return [
        one for one in undecided if one.standing.ratio is None or one.standing.ratio.ci_high > least
    ]


class _Asking:
    """Says how far a request has come."""

    def __init__(self, first_round: int, deadline_s: float, last_s: float) -> None:
        self.first_round = first_round
        self.deadline_s = deadline_s
        self.last_s = last_s
        """When to stop even before one round is complete."""
        self.number = 0
        """Number of the request, or of the one that stops it."""
        self.complete = 0
        """How many of its rounds are complete."""
        self.current: RaceMember | None = None
        """The set that the program runs under."""
        self.previous: RaceMember | None = None
        """Another set, under which it ran before."""
        self.heard_s = time.monotonic()
        """When the process last said something."""
        self.stopping_s: float | None = None
        """When the process was asked to stop."""


class _BadEnd(Struct, frozen=True):
    """A process that did not reach an end without an error."""

    step: int
    """How many steps it had taken when it switched for the last time."""
    suspect: SetKey | None
    """The set under which it ended; None stands for the base."""


def _pairs(base: _Entry, other: _Entry) -> Iterator[tuple[RaceBlock, RaceBlock]]:
    """Yield the blocks of the rounds in which both were timed, and neither compiled. Where most of
    them are free of a loader that starts its workers, the others are left out: an epoch begins in
    the block of one set, and would be its cost alone."""
    both = [
        (block, other.blocks[number])
        for number, block in sorted(base.blocks.items())
        if number in other.blocks
    ]
    steady = [pair for pair in both if not any(block.compile_ns for block in pair)]
    calm = [pair for pair in steady if not any(block.restarts for block in pair)]
    yield from calm if 2 * len(calm) > len(steady) else steady


Clock = Callable[[RaceBlock], float]


def _ratio(base: _Entry, other: _Entry) -> tuple[Ratio | None, tuple[Clock, Clock]]:
    """Return how many times as fast the other set is, by the rounds that both were in, and the
    clocks of both that tell; None if there are too few rounds.

    Two clocks tell: the time of the steps, and that time without what the steps waited for a
    processor. On a machine that others use too, the first varies by tens of per cent from block to
    block and the second by a few. If both sets are fed by as many workers, the more certain clock
    counts, unless the two contradict each other.

    Where the other set has more workers, all its waits count, because the workers may be their
    reason, and none of the base's: steps that have slept, waiting for workers, get a busy processor
    sooner than others, for as long as a short block lasts (3.9 × by the first clock where steps by
    the hundred showed 1.1 ×). Where it has fewer, the clock that shows the smaller gain counts.
    """
    pairs = list(_pairs(base, other))
    more = sum(fixed.workers - block.workers for block, fixed in pairs)
    whole = _by_clocks(pairs, _WHOLE)
    undisturbed = _by_clocks(pairs, _UNDISTURBED)
    if whole is None or undisturbed is None:
        return whole, _WHOLE
    if more > 0:
        return _by_clocks(pairs, _CAUTIOUS), _CAUTIOUS
    if more < 0:
        is_less = undisturbed.value < whole.value
        return (undisturbed, _UNDISTURBED) if is_less else (whole, _WHOLE)
    if whole.ci_low > undisturbed.ci_high or undisturbed.ci_low > whole.ci_high:
        return _hull(whole, undisturbed), _WHOLE
    is_surer = _width(undisturbed) < _width(whole)
    return (undisturbed, _UNDISTURBED) if is_surer else (whole, _WHOLE)


def _step_ns(block: RaceBlock) -> float:
    return block.wall_ns / block.steps


def _undisturbed_ns(block: RaceBlock) -> float:
    return (block.wall_ns - block.queued_ns) / block.steps


_WHOLE: tuple[Clock, Clock] = (_step_ns, _step_ns)
_UNDISTURBED: tuple[Clock, Clock] = (_undisturbed_ns, _undisturbed_ns)
_CAUTIOUS: tuple[Clock, Clock] = (_undisturbed_ns, _step_ns)


def _by_clocks(
    pairs: Sequence[tuple[RaceBlock, RaceBlock]], clocks: tuple[Clock, Clock]
) -> Ratio | None:
    times = [(clocks[0](block), clocks[1](fixed)) for block, fixed in pairs]
    if len(times) < MIN_JUDGED_ROUNDS or any(before <= 0 or after <= 0 for before, after in times):
        return None
    before, after = zip(*times, strict=True)
    found = paired_ratio(before, after, seed=0).estimate(LEVEL)
    return Ratio(value=found.ratio, ci_low=found.ci_low, ci_high=found.ci_high, pairs=len(times))


def _width(ratio: Ratio) -> float:
    return math.log(ratio.ci_high / ratio.ci_low)


def _hull(one: Ratio, other: Ratio) -> Ratio:
    """Return the first ratio with an interval that has both intervals in it."""
    low, high = min(one.ci_low, other.ci_low), max(one.ci_high, other.ci_high)
    return Ratio(value=one.value, ci_low=low, ci_high=high, pairs=one.pairs)


def _verdict(ratio: Ratio | None) -> Verdict:
    if ratio is None:
        return "UNDECIDED"
    if ratio.ci_low > 1 and ratio.value >= MIN_GAIN:
        return "FASTER"
    if ratio.ci_high < 1 and ratio.value <= 1 / MIN_GAIN:
        return "SLOWER"
    return "SAME" if ratio.ci_low >= 1 / MIN_GAIN and ratio.ci_high <= MIN_GAIN else "UNDECIDED"


def _fill_in(entry: _Entry, clock: Clock = _step_ns) -> None:
    """Note what the blocks of a set say of its step."""
    if blocks := _steady(entry):
        standing = entry.standing
        standing.step_ms = _typical_ms(entry, clock)
        wall_ns = sum(block.wall_ns for block in blocks)
        standing.input_share = min(sum(block.input_ns for block in blocks) / wall_ns, 1.0)
        standing.peak_bytes = max(block.peak_bytes for block in blocks)


def _steady(entry: _Entry) -> list[RaceBlock]:
    return [block for block in entry.blocks.values() if not block.compile_ns]


def _typical_ms(entry: _Entry, clock: Clock) -> float:
    return median(map(clock, _steady(entry))) / 1e6 if _steady(entry) else 0.0
