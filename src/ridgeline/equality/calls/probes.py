"""Extra calls, each from the state the first one started from, that tell how a workload behaves:
whether it repeats itself, draws random numbers, heeds its inputs, and what it computes."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch

from ridgeline.equality.calls.calling import Caller
from ridgeline.equality.calls.error import distance, same_outputs
from ridgeline.equality.calls.keeping import Changed, Keeping
from ridgeline.equality.calls.leaf import Leaf, Room, leaf_of
from ridgeline.equality.calls.observed import Fresh, Probe
from ridgeline.equality.calls.outputs import Outputs
from ridgeline.equality.calls.perturb import How, can_be_perturbed, perturb
from ridgeline.equality.calls.reach import Held, reachable
from ridgeline.equality.calls.work import count_work

OTHER_SEED = 7919
TURNS = 10
_MOST_SCRATCH = 8
_NEVER_SEEN = 2 * TURNS  # a turn whose content no other call is made on


class NothingToChange(Exception):
    """No tensor there that could be given other content."""


class Budget:
    """Seconds for extra calls, and what a call takes."""

    def __init__(self, seconds: float, call_ns: float) -> None:
        self._until = perf_counter() + seconds
        self._call_s = call_ns / 1e9

    def allows(self, calls: float) -> bool:
        return perf_counter() + calls * self._call_s <= self._until

    def why(self) -> str:
        return f"a call takes {self._call_s:.2g} s, too long for more of them"


class Probing:
    def __init__(
        self,
        caller: Caller,
        keeping: Keeping,
        first: Outputs,
        state: Sequence[Changed],
        budget: Budget,
    ) -> None:
        self._caller = caller
        self._keeping = keeping
        self._first = first
        self._state = state
        self._budget = budget
        self._content: How = "rolled"
        self._declared = self._content_of("declared")
        inputs = [*self._declared, *self._content_of("captured")]
        # What may hold input; weights where there is nothing else.
        self._every = inputs or self._content_of("parameter", "buffer")
        lost = [c.name for c in state if c.before is None]
        self._stuck = f"{lost[0]} changes and is too large to be put back" if lost else ""

    def repeat(self) -> Probe:
        return self._probe(lambda: self._caller(0)[0])

    def other_seed(self) -> Probe:
        return self._probe(lambda: self._caller(OTHER_SEED)[0])

    def nudged(self, calls: int) -> tuple[Probe, tuple[Leaf, ...]]:
        """The first call on inputs moved by their rounding error, and the state that all calls
        leave then."""
        left: list[Leaf] = []

        def call() -> Outputs:
            if not self._perturb([held.tensor for held in self._every], "nudged"):
                raise NothingToChange("no tensor to nudge can be reached from it")
            outputs = self._caller.copied(self._caller(0)[0])
            if self._state and self._budget.allows(calls):
                for turn in range(1, calls):
                    self._caller(turn)
                after = dict(reachable(self._caller.workload))
                left.extend(leaf_of(c.name, after[c.name].detach(), Room()) for c in self._state)
            return outputs

        return self._probe(call), tuple(left)

    def spread(self, repeat: Probe) -> float | None:
        """How far repeats lie apart: 0 where they agree bit for bit."""
        if repeat.outputs is None:
            return None
        if same_outputs(repeat.outputs, self._first):
            return 0.0
        again = [repeat.outputs]
        for _ in range(3):
            probe = self._probe(lambda: self._caller(0)[0])
            again += [probe.outputs] if probe.outputs is not None else []
        if self._caller.workload.rebuild is not None:
            rebuilt = self._probe(self._rebuilt)
            if rebuilt.outputs is not None and same_outputs(rebuilt.outputs, self._first):
                return 0.0  # it repeats itself; what changed was state that nobody can see
        return max(distance(self._first, outputs) for outputs in again)

    def scratch(self, repeat: Probe) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the changed tensors, those that a call overwrites before it reads them, and those
        whose content changes its result. Where it cannot be told they are in neither."""
        names = [c.name for c in self._state if c.role in ("captured", "buffer")]
        if not names or repeat.outputs is None or not same_outputs(repeat.outputs, self._first):
            return (), ()
        verdict = self._heeded(names)
        if verdict is None or len(names) == 1:
            return (tuple(names), ()) if verdict is False else ((), tuple(names) if verdict else ())
        if not verdict:
            return tuple(names), ()
        each = {name: self._heeded([name]) for name in names[:_MOST_SCRATCH]}
        return (
            tuple(name for name, heeded in each.items() if heeded is False),
            tuple(name for name, heeded in each.items() if heeded),
        )

    def _heeded(self, names: list[str]) -> bool | None:
        """Whether other content in these tensors changes the result; None where it cannot be
        told."""
        tensors = [held.tensor for held in self._keeping.reach.held if held.name in names]
        if not tensors or not all(self._keeping.knows(tensor) for tensor in tensors):
            return None

        def call() -> Any:
            if self._perturb(tensors, "rolled", ints=True, rows=True) < _storages(tensors):
                raise NothingToChange("not every tensor can be given other content")
            return self._caller(0)[0]

        probe = self._probe(call)
        return None if probe.outputs is None else not same_outputs(probe.outputs, self._first)

    def fresh(self) -> Iterator[Fresh]:
        """Calls on other content: of the declared inputs alone, and of all that is not a weight."""
        groups = {"inputs": self._declared, "all": self._every}
        if self._declared == self._every:
            del groups["all"]
        had_nans = any(leaf.nans for leaf in self._first.leaves)
        for group, held in groups.items():
            rolled = self._fresh(group, held, "rolled")
            yield rolled
            spoilt = rolled.outputs is None or any(leaf.nans for leaf in rolled.outputs.leaves)
            if spoilt and not had_nans:
                yield self._fresh(group, held, "scaled")

    def work(self) -> dict[str, Any]:
        """Counted on content that the workload has just been called with, and on other content."""
        if self._stuck or not self._budget.allows(5):
            return {"work_why": self._stuck or self._budget.why()}
        found: dict[str, Any] = {}
        try:
            self._keeping.restore()
            self._caller(0)
            found["work"] = count_work(self._caller, self._keeping)
            if self._change(self._every, _NEVER_SEEN):
                found["work_fresh"] = count_work(self._caller, self._keeping)
        except Exception as error:
            found["work_why"] = _words(error)
        finally:
            self._keeping.restore()
        return found

    def timing(self) -> dict[str, Any]:
        """Single calls in turns, the one on other content, the other on the same again. Both come
        after the same copying of as much memory, so that only the content differs."""
        held = self._every
        if self._stuck or not held or not self._budget.allows(2 * TURNS + 2):
            why = self._stuck or ("" if held else _NOTHING) or self._budget.why()
            return {"timing_why": why}
        fresh, repeat = [], []
        copies = [held_.tensor.detach().clone() for held_ in held]
        try:
            self._keeping.restore()
            self._caller(0)
            for turn in range(1, TURNS + 1):  # turn 0 it has seen
                self._change(held, turn)
                fresh.append(self._caller(0)[1])
                perturb(copies, self._content, turn, ints=True)
                repeat.append(self._caller(0)[1])
        except Exception as error:
            return {"timing_why": _words(error)}
        finally:
            self._keeping.restore()
        return {"fresh_ns": tuple(fresh), "repeat_ns": tuple(repeat)}

    def _fresh(self, group: str, held: list[Held], how: How) -> Fresh:
        names = tuple(h.name for h in held)

        def call() -> Any:
            if not self._perturb([h.tensor for h in held], how, ints=group == "inputs"):
                raise NothingToChange(_NOTHING)
            return self._caller(0)[0]

        probe = self._probe(call)
        if probe.outputs is None and how == "rolled":
            self._content = "scaled"
        return Fresh(how=f"{group} {how}", names=names, outputs=probe.outputs, why=probe.why)

    def _change(self, held: list[Held], turn: int) -> int:
        declared = {h.name for h in held if h.role == "declared"}
        mine = [h.tensor for h in held if h.name in declared]
        others = [h.tensor for h in held if h.name not in declared]
        count = self._perturb(mine, self._content, turn, ints=True)
        return count + self._perturb(others, self._content, turn)

    def _perturb(self, tensors: Sequence[torch.Tensor], how: How, *args: Any, **kw: bool) -> int:
        for tensor in tensors:
            self._keeping.touch(tensor)
        return perturb(tensors, how, *args, **kw)

    def _content_of(self, *roles: Any) -> list[Held]:
        return [
            held
            for held in self._keeping.reach.named(*roles)
            if self._keeping.knows(held.tensor)
            and can_be_perturbed(held.tensor, ints=held.role == "declared")
        ]

    def _rebuilt(self) -> Any:
        rebuild = self._caller.workload.rebuild
        assert rebuild is not None
        return Caller(rebuild(), self._caller.seed, self._caller.synchronize)(0)[0]

    def _probe(self, call: Callable[[], Any]) -> Probe:
        if self._stuck:
            return Probe(why=self._stuck)
        if not self._budget.allows(1):
            return Probe(why=self._budget.why())
        try:
            self._keeping.restore()
            value = call()
            outputs = value if isinstance(value, Outputs) else self._caller.copied(value)
            # One copy of what is the same, in memory and in the file it may travel in.
            same = same_outputs(outputs, self._first)
            return Probe(outputs=self._first if same else outputs)
        except Exception as error:
            return Probe(why=_words(error))
        finally:
            self._keeping.restore()


def _storages(tensors: Sequence[torch.Tensor]) -> int:
    return len({tensor.untyped_storage()._cdata for tensor in tensors})


_NOTHING = "no tensor that could hold its input can be reached from the function"


def _words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    first = text[0][:200] if text else ""
    return first if isinstance(error, NothingToChange) else f"{type(error).__name__}: {first}"
