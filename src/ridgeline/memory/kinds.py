"""Says what each block of memory is for, from its stack and from when it lived.

A stack alone does not tell: what the optimizer allocates is its state if it outlives the step, and
a temporary if not. What the backward allocates is a gradient if it outlives the backward. What a
forward allocates is an activation if the backward still needs it.
"""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.memory.call_sites import Part
from ridgeline.memory.snapshot import Ints
from ridgeline.memory.timeline import BEFORE, Bools
from ridgeline.memory.training_steps import TrainingSteps
from ridgeline.records.memory import MemoryKind

Put = Callable[[Bools, MemoryKind], None]
"""Gives the chosen blocks a kind, unless they have one."""

KINDS = tuple(MemoryKind)
CODES = {kind: code for code, kind in enumerate(KINDS)}
ODD_WORKSPACE_BYTES, ROUND_WORKSPACE_BYTES = 8_519_680, 33_554_432
"""The workspace of cuBLAS for each stream: 8.125 MiB, a size that no tensor has by chance, and
32 MiB on Hopper and later."""
MAX_STEPS_OF_INPUT = 2
"""Steps that a batch lives through at most, if the next one is fetched ahead. What a line outside
of the model keeps for longer is no input."""
MAX_WORKSPACES = 8
"""More blocks of such a size that are never released are no workspaces."""


