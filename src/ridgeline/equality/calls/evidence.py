"""Evidence of what one workload computes, collected in the process that holds it.

First the check calls: nothing runs the workload before the first of them, which is therefore its
cold call. Then, from the same state each time, the calls that tell how it behaves. Afterwards
tensors, gradients, optimizers and random numbers are as they were.
"""

from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from msgspec import Struct

from ridgeline.equality.calls import probes
from ridgeline.equality.calls.calling import (
    Caller,
    Synchronize,
    graphs_noticed,
    threads_left,
    wait_for_devices,
)
from ridgeline.equality.calls.error import same_leaf, same_outputs
from ridgeline.equality.calls.keeping import Changed, Keeping
from ridgeline.equality.calls.leaf import Room
from ridgeline.equality.calls.observed import Evidence, Probe, Reference, Seen
from ridgeline.equality.calls.outputs import Outputs, live_tensors
from ridgeline.equality.calls.poison import blocks_of, poison
from ridgeline.equality.calls.randomness import drawn, undisturbed
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
    budget = probes.Budget(budget_s, each_ns)
    probing = probes.Probing(caller, keeping, checked.outputs[0], state, budget)
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
