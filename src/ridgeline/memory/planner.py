"""The blocks to checkpoint so that a training step fits a budget in the least time.

Backward visits the blocks from the last to the first. While it is at one block, everything that the
blocks before it keep is still there, and the block itself has all its activations, kept or computed
again. So the peak is the largest of these sums, and every block brings one condition.

Where no two blocks keep the same tensor (a chain), `checkpoints_of_chain` is exact: it goes
through the blocks once and keeps the pairs of memory and time that no other pair beats. Where
blocks share tensors (skip connections), `checkpoints_of_graph` gives the same conditions to
`scipy.optimize.milp`.
"""

import importlib.util
from collections.abc import Sequence

from msgspec import Struct

MAX_FRONT = 4000
"""Pairs of memory and time that are kept at a block. With more, memory is rounded up to a
thousandth of the budget, so a plan is never too large, and at most that much too slow."""
ROUNDING_STEPS = 2000


class Shared(Struct, frozen=True):
    """A tensor that crosses the border of a block: the input of some, kept by some."""

    bytes: int
    inputs_of: frozenset[int] = frozenset()
    """The blocks that need it to be computed again."""
    kept_by: frozenset[int] = frozenset()
    """The blocks that keep it for backward unless they are checkpointed."""


class Block(Struct, frozen=True):
    """One block of the forward, in the order of execution."""

    inside_bytes: int
    """Bytes that only this block keeps for backward."""
    time: float
    """The time to compute it again, in any unit."""
    gradient_bytes: int = 0
    """The gradients of its parameters, which exist once backward has passed it."""
    fixed: bool = False
    """Whether it cannot be checkpointed."""


class Graph(Struct, frozen=True):
    """The blocks of a model, the tensors between them, and the memory that no choice changes."""

    blocks: tuple[Block, ...]
    shared: tuple[Shared, ...] = ()
    fixed_bytes: int = 0

    @property
    def is_chain(self) -> bool:
        """Whether every tensor matters to one block only."""
        return all(len(tensor.inputs_of | tensor.kept_by) <= 1 for tensor in self.shared)

    def held_bytes(self, chosen: frozenset[int]) -> int:
        """Return what all blocks keep when forward has ended and `chosen` are checkpointed."""
        inside = sum(b.inside_bytes for i, b in enumerate(self.blocks) if i not in chosen)
        return inside + sum(t.bytes for t in self.shared if _is_held(t, chosen, len(self.blocks)))

    def peak_bytes(self, chosen: frozenset[int]) -> int:
        """Return the largest sum over the moments of backward."""
        return max(
            (self._bytes_at(i, chosen) for i in range(len(self.blocks))), default=self.fixed_bytes
        )

    def _bytes_at(self, index: int, chosen: frozenset[int]) -> int:
        earlier = sum(b.inside_bytes for i, b in enumerate(self.blocks[:index]) if i not in chosen)
        tensors = sum(
            t.bytes
            for t in self.shared
            if _is_held(t, chosen, index) or index in (t.inputs_of | t.kept_by)
        )
        later = sum(b.gradient_bytes for b in self.blocks[index + 1 :])
        return self.fixed_bytes + earlier + tensors + self.blocks[index].inside_bytes + later

    def time(self, chosen: frozenset[int]) -> float:
        return sum(self.blocks[i].time for i in chosen)


def _is_held(tensor: Shared, chosen: frozenset[int], before: int) -> bool:
    """Return whether one of the blocks before an index holds the tensor."""
    return any(i < before for i in tensor.inputs_of & chosen) or any(
        i < before for i in tensor.kept_by - chosen
    )


def has_solver() -> bool:
    return importlib.util.find_spec("scipy") is not None


def best_checkpoints(graph: Graph, budget_bytes: int) -> frozenset[int] | None:
    """Return the blocks to checkpoint for the least time within the budget; None if no set fits. A
    graph with shared tensors needs scipy. Without it, a shared tensor counts for every block that
    holds it, which never leads to a set that is too large."""
    if graph.peak_bytes(frozenset()) <= budget_bytes:
        return frozenset()
    if graph.is_chain or not has_solver():
        return checkpoints_of_chain(graph, budget_bytes)
    return checkpoints_of_graph(graph, budget_bytes)


