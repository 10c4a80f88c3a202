"""Finds the steps of a training in its allocations.

Steps are taken from what says most about them: annotations of the profiler, the work of the
optimizer, the alternation of forward and backward, or a line that allocates again and again at even
distances. A program that shows none of these has no steps.
"""

from functools import cached_property

import numpy as np

from ridgeline.memory.call_sites import CallSites, Part
from ridgeline.memory.snapshot import Ints
from ridgeline.memory.timeline import Bools, Timeline

MIN_STEPS = 2
MIN_SHARE_WITH_STACKS = 0.1
"""If fewer allocations than this share have a stack, none is taken for the backward's because it
has none."""
MIN_REPEATS = 3
MIN_REPEATING_LINES = 2
MIN_RELEASED_SHARE = 0.5
MAX_SHARE_ONCE = 0.05
"""Share of the lines in modules that may come and go only once or twice: in a warm-up."""
MAX_UNEVENNESS = 0.5
"""The largest deviation of the distances between repetitions, relative to their median."""
_STEP_NAMES = ("ProfilerStep", "train_step", "training_step")


class TrainingSteps:
    """The steps of a device's timeline, and the phase of each event."""

    def __init__(self, timeline: Timeline, sites: CallSites) -> None:
        self.timeline = timeline
        self.sites = sites

    @cached_property
    def parts(self) -> Ints:
        """The parts that the stack of each event belongs to."""
        parts: Ints = self.sites.parts[self.timeline.stack]
        return parts

    @cached_property
    def knows_backward(self) -> bool:
        """Whether an allocation without a stack belongs to the backward. For CUDA it runs in a
        thread of autograd, in which there is no Python."""
        stacks = self.timeline.stack[self._allocs]
        return len(stacks) > 0 and bool(np.mean(stacks >= 0) >= MIN_SHARE_WITH_STACKS)

    @cached_property
    def in_backward(self) -> Bools:
        """Whether each event is an allocation of the backward."""
        engine: Bools = (self.parts & Part.BACKWARD) != 0
        if self.knows_backward:
            only_native: Bools = (self.parts & ~np.int64(Part.NATIVE | Part.WORKSPACE)) == 0
            engine = engine | (self.timeline.stack < 0) | only_native
        return engine & self._is_alloc

    @cached_property
    def starts(self) -> Ints:
        """The event with which each step begins, in order; none if no steps are known."""
        annotated = self._annotated(_STEP_NAMES, is_start=True)
        if len(annotated) >= MIN_STEPS:
            return annotated
        for found in (self._updated, self._optimized, self._alternating, self._repeating):
            ends = found()
            if len(ends) >= MIN_STEPS:
                return self._with_first(ends)
        return np.zeros(0, np.int64)

    @property
    def count(self) -> int:
        return len(self.starts)

    def step_of(self, events: Ints) -> Ints:
        """Return the number of the step of each event; -1 before the first."""
        return np.searchsorted(self.starts, events, side="right") - 1

    def phase(self, event: int) -> str:
        """Return forward, backward or optimizer; "" if the stack does not say."""
        if not 0 <= event < len(self.timeline):
            return ""
        part = int(self.parts[event])
        if part & Part.OPTIMIZER:
            return "optimizer"
        if self.in_backward[event]:
            return "backward"
        is_forward = part & (Part.MODULE | Part.FORWARD | Part.LOSS)
        return "forward" if is_forward and not part & Part.CONSTRUCTION else ""

    @property
    def _is_alloc(self) -> Bools:
        return self.timeline.is_alloc

    @cached_property
    def _allocs(self) -> Ints:
        return np.flatnonzero(self._is_alloc)

    def _with_first(self, ends: Ints) -> Ints:
        """Return the starts of all steps, where `ends` are the events at which one step ends and
        the next begins. The first begins where something is allocated that the second step
        allocates too, so that building the model belongs to no step."""
        ends = ends[ends < len(self.timeline)]
        stacks, allocs = self.timeline.stack, self._allocs
        until = ends[1] if len(ends) > 1 else len(self.timeline)
        second = np.unique(stacks[allocs[(allocs >= ends[0]) & (allocs < until)]])
        before = allocs[allocs < ends[0]]
        shared = before[np.isin(stacks[before], second) & (stacks[before] >= 0)]
        starts = np.unique(np.concatenate([shared[:1], ends])).astype(np.int64)
        in_model = self.in_backward | ((self.parts & Part.MODULE) != 0)
        work = np.flatnonzero(self._is_alloc & in_model)
        work = work if len(work) else allocs
        if len(starts) > 1 and not np.any(work >= starts[-1]):
            starts = starts[:-1]  # the recording ends after the last step, and not within the next
        return starts

    def _annotated(self, names: tuple[str, ...], is_start: bool) -> Ints:
        """Return the events at which annotations with such names begin or end."""
        notes = self.timeline.snapshot.annotations(self.timeline.device)
        times = [us for name, starts, us in notes if name.startswith(names) and starts == is_start]
        if not self.timeline.has_times or len(times) < MIN_STEPS:
            return np.zeros(0, np.int64)
        ns = (np.array(times, np.int64) - self.timeline.first_us) * 1000
        events = np.unique(np.searchsorted(self.timeline.at_ns, ns, side="right"))
        return events[events < len(self.timeline)].astype(np.int64)

    def _updated(self) -> Ints:
        """Return where annotations say that the optimizer has done a step."""
        return self._annotated(("Optimizer.step",), is_start=False)

    def _optimized(self) -> Ints:
        """Return where the optimizer's work ends: each step, or each `zero_grad` if the step itself
        leaves no events."""
        for wanted in (Part.UPDATE, Part.OPTIMIZER):
            at_work = (self.parts & wanted) != 0
            ends = self._ends_of_runs(at_work)
            if len(ends) >= MIN_STEPS and ends[-1] - ends[0] > (len(self.timeline) - ends[0]) / 3:
                return ends
        return np.zeros(0, np.int64)

    def _alternating(self) -> Ints:
        """Return where a forward begins after a backward."""
        return self._ends_of_runs(self.in_backward)

    def _ends_of_runs(self, chosen: Bools) -> Ints:
        """Return the event after each run of chosen events. Runs between which nothing else is
        allocated are one."""
        others = np.flatnonzero(self._is_alloc & ~chosen)
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return rows
        group = np.searchsorted(others, rows)
        last = np.append(group[1:] != group[:-1], True)
        ends: Ints = rows[last] + 1
        return ends

    def _repeating(self) -> Ints:
        """Return where a line allocates that does so as often as another one, at even distances: a
        step of a program that does not train. Of a training that did not show more than one step, a
        loop over layers would be found."""
        if self.in_backward.any() or np.any(self.parts & Part.OPTIMIZER):
            return np.zeros(0, np.int64)
        rows = self._allocs[self.timeline.stack[self._allocs] >= 0]
        _, inverse, counts = np.unique(
            self.timeline.stack[rows], return_inverse=True, return_counts=True
        )
        values, votes = np.unique(counts[counts >= MIN_REPEATS], return_counts=True)
        values = values[votes >= MIN_REPEATING_LINES]
        if not len(values):
            return np.zeros(0, np.int64)
        # A line in a loop over layers allocates several times a step: the smallest number counts.
        for stack in np.flatnonzero(counts == values[0]):
            times: Ints = rows[inverse == stack]
            gaps = np.diff(times)
            middle = float(np.median(gaps))
            is_even = float(np.median(np.abs(gaps - middle))) <= MAX_UNEVENNESS * middle
            if middle > 1 and is_even and self._is_released(times) and not self._is_single(times):
                return times
        return np.zeros(0, np.int64)

    def _is_single(self, times: Ints) -> bool:
        """Return whether the repetition lies within one forward: then there are modules around it,
        such as an embedding and a head, whose memory comes and goes once."""
        blocks = self.timeline.blocks
        passing = blocks.stack[(blocks.start >= 0) & (blocks.end < len(self.timeline))]
        passing = passing[(self.sites.parts[passing] & Part.MODULE) != 0]
        stacks, counts = np.unique(passing, return_counts=True)
        once = np.count_nonzero(counts < min(MIN_REPEATS, len(times)))
        return bool(once > MAX_SHARE_ONCE * len(stacks))

    def _is_released(self, times: Ints) -> bool:
        """Return whether most bytes are released in the period that follows theirs. They are not
        where a loop over layers keeps activations: its turns are no steps."""
        blocks = self.timeline.blocks
        rows = np.flatnonzero((blocks.start >= times[0]) & (blocks.start < times[-1]))
        periods = np.searchsorted(times, blocks.start[rows], side="right")
        ends = np.append(times, len(self.timeline))[np.minimum(periods + 1, len(times))]
        released = blocks.end[rows] < ends
        size = blocks.size[rows]
        return bool(size[released].sum() >= MIN_RELEASED_SHARE * size.sum())
