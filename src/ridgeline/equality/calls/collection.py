"""Collects evidence of what one workload computes, in the process that holds it.

First come the check calls. Nothing runs the workload before the first of them, so that is its cold
call. The calls that show how it behaves follow, each from the same state. At the end tensors,
gradients, optimizers and random number generators are as they were before.
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
    generator_fingerprint,
    preserve_generators,
    uncompiled,
    wait_for_devices,
    watch_graphs,
    watch_threads,
)
from ridgeline.equality.calls.evidence import Evidence, Fresh, HeldTensor, Probe, Reference, Work
from ridgeline.equality.calls.held_state import Changed, Held, SavedState, reachable
from ridgeline.equality.calls.judge import distance, same_leaf, same_outputs
from ridgeline.equality.calls.outputs import ElementBudget, Leaf, Outputs, leaf_of, live_tensors
from ridgeline.equality.calls.perturb import How, blocks_of, can_be_perturbed, perturb, poison
from ridgeline.equality.calls.reference import count_distinct_calls, reference_of
from ridgeline.harness.usercode.workload import Workload

__all__ = ["Evidence", "collect", "load_evidence", "save_evidence"]

BUDGET_S = 20.0
"""Time limit for the calls after the check calls: about thirty, fewer if a call is long."""


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
    """Run the workload and record what it does. `like` is the baseline's evidence, if available:
    its output sizes say which freed memory to spoil before the first call.

    An exception in a check call is passed on; one in any other call becomes the recorded reason why
    something was not examined."""
    caller = Caller(workload, seed, synchronize or wait_for_devices)
    with preserve_generators():
        saved = SavedState(workload)
        try:
            checked = _check_calls(caller, saved, calls, like)
            state = saved.changed(workload, ElementBudget())
            return _collect_evidence(caller, saved, checked, state, as_baseline, budget_s)
        finally:
            saved.restore(everything=True)


def save_evidence(evidence: Evidence, path: Path) -> None:
    torch.save(evidence, path)


def load_evidence(path: Path) -> Evidence:
    """Load what `save_evidence` wrote. The file is our own, so it may contain our classes."""
    loaded: Evidence = torch.load(path, weights_only=False)
    return loaded


class _CheckCalls(Struct):
    outputs: list[Outputs] = []
    call_ns: list[float] = []
    generator_states: list[str] = []
    overwritten: dict[str, None] = {}
    threads: list[str] = []
    poisoned: int = 0
    notes: list[str] = []


def _collect_evidence(
    caller: Caller,
    saved: SavedState,
    checked: _CheckCalls,
    state: tuple[Changed, ...],
    as_baseline: bool,
    budget_s: float,
) -> Evidence:
    """Make the calls after the check calls and return all evidence."""
    workload, calls = caller.workload, len(checked.outputs)
    began = perf_counter_ns()
    saved.restore()
    each_ns = median(checked.call_ns[1:] or checked.call_ns) + perf_counter_ns() - began
    budget = Budget(budget_s, each_ns)
    prober = Prober(caller, saved, checked.outputs[0], state, budget)
    plain = count_distinct_calls(checked.outputs, state) == 1
    # All check calls, with as many seeds, gave the same result: a repeat would too.
    known = Probe(outputs=checked.outputs[0]) if plain and calls > 1 else None
    repeat = known or prober.repeat()
    scratch, influential = prober.scratch(repeat)
    nudged, nudged_state = prober.nudged(calls) if as_baseline else (Probe(), ())
    spread = prober.spread(repeat) if as_baseline else None
    # The reference comes before the guards' calls: it is worth more if time is short.
    reference = Reference(why_not="only the baseline needs one")
    if as_baseline:
        reference = _reference(caller, saved, checked.outputs, state, budget)
    return Evidence(
        name=workload.name,
        seed=caller.seed,
        outputs=tuple(checked.outputs),
        call_ns=tuple(checked.call_ns),
        generator_states=tuple(checked.generator_states),
        state=state,
        held=tuple(_held_tensors(saved)),
        unread=tuple(saved.reach.unread),
        overwritten=tuple(checked.overwritten),
        threads=tuple(checked.threads),
        poisoned=checked.poisoned,
        repeat=repeat,
        other_seed=known or prober.other_seed(),
        nudged=nudged,
        nudged_state=nudged_state,
        spread=spread,
        caches=tuple(saved.made),
        scratch=scratch,
        influential=influential,
        fresh=tuple(prober.fresh()),
        reference=reference,
        **prober.work(),
        **prober.timing(),
        notes=tuple(checked.notes),
    )


def _check_calls(
    caller: Caller, saved: SavedState, calls: int, like: Evidence | None
) -> _CheckCalls:
    checked = _CheckCalls()
    last: Any = None
    with watch_graphs() as graphs, watch_threads() as threads:
        for turn in range(calls):
            blocks = blocks_of((*(like.outputs[:1] if like else ()), *checked.outputs[-1:]))
            checked.poisoned += poison(blocks) > 0
            value, took = caller(turn)
            checked.call_ns.append(took)
            checked.generator_states.append(generator_fingerprint())
            outputs = caller.copy_outputs(value)
            same = checked.outputs and same_outputs(outputs, checked.outputs[0])
            checked.outputs.append(checked.outputs[0] if same else outputs)
            if last is not None:
                overwritten = _written_over(caller, last, value, checked.outputs[-2])
                checked.overwritten |= dict.fromkeys(overwritten)
            last = (value,)
    checked.threads += threads
    saved.graphs_captured = "capture_begin" in graphs
    if any(not outputs.whole for outputs in checked.outputs):
        checked.notes.append("outputs of over 64 MiB are compared by a sample of their elements")
    return checked


def _written_over(caller: Caller, last: tuple[Any], value: Any, copied: Outputs) -> list[str]:
    """Return outputs of the previous call that changed or share memory with new ones."""
    paths = []
    try:
        new = {t.untyped_storage().data_ptr() for _, t in live_tensors(value) if _has_memory(t)}
        before = {leaf.path: leaf for leaf in copied.leaves}
        again = {leaf.path: leaf for leaf in caller.copy_outputs(last[0]).leaves}
        for path, tensor in live_tensors(last[0]):
            shared = _has_memory(tensor) and tensor.untyped_storage().data_ptr() in new
            if shared or not same_leaf(before[path], again[path]):
                paths.append(path or "the output")
    except RuntimeError:  # torch's own CUDA graphs refuse access to an output of the call before
        paths.append("the output")
    return paths


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0


def _held_tensors(saved: SavedState) -> list[HeldTensor]:
    return [
        HeldTensor(name=k.name, role=k.role, shape=k.shape, dtype=k.dtype, digest=k.digest)
        for k in saved.contents.values()
    ]


def _reference(
    caller: Caller, saved: SavedState, outputs: list[Outputs], state: Any, budget: Any
) -> Reference:
    # float64 takes two to three times as long on a CPU, and longer on a GPU with few units for it.
    longer = 8 if torch.cuda.is_initialized() else 3
    if not budget.allows(longer * count_distinct_calls(outputs, state)):
        return Reference(why_not=budget.why())
    return reference_of(caller, saved, outputs, [changed.name for changed in state])


OTHER_SEED = 7919
TIMED_TURNS = 10
MAX_SCRATCH_TENSORS = 8
_UNSEEN_TURN = 2 * TIMED_TURNS
"""A turn whose values no other call gets."""


class NothingToChange(Exception):
    """No tensor could be given other values."""


class Budget:
    """Decides whether there is time for more calls."""

    def __init__(self, seconds: float, call_ns: float) -> None:
        self._until = perf_counter() + seconds
        self._call_s = call_ns / 1e9

    def allows(self, calls: float) -> bool:
        return perf_counter() + calls * self._call_s <= self._until

    def why(self) -> str:
        return f"a call takes {self._call_s:.2g} s, too long for more of them"


class Prober:
    """Makes calls under changed conditions, each from the same state, and restores that state."""

    def __init__(
        self,
        caller: Caller,
        saved: SavedState,
        first: Outputs,
        state: Sequence[Changed],
        budget: Budget,
    ) -> None:
        self._caller = caller
        self._saved = saved
        self._first = first
        self._state = state
        self._budget = budget
        self._content: How = "rolled"
        self._declared = self._content_of("declared")
        inputs = [*self._declared, *self._content_of("captured")]
        # Tensors that may hold input; weights if there are no others.
        self._every = inputs or self._content_of("parameter", "buffer")
        lost = [c.name for c in state if c.before is None]
        self._stuck = f"{lost[0]} changes and is too large to restore" if lost else ""

    def repeat(self) -> Probe:
        return self._probe(lambda: self._caller(0)[0])

    def other_seed(self) -> Probe:
        return self._probe(lambda: self._caller(OTHER_SEED)[0])

    def nudged(self, calls: int) -> tuple[Probe, tuple[Leaf, ...]]:
        """Return the first call's result on inputs moved by their rounding error, and the state
        that all calls leave behind then."""
        left: list[Leaf] = []

        def call() -> Outputs:
            if not self._perturb([held.tensor for held in self._every], "nudged"):
                raise NothingToChange("no tensor that could be perturbed can be reached from it")
            outputs = self._caller.copy_outputs(self._caller(0)[0])
            if self._state and self._budget.allows(calls):
                for turn in range(1, calls):
                    self._caller(turn)
                after = dict(reachable(self._caller.workload))
                left.extend(
                    leaf_of(c.name, after[c.name].detach(), ElementBudget()) for c in self._state
                )
            return outputs

        return self._probe(call), tuple(left)

    def spread(self, repeat: Probe) -> float | None:
        """Return how far repeats lie apart: 0 if they are bit-identical, None if not tried."""
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
                return 0.0  # it is repeatable; the calls changed state that cannot be seen
        return max(distance(self._first, outputs) for outputs in again)

    def scratch(self, repeat: Probe) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return, of the changed tensors, those that a call overwrites before it reads them, and
        those whose values influence its result. A tensor is in neither if that is unknown."""
        names = [c.name for c in self._state if c.role in ("captured", "buffer")]
        if not names or repeat.outputs is None or not same_outputs(repeat.outputs, self._first):
            return (), ()
        matters = self._influences(names)
        if matters is None or len(names) == 1:
            return (tuple(names), ()) if matters is False else ((), tuple(names) if matters else ())
        if not matters:
            return tuple(names), ()
        each = {name: self._influences([name]) for name in names[:MAX_SCRATCH_TENSORS]}
        return (
            tuple(name for name, matters in each.items() if matters is False),
            tuple(name for name, matters in each.items() if matters),
        )

    def _influences(self, names: list[str]) -> bool | None:
        """Return whether other values in these tensors change the result; None if unknown."""
        tensors = [held.tensor for held in self._saved.reach.held if held.name in names]
        if not tensors or not all(self._saved.has_copy(tensor) for tensor in tensors):
            return None

        def call() -> Any:
            changed = self._perturb(tensors, "rolled", roll_ints=True, roll_rows=True)
            if changed < _count_storages(tensors):
                raise NothingToChange("not every tensor can be given other values")
            return self._caller(0)[0]

        probe = self._probe(call)
        return None if probe.outputs is None else not same_outputs(probe.outputs, self._first)

    def fresh(self) -> Iterator[Fresh]:
        """Yield calls on other values: of the declared inputs, then of all tensors but weights."""
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
        """Count the work of a call on values it has just been called with, and on new values."""
        if self._stuck or not self._budget.allows(5):
            return {"work_why": self._stuck or self._budget.why()}
        counted: dict[str, Any] = {}
        try:
            self._saved.restore()
            self._caller(0)
            counted["work"] = count_work(self._caller, self._saved)
            if self._change(self._every, _UNSEEN_TURN):
                counted["work_fresh"] = count_work(self._caller, self._saved)
        except Exception as error:
            counted["work_why"] = _describe(error)
        finally:
            self._saved.restore()
        return counted

    def timing(self) -> dict[str, Any]:
        """Time single calls, alternating between new values and the same values again. Both follow
        a copy of as much memory, so that only the values differ."""
        held = self._every
        if self._stuck or not held or not self._budget.allows(2 * TIMED_TURNS + 2):
            why = self._stuck or ("" if held else _NO_INPUT) or self._budget.why()
            return {"timing_why": why}
        fresh, repeat = [], []
        copies = [held_.tensor.detach().clone() for held_ in held]
        try:
            self._saved.restore()
            self._caller(0)
            for turn in range(1, TIMED_TURNS + 1):  # it has seen the values of turn 0
                self._change(held, turn)
                fresh.append(self._caller(0)[1])
                perturb(copies, self._content, turn, roll_ints=True)
                repeat.append(self._caller(0)[1])
        except Exception as error:
            return {"timing_why": _describe(error)}
        finally:
            self._saved.restore()
        return {"fresh_ns": tuple(fresh), "repeat_ns": tuple(repeat)}

    def _fresh(self, group: str, held: list[Held], how: How) -> Fresh:
        names = tuple(h.name for h in held)

        def call() -> Any:
            if not self._perturb([h.tensor for h in held], how, roll_ints=group == "inputs"):
                raise NothingToChange(_NO_INPUT)
            return self._caller(0)[0]

        probe = self._probe(call)
        if probe.outputs is None and how == "rolled":
            self._content = "scaled"
        return Fresh(how=f"{group} {how}", names=names, outputs=probe.outputs, why=probe.why)

    def _change(self, held: list[Held], turn: int) -> int:
        declared = {h.name for h in held if h.role == "declared"}
        mine = [h.tensor for h in held if h.name in declared]
        others = [h.tensor for h in held if h.name not in declared]
        count = self._perturb(mine, self._content, turn, roll_ints=True)
        return count + self._perturb(others, self._content, turn)

    def _perturb(self, tensors: Sequence[torch.Tensor], how: How, *args: Any, **kw: bool) -> int:
        for tensor in tensors:
            self._saved.mark_changing(tensor)
        return perturb(tensors, how, *args, **kw)

    def _content_of(self, *roles: Any) -> list[Held]:
        return [
            held
            for held in self._saved.reach.named(*roles)
            if self._saved.has_copy(held.tensor)
            and can_be_perturbed(held.tensor, roll_ints=held.role == "declared")
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
            self._saved.restore()
            value = call()
            outputs = value if isinstance(value, Outputs) else self._caller.copy_outputs(value)
            # Equal results are stored once, in memory and in the file.
            same = same_outputs(outputs, self._first)
            return Probe(outputs=self._first if same else outputs)
        except Exception as error:
            return Probe(why=_describe(error))
        finally:
            self._saved.restore()


def _count_storages(tensors: Sequence[torch.Tensor]) -> int:
    return len({tensor.untyped_storage()._cdata for tensor in tensors})


_NO_INPUT = "no tensor that could hold its input can be reached from the function"


def _describe(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    first = text[0][:200] if text else ""
    return first if isinstance(error, NothingToChange) else f"{type(error).__name__}: {first}"


class _Reads(TorchDispatchMode):
    """Records how much of each tensor that existed before the call its largest reader reads: an
    embedding reads a few rows of its table, a product all of its weights."""

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


def count_work(caller: Caller, saved: SavedState) -> Work:
    """Count the work of one call, with compiled code run uncompiled."""
    modules, ledger = ModuleTracker(torch.nn.Module()), StorageLedger()
    mode = CostMode(modules, ledger)
    reads = _Reads({storage_key(held.tensor) for held in saved.reach.held})
    with (
        uncompiled(),
        silenced(),
        watch_graphs() as graphs,
        started_threads() as threads,
        modules,
        mode,
        reads,
    ):
        value, _ = caller(0)
    unseen = [*(["CUDA graphs"] if graphs else []), *(["Python threads"] if threads else [])]
    # Flex attention is counted as a full square; a block mask can skip as much as 7 of 8 blocks.
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