def checkpoints_of_chain(graph: Graph, budget_bytes: int) -> frozenset[int] | None:
    kept, checkpointed = _bytes_by_choice(graph)
    step = max(budget_bytes // ROUNDING_STEPS, 1)
    later = sum(b.gradient_bytes for b in graph.blocks)
    front: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for index, block in enumerate(graph.blocks):
        later -= block.gradient_bytes
        tensors = (t.bytes for t in graph.shared if index in t.inputs_of | t.kept_by)
        whole = block.inside_bytes + sum(tensors)
        room = budget_bytes - graph.fixed_bytes - whole - later
        moved = []
        for held, time, chosen in front:
            if held > room:
                continue
            moved.append((held + kept[index], time, chosen))
            if not block.fixed:
                moved.append((held + checkpointed[index], time + block.time, (*chosen, index)))
        if len(moved) > MAX_FRONT:
            moved = [(-(-held // step) * step, time, chosen) for held, time, chosen in moved]
        front = _unbeaten(moved)
    if not front:
        return None
    return frozenset(min(front, key=lambda point: (point[1], point[0]))[2])


def _bytes_by_choice(graph: Graph) -> tuple[list[int], list[int]]:
    """Return what each block holds for the blocks after it, if kept and if checkpointed."""
    kept = [block.inside_bytes for block in graph.blocks]
    checkpointed = [0] * len(graph.blocks)
    for tensor in graph.shared:
        for index in tensor.kept_by:
            kept[index] += tensor.bytes
        for index in tensor.inputs_of:
            checkpointed[index] += tensor.bytes
    return kept, checkpointed


def _unbeaten(
    points: list[tuple[int, float, tuple[int, ...]]],
) -> list[tuple[int, float, tuple[int, ...]]]:
    """Return the points for which no other is smaller and at least as fast."""
    left: list[tuple[int, float, tuple[int, ...]]] = []
    for point in sorted(points):
        if not left or point[1] < left[-1][1]:
            left.append(point)
    return left


def checkpoints_of_graph(graph: Graph, budget_bytes: int) -> frozenset[int] | None:
    """Return the best set by mixed-integer programming, for blocks that share tensors.

    The variables are one choice a block, and for each shared tensor and each of its holders whether
    it is held from this block on.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(graph.blocks)
    holds: list[tuple[int, int]] = []  # (tensor, block from which on it is held)
    for number, tensor in enumerate(graph.shared):
        holds += [(number, index) for index in sorted(tensor.inputs_of | tensor.kept_by)]
    column = {hold: count + i for i, hold in enumerate(holds)}
    rows, upper = [], []

    def add(entries: dict[int, float], limit: float) -> None:
        row = np.zeros(count + len(holds))
        for place, value in entries.items():
            row[place] += value
        rows.append(row)
        upper.append(limit)

    scale = 1.0 / max(budget_bytes, 1)
    for number, tensor in enumerate(graph.shared):
        before = None
        for index in sorted(tensor.inputs_of | tensor.kept_by):
            place = column[number, index]
            if index in tensor.inputs_of and index in tensor.kept_by:
                add({place: -1.0}, -1.0)  # held either way
            elif index in tensor.inputs_of:
                add({index: 1.0, place: -1.0}, 0.0)
            else:
                add({index: -1.0, place: -1.0}, -1.0)
            if before is not None:
                add({column[number, before]: 1.0, place: -1.0}, 0.0)
            before = index
    for index, block in enumerate(graph.blocks):
        later = sum(b.gradient_bytes for b in graph.blocks[index + 1 :])
        fixed = graph.fixed_bytes + block.inside_bytes + later
        entries: dict[int, float] = {}
        for i, earlier in enumerate(graph.blocks[:index]):
            fixed += earlier.inside_bytes
            entries[i] = entries.get(i, 0.0) - earlier.inside_bytes * scale
        for number, tensor in enumerate(graph.shared):
            holders = sorted(tensor.inputs_of | tensor.kept_by)
            if index in holders:
                fixed += tensor.bytes
                continue
            last = [i for i in holders if i < index]
            if last:
                entries[column[number, last[-1]]] = tensor.bytes * scale
        add(entries, (budget_bytes - fixed) * scale)
    total = sum(b.time for b in graph.blocks) or 1.0
    cost = np.zeros(count + len(holds))
    cost[:count] = [b.time / total for b in graph.blocks]
    cost[count:] = 1e-9  # nothing is held that need not be
    most = np.ones(count + len(holds))
    most[:count] = [0.0 if b.fixed else 1.0 for b in graph.blocks]
    found = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), ub=np.array(upper)),
        bounds=Bounds(0, most),
        integrality=np.ones(count + len(holds)),
        options={"time_limit": SOLVER_LIMIT_S},
    )
    if found.x is None:
        return None
    return frozenset(int(i) for i in range(count) if found.x[i] > 0.5)


SOLVER_LIMIT_S = 20.0
"""Models of hundreds of blocks take less than a second; after this the best set so far is taken."""


def micro_batch_counts(batch: int, most: int) -> Sequence[int]:
    """Return the numbers of micro-batches worth a try: powers of two, and one sample each."""
    counts: list[int] = []
    number = 1
    while number < batch and len(counts) < most - 1:
        counts.append(number)
        number *= 2
    return [*counts, batch]
