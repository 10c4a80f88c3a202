"""Which calls of modules a backward goes through: the others were probes, and train nothing.

A sample grid, a look at the validation set, a first call to learn a shape: made in training mode
and with gradients on they look like the step's own, but no loss is made of them. Autograd numbers
its nodes as they are made, so that a call is a range of numbers, and a walk from the loss tells
which ranges it meets. A walk takes about a microsecond a node: the answer is kept for calls of the
same modules with as many samples, once two walks in a row gave it. One is not enough: a first step
may probe with what later steps train on.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

MOST_NODES = 20_000
"""Of a graph that is walked: 20 ms, twice. A ResNet-50 has 500."""
MOST_WALKS = 64
"""In all: two for each of 32 kinds of steps."""


class Ranged(Protocol):
    """A call, with the numbers of the nodes made in it: from `first` up to, not with, `end`."""

    root: int
    first: int
    end: int

    @property
    def samples(self) -> int: ...


class Answered:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._walks = 0
        self._known: dict[tuple[tuple[int, int], ...], list[bool]] = {}
        self._sure: set[tuple[tuple[int, int], ...]] = set()
        """Those that two walks in a row agreed on."""
        self._alike: dict[tuple[int, ...], list[bool]] = {}
        """By modules alone: once enough was walked."""
        self.number: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
        """Of the node that comes next; where torch does not tell, no call has any."""

    def by(self, tensors: Any, calls: Sequence[Ranged]) -> list[bool]:
        """For each call, in the order they were made, whether a backward from there meets it."""
        if sum(call.end > call.first for call in calls) < 2:
            return [True] * len(calls)
        exact = tuple((call.root, call.samples) for call in calls)
        modules = tuple(call.root for call in calls)
        found = self._known.get(exact)
        if found is not None and exact in self._sure:
            return found
        if self._walks >= MOST_WALKS:
            return found or self._alike.get(modules) or [True] * len(calls)
        self._walks += 1
        walked = self._known[exact] = self._alike[modules] = self._walk(tensors, calls)
        if walked == found:
            self._sure.add(exact)
        return walked

    def _walk(self, tensors: Any, calls: Sequence[Ranged]) -> list[bool]:
        """Where the graph is too large, or not as expected, each of them counts."""
        try:
            with self._torch._C.DisableTorchFunction():
                several = isinstance(tensors, tuple | list)
                roots = [one.grad_fn for one in (tensors if several else (tensors,))]
                return _met(roots, calls)
        except Exception:  # a graph of somebody's own kind: none is known to be left out
            return [True] * len(calls)


def _met(roots: Sequence[Any], calls: Sequence[Ranged]) -> list[bool]:
    starts = [call.first for call in calls]
    if any(one > other for one, other in pairwise(starts)):
        return [True] * len(calls)  # made by several threads, each with numbers of its own
    met = [call.end <= call.first for call in calls]
    left, seen = [node for node in roots if node is not None], dict[int, Any]()
    while left and not all(met):
        node = left.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # kept, or its id would be another's
        if len(seen) > MOST_NODES:
            return [True] * len(calls)
        number = node._sequence_nr()
        at = bisect_right(starts, number) - 1
        if at >= 0 and number < calls[at].end:
            met[at] = True
        left += [other for other, _ in node.next_functions if other is not None]
    return met
