"""Evidence of what one workload computes, collected in the process that holds it.

First the check calls: nothing runs the workload before the first of them, which is therefore its
cold call. Then, from the same state each time, the calls that tell how it behaves. Afterwards
tensors, gradients, optimizers and random numbers are as they were.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import torch
from msgspec import Struct
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.cost.counting.counter import CostMode, ModuleTracker
from ridgeline.cost.counting.ledger import StorageLedger
from ridgeline.cost.counting.operands import (
    moved_bytes,
    nested_tensors,
    operator_name,
    storage_key,
    stored_bytes,
    stored_parts,
)
from ridgeline.cost.counting.operands import reachable_tensors as tensors_in
from ridgeline.cost.counting.passes import silenced, started_threads
from ridgeline.equality.calls.calling import (
    Caller,
    Synchronize,
    as_written,
    drawn,
    graphs_noticed,
    threads_left,
    undisturbed,
    wait_for_devices,
)
from ridgeline.equality.calls.evidence import Evidence, Fresh, Probe, Reference, Seen, Work
from ridgeline.equality.calls.held_state import Changed, Held, Keeping, reachable
from ridgeline.equality.calls.judge import distance, same_leaf, same_outputs
from ridgeline.equality.calls.outputs import Leaf, Outputs, Room, leaf_of, live_tensors
from ridgeline.equality.calls.perturb import How, blocks_of, can_be_perturbed, perturb, poison
from ridgeline.equality.calls.reference import distinct, reference_of
from ridgeline.harness.usercode.workload import Workload

__all__ = ["Evidence", "collect", "load_evidence", "save_evidence"]

BUDGET_S = 20.0
"""For the calls after the check calls: some thirty of them, fewer where a call is long."""


def collect(
    workload: Workload,
    *,
    seed: int,
    calls: int = 3,
    as_baseline: bool,
    like: Evidence | None = None,
    synchronize: Synchronize | None = None,
    budget_s: float = BUDGET_S,
) -> Evidence:
    """Run the workload and write down what it does. `like` is the baseline's evidence where it is
    at hand: it says which sizes of freed memory to spoil before the first call.

    What the workload raises in a check call comes out unchanged; what goes wrong in any other call
    is written down as the reason why something was not looked for.
    """
    caller = Caller(workload, seed, synchronize or wait_for_devices)
    with undisturbed():
        keeping = Keeping(workload)
        try:
            checked = _check_calls(caller, keeping, calls, like)
            state = keeping.changed(workload, Room())
            return _looked_into(caller, keeping, checked, state, as_baseline, budget_s)
        finally:
            keeping.restore(everything=True)


def save_evidence(evidence: Evidence, path: Path) -> None:
    torch.save(evidence, path)


def load_evidence(path: Path) -> Evidence:
    """Evidence that `save_evidence` wrote: a file of our own, so it may hold our classes."""
    loaded: Evidence = torch.load(path, weights_only=False)
    return loaded


class _Checked(Struct):
    outputs: list[Outputs] = []
    call_ns: list[float] = []
    drawn: list[str] = []
    reused: dict[str, None] = {}
    threads: list[str] = []
    poisoned: int = 0
    notes: list[str] = []


def _looked_into(
    caller: Caller,
    keeping: Keeping,
    checked: _Checked,
    state: tuple[Changed, ...],
    as_baseline: bool,
    budget_s: float,
) -> Evidence:
    """All that the calls after the check calls can tell."""
    workload, calls = caller.workload, len(checked.outputs)
    began = perf_counter_ns()
    keeping.restore()
    each_ns = median(checked.call_ns[1:] or checked.call_ns) + perf_counter_ns() - began
    budget = Budget(budget_s, each_ns)
    probing = Probing(caller, keeping, checked.outputs[0], state, budget)
    plain = distinct(checked.outputs, state) == 1
    # Three seeds and three calls gave the same already.
    known = Probe(outputs=checked.outputs[0]) if plain and calls > 1 else None
    repeat = known or probing.repeat()
    scratch, heeded = probing.scratch(repeat)
    nudged, nudged_state = probing.nudged(calls) if as_baseline else (Probe(), ())
    spread = probing.spread(repeat) if as_baseline else None
    # Before the guards' calls: it is worth more than they are where time is short.
    reference = Reference(why_not="the baseline's will do")
    if as_baseline:
        reference = _reference(caller, keeping, checked.outputs, state, budget)
    return Evidence(
        name=workload.name,
        seed=caller.seed,
        outputs=tuple(checked.outputs),
        call_ns=tuple(checked.call_ns),
        drawn=tuple(checked.drawn),
        state=state,
        seen=tuple(_seen(keeping)),
        unread=tuple(keeping.reach.unread),
        reused=tuple(checked.reused),
        threads=tuple(checked.threads),
        poisoned=checked.poisoned,
        repeat=repeat,
        other_seed=known or probing.other_seed(),
        nudged=nudged,
        nudged_state=nudged_state,
        spread=spread,
        made=tuple(keeping.made),
        scratch=scratch,
        heeded=heeded,
        fresh=tuple(probing.fresh()),
        reference=reference,
        **probing.work(),
        **probing.timing(),
        notes=tuple(checked.notes),
    )


def _check_calls(caller: Caller, keeping: Keeping, calls: int, like: Evidence | None) -> _Checked:
    checked = _Checked()
    last: Any = None
    with graphs_noticed() as graphs, threads_left() as threads:
        for turn in range(calls):
            blocks = blocks_of((*(like.outputs[:1] if like else ()), *checked.outputs[-1:]))
            checked.poisoned += poison(blocks) > 0
            value, took = caller(turn)
            checked.call_ns.append(took)
            checked.drawn.append(drawn())
            outputs = caller.copied(value)
            same = checked.outputs and same_outputs(outputs, checked.outputs[0])
            checked.outputs.append(checked.outputs[0] if same else outputs)
            if last is not None:
                again = _written_over(caller, last, value, checked.outputs[-2])
                checked.reused |= dict.fromkeys(again)
            last = (value,)
    checked.threads += threads
    keeping.graphs_captured = "capture_begin" in graphs
    if any(not outputs.whole for outputs in checked.outputs):
        checked.notes.append("outputs of over 64 MiB are compared by a sample of their elements")
    return checked


def _written_over(caller: Caller, last: tuple[Any], value: Any, copied: Outputs) -> list[str]:
    """Outputs of the call before, still held, that share memory with the new ones or changed."""
    found = []
    try:
        new = {t.untyped_storage().data_ptr() for _, t in live_tensors(value) if _has_memory(t)}
        before = {leaf.path: leaf for leaf in copied.leaves}
        again = {leaf.path: leaf for leaf in caller.copied(last[0]).leaves}
        for path, tensor in live_tensors(last[0]):
            shared = _has_memory(tensor) and tensor.untyped_storage().data_ptr() in new
            if shared or not same_leaf(before[path], again[path]):
                found.append(path or "the output")
    except RuntimeError:  # torch's own CUDA graphs refuse to show an output of the call before
        found.append("the output")
    return found


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0


def _seen(keeping: Keeping) -> list[Seen]:
    return [
        Seen(name=k.name, role=k.role, shape=k.shape, dtype=k.dtype, digest=k.digest)
        for k in keeping.known.values()
    ]


def _reference(
    caller: Caller, keeping: Keeping, outputs: list[Outputs], state: Any, budget: Any
) -> Reference:
    # float64 takes two to three times as long on a CPU; a GPU may have few units for it.
    longer = 8 if torch.cuda.is_initialized() else 3
    if not budget.allows(longer * distinct(outputs, state)):
        return Reference(why_not=budget.why())
    return reference_of(caller, keeping, outputs, [changed.name for changed in state])


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


class _Reads(TorchDispatchMode):
    """How much of each tensor that was there before the call the largest single reader of it
    reads: an embedding reads a few rows of its table, a product all of its weights."""

    supports_higher_order_operators = True

    def __init__(self, there: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there = there
        self.bytes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with contextlib.suppress(Exception):
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        inputs = [p for t in nested_tensors((args, kwargs)) for p in stored_parts(t)]
        inputs = [t for t in inputs if storage_key(t) in self._there]
        if not inputs:
            return
        name = operator_name(func)
        if "index" in name or "gather" in name or "embedding" in name:
            return
        moved = moved_bytes(func, name, args, kwargs, out, None)
        for tensor in inputs:
            key = storage_key(tensor)
            shown = min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
            self.bytes[key] = max(self.bytes.get(key, 0), min(shown, moved))


def count_work(caller: Caller, keeping: Keeping) -> Work:
    """One call, compiled code run as it was written."""
    modules, ledger = ModuleTracker(torch.nn.Module()), StorageLedger()
    mode = CostMode(modules, ledger)
    reads = _Reads({storage_key(held.tensor) for held in keeping.reach.held})
    with (
        as_written(),
        silenced(),
        graphs_noticed() as graphs,
        started_threads() as threads,
        modules,
        mode,
        reads,
    ):
        value, _ = caller(0)
    unseen = [*(["CUDA graphs"] if graphs else []), *(["Python threads"] if threads else [])]
    # Counted as a full square; a block mask leaves out what its data says, 7 of 8 blocks at times.
    if any("flex_attention" in site.op for site in mode.tallies):
        unseen.append("flex attention")
    flops: dict[str, int] = {}
    convolution: dict[str, int] = {}
    for site, tally in mode.tallies.items():
        counted = convolution if "conv" in site.op else flops
        done = max(tally.flops - tally.skipped_flops, 0)
        if done:
            counted[site.dtype] = counted.get(site.dtype, 0) + done
    own = [t for t in tensors_in(value) if storage_key(t) not in reads.bytes]
    return Work(
        flops=flops,
        convolution_flops=convolution,
        all_flops=sum(tally.all_flops for tally in mode.tallies.values()),
        bytes=sum(tally.bytes for tally in mode.tallies.values()),
        read_bytes=sum(reads.bytes.values()),
        written_bytes=stored_bytes(*own) if own else 0,
        unseen=tuple(unseen),
    )