class BlockKinds:
    """The kind of each block of a timeline."""

    def __init__(self, steps: TrainingSteps) -> None:
        self.steps = steps
        self.timeline = steps.timeline
        self.sites = steps.sites
        self.bytes_by_size = 0
        """Bytes from before the recording that have a kind because their size is that of a
        gradient."""

    @cached_property
    def codes(self) -> NDArray[np.int8]:
        """The kind of each block, as a place in `KINDS`."""
        kinds = np.full(len(self.timeline.blocks), CODES[MemoryKind.UNKNOWN], np.int8)
        known = np.zeros(len(kinds), np.bool_)

        def put(chosen: Bools, kind: MemoryKind) -> None:
            new = chosen & ~known
            kinds[new] = CODES[kind]
            known[new] = True

        self._put_certain(put)
        self._put_backward(put)
        self._put_forward(put)
        self._put_from_before(kinds, known)
        return kinds

    def totals(self, blocks: Ints) -> dict[MemoryKind, int]:
        """Return the bytes of the given blocks by kind, without kinds that have none."""
        sums = np.bincount(
            self.codes[blocks], self.timeline.blocks.size[blocks], minlength=len(KINDS)
        )
        return {kind: int(size) for kind, size in zip(KINDS, sums, strict=True) if size}

    # ------------------------------------------------------------------- stacks and lifetimes

    @cached_property
    def _parts(self) -> Ints:
        parts: Ints = self.sites.parts[self.timeline.blocks.stack]
        return parts

    def _has(self, part: Part) -> Bools:
        has: Bools = (self._parts & part) != 0
        return has

    @cached_property
    def _recorded(self) -> Bools:
        return self.timeline.blocks.start > BEFORE

    @cached_property
    def _stays(self) -> Bools:
        stays: Bools = self.timeline.blocks.end == len(self.timeline)
        return stays

    def _next(self, chosen: Bools) -> Ints:
        """Return for each block the first of the chosen events after its allocation; the number of
        events if none follows."""
        rows = np.append(np.flatnonzero(chosen), len(self.timeline))
        return rows[np.searchsorted(rows, self.timeline.blocks.start, side="right")]

    def _outlives(self, chosen: Bools) -> Bools:
        """Return whether each block lives until the first of the chosen events after its
        allocation, or as long as the recording."""
        outlives: Bools = (self.timeline.blocks.end >= self._next(chosen)) | self._stays
        return outlives

    @cached_property
    def _steps_lived(self) -> Ints:
        """How many beginnings of steps each block lived through; of blocks that stay, all that
        followed."""
        starts, blocks = self.steps.starts, self.timeline.blocks
        first = np.searchsorted(starts, blocks.start, side="right")
        return np.searchsorted(starts, blocks.end, side="right") - first

    @cached_property
    def _from_backward(self) -> Bools:
        made = np.zeros(len(self._recorded), np.bool_)
        rows = np.flatnonzero(self._recorded)
        made[rows] = self.steps.in_backward[self.timeline.blocks.start[rows]]
        return made

    # ------------------------------------------------------------------- kinds

    def _put_certain(self, put: Put) -> None:
        """Put the kinds that stacks tell almost by themselves."""
        put(self._has(Part.WORKSPACE) | self._looks_like_workspace, MemoryKind.WORKSPACE)
        put(self._has(Part.BUCKET), MemoryKind.GRADIENT)
        optimizer = self._has(Part.OPTIMIZER)
        other_work = self.timeline.is_alloc & ((self.steps.parts & Part.OPTIMIZER) == 0)
        lasting = self._outlives(other_work)
        put(optimizer & (lasting | ~self._recorded), MemoryKind.OPTIMIZER_STATE)
        put(optimizer, MemoryKind.TEMPORARY)
        built = self._has(Part.CONSTRUCTION) & ~self._has(Part.MODULE)
        lives = self._stays | (self._steps_lived > 0) | ~self._recorded
        put(built & lives & self._are_moved_buffers, MemoryKind.BUFFER)
        put(built & lives, MemoryKind.PARAMETER)
        put(built, MemoryKind.TEMPORARY)
        made = self._has(Part.CONSTRUCTOR) & ~self._has(Part.MODULE | Part.DATA)
        put(made & lives & (self.steps.count > 0), MemoryKind.BUFFER)
        put(self._has(Part.DATA) & ~self._has(Part.MODULE), MemoryKind.INPUT)

    @cached_property
    def _are_moved_buffers(self) -> Bools:
        stacks = np.unique(self.timeline.blocks.stack[self._has(Part.MOVES)])
        buffers = [s for s in stacks.tolist() if s >= 0 and self.sites.moves_a_buffer(s)]
        return np.isin(self.timeline.blocks.stack, buffers)

    @cached_property
    def _looks_like_workspace(self) -> Bools:
        """Return which blocks have the size of a workspace of cuBLAS, were allocated by an
        operator, and are never released, while no other block of that size is."""
        sizes = self.timeline.blocks.size
        found = np.zeros(len(sizes), np.bool_)
        by_operator = self._from_backward | self._has(Part.MODULE | Part.FORWARD | Part.LOSS)
        for size in (ODD_WORKSPACE_BYTES, ROUND_WORKSPACE_BYTES):
            same = sizes == size
            fits = same & by_operator & self._stays
            if size == ROUND_WORKSPACE_BYTES:
                fits &= self._in_torch | self._from_backward
            if 0 < np.count_nonzero(same) == np.count_nonzero(fits) <= MAX_WORKSPACES:
                found |= fits
        return found

    @cached_property
    def _in_torch(self) -> Bools:
        """Return which blocks were allocated below a Python function of torch's, such as a module's
        forward, and not by an expression of the program's own."""
        inner = [self.sites.innermost(stack) for stack in range(len(self.sites.stacks))]
        own = [number >= 0 and self.sites.is_own(number) for number in inner]
        in_torch: Bools = ~np.array([*own, True], np.bool_)[self.timeline.blocks.stack]
        return in_torch

    def _put_backward(self, put: Put) -> None:
        """A gradient outlives the backward: it still lives when anything else happens."""
        other = (self.timeline.stack >= 0) & ((self.steps.parts & Part.BACKWARD) == 0)
        other |= self.timeline.is_alloc & ~self.steps.in_backward
        again = self._has(Part.RECOMPUTATION) & self._has(Part.MODULE)
        put(again, MemoryKind.ACTIVATION)
        put(self._from_backward & self._outlives(other), MemoryKind.GRADIENT)
        put(self._from_backward, MemoryKind.TEMPORARY)

    def _put_forward(self, put: Put) -> None:
        """An activation is still there when the backward begins. Without any backward, whatever a
        module allocates is called an activation."""
        blocks = self.timeline.blocks
        has_stack = blocks.stack >= 0
        in_module = self._has(Part.MODULE | Part.FORWARD | Part.LOSS) & has_stack
        has_backward = bool(self.steps.in_backward.any())
        kept = self._stays & (self._steps_lived >= 2) & self._is_made_once
        put(in_module & kept, MemoryKind.BUFFER)
        put(self._are_inputs & has_stack, MemoryKind.INPUT)
        if not has_backward:
            put(in_module, MemoryKind.ACTIVATION)
            return
        needed = self._outlives(self.steps.in_backward)
        put(in_module & needed, MemoryKind.ACTIVATION)
        put(in_module, MemoryKind.TEMPORARY)
        inside = has_stack & self._recorded
        if self.steps.count:
            inside &= self._step_of_start >= 0
        before_backward = self._next(self.steps.in_backward) < self._end_of_step
        put(inside & needed & before_backward & ~self._is_kept, MemoryKind.ACTIVATION)
        put(
            has_stack & self._recorded & ~self._stays & (self._steps_lived == 0),
            MemoryKind.TEMPORARY,
        )

    @cached_property
    def _step_of_start(self) -> Ints:
        return self.steps.step_of(self.timeline.blocks.start)

    @cached_property
    def _end_of_step(self) -> Ints:
        ends = np.append(self.steps.starts, len(self.timeline))
        return ends[np.clip(self._step_of_start + 1, 0, len(ends) - 1)]

    @cached_property
    def _is_made_once(self) -> Bools:
        """Whether the stack of each block allocates in a single step."""
        rows = np.flatnonzero(self.timeline.is_alloc & (self.timeline.stack >= 0))
        stacks, steps = self.timeline.stack[rows], self.steps.step_of(rows)
        most = np.full(len(self.sites.stacks) + 1, -2, np.int64)  # -1 is before the first step
        least = np.full(len(most), len(self.timeline), np.int64)
        np.maximum.at(most, stacks, steps)
        np.minimum.at(least, stacks, steps)
        once = most == least
        once[-1] = False
        made_once: Bools = once[self.timeline.blocks.stack]
        return made_once

    @cached_property
    def _are_inputs(self) -> Bools:
        """Return which blocks the program itself allocates in a step before the first module is
        called, and has until then: the batch."""
        if not self.steps.count:
            return np.zeros(len(self._recorded), np.bool_)
        in_module = self.timeline.is_alloc & ((self.steps.parts & Part.MODULE) != 0)
        rows = np.flatnonzero(in_module)
        starts = self.steps.starts
        firsts = np.append(rows, len(self.timeline))[np.searchsorted(rows, starts)]
        limit = firsts[np.maximum(self._step_of_start, 0)]
        blocks = self.timeline.blocks
        plain = ~self._has(Part.MODULE | Part.FORWARD | Part.LOSS | Part.BACKWARD | Part.OPTIMIZER)
        early = (self._step_of_start >= 0) & (blocks.start < limit) & (blocks.end > limit)
        inputs: Bools = early & plain & ~self._is_kept & (limit < len(self.timeline))
        return inputs

    @cached_property
    def _is_kept(self) -> Bools:
        """Return which blocks are from a line whose blocks outlive their steps."""
        longest = np.zeros(len(self.sites.stacks) + 1, np.int64)
        np.maximum.at(longest, self.timeline.blocks.stack, self._steps_lived)
        kept: Bools = longest[self.timeline.blocks.stack] > MAX_STEPS_OF_INPUT
        return kept

    def _put_from_before(self, kinds: NDArray[np.int8], known: Bools) -> None:
        """Give blocks that were there before the recording a kind by what released them, or else by
        their sizes. For each gradient there is a parameter of its size, and for Adam there are two
        states."""
        blocks = self.timeline.blocks
        self._put_released(kinds, known)
        rows = np.flatnonzero(~self._recorded & ~known & self._stays)
        gradients = self._gradient_sizes(kinds)
        if not len(rows) or not gradients:
            return
        for size, count in gradients.items():
            same = rows[blocks.size[rows] == size]
            parameters, states = same[:count], same[count : 3 * count]
            kinds[parameters] = CODES[MemoryKind.PARAMETER]
            kinds[states] = CODES[MemoryKind.OPTIMIZER_STATE]
            self.bytes_by_size += size * (len(parameters) + len(states))

    def _put_released(self, kinds: NDArray[np.int8], known: Bools) -> None:
        """Give blocks that were there before the recording a kind by the work that released them:
        an optimizer that makes its state anew, `zero_grad`, or the backward."""
        blocks = self.timeline.blocks
        rows = np.flatnonzero(~self._recorded & ~known & ~self._stays)
        stacks = self.timeline.stack[blocks.end[rows]]
        parts = self.sites.parts[stacks]
        by_update = (parts & Part.UPDATE) != 0
        by_zero_grad = ((parts & Part.OPTIMIZER) != 0) & ~by_update
        in_backward = (parts & Part.BACKWARD) != 0
        for chosen, kind in (
            (by_update, MemoryKind.OPTIMIZER_STATE),
            (by_zero_grad, MemoryKind.GRADIENT),
            (in_backward, MemoryKind.ACTIVATION),
        ):
            kinds[rows[chosen]] = CODES[kind]
            known[rows[chosen]] = True

    def _gradient_sizes(self, kinds: NDArray[np.int8]) -> Counter[int]:
        """Return how many gradients of each size live when the gradients take most memory."""
        rows = np.flatnonzero((kinds == CODES[MemoryKind.GRADIENT]) & self._recorded)
        if not len(rows):
            return Counter()
        moment = int(np.argmax(self.timeline.level(rows)))
        blocks = self.timeline.blocks
        live = rows[(blocks.start[rows] <= moment) & (blocks.end[rows] > moment)]
        return Counter(blocks.size[live].tolist())
