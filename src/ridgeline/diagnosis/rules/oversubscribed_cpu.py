"""More threads than cores: they take turns, and wait for each other at the end of each operator."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import (
    MIN_FULL_SHARE,
    below_ceilings,
    cores,
    host_use,
    ranks_here,
    used_cores,
)
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located_call, user_calls
from ridgeline.records.finding import Finding
from ridgeline.source.calls import SourceCall

MIN_THREADS_PER_CORE = 1.5
"""One thread more than there are cores is what a worker or a copy thread is."""
MIN_SHARE = 0.02
MAX_ATTAINED = 0.6
"""Share of the ceilings from which operators lose little to threads, however many there are. With a
thread for each core large products reach 0.74, the operators of an MLP of width 256 reach 0.43."""
MAX_ATTAINED_WITH_IDLE_CORES = 0.3
"""The same while cores stay idle: 24 threads on 2 cores that sleep while they wait for each other
reach 0.12, and leave a third of the cores' time unused."""
MIN_OWN_CORES = 1.2
"""Cores that the program itself uses, from which its operators do run on several threads. Small
operators run on one thread, whatever is set, and are below the ceilings for their size."""
_SETTERS = ("set_num_threads", "threadpool_limits")

RULE = Rule(id="oversubscribed-cpu", family="machine", budget="work", needs=("timed", "telemetry"))


def look(case: Case) -> Iterator[Finding]:
    allowed, ranks = cores(case), ranks_here(case)
    if case.on_gpu or not allowed:
        return
    # Telemetry is of this rank.
    own = used_cores(case) * ranks
    full = (host_use(case) or 0.0) >= MIN_FULL_SHARE or own >= MIN_FULL_SHARE * allowed
    threads = case.capture.flags.threads if case.capture is not None else 0
    crowd = threads > 1 and threads * ranks >= MIN_THREADS_PER_CORE * allowed
    if crowd and _held_up(case, full):
        yield from _operators(case, threads, ranks, allowed, full)


def _held_up(case: Case, full: bool) -> bool:
    """Return whether threads that wait for each other can be what takes the step's time."""
    attained = case.work.attained if case.work is not None else None
    if full:
        return attained is None or attained < MAX_ATTAINED
    several = (case.telemetered.program_cores or 0.0) > MIN_OWN_CORES
    return several and attained is not None and attained < MAX_ATTAINED_WITH_IDLE_CORES


def _operators(case: Case, threads: int, ranks: int, allowed: int, full: bool) -> Iterator[Finding]:
    lost = below_ceilings(case)
    # Without ceilings the gain is taken to be that of a core for each thread.
    share = lost if lost is not None else 1 - allowed / (threads * ranks)
    if share < MIN_SHARE:
        return
    call = next(iter(user_calls(case, _SETTERS)), None)
    each = max(allowed // ranks, 1)
    who = f"{ranks} ranks with {threads} threads each" if ranks > 1 else f"{threads} threads"
    number = f"{threads * ranks} for {units.plural(allowed, 'core')}"
    facts = [
        measured("threads", number, threads * ranks / allowed),
        measured("processors in use", units.percent(host_use(case) or 1.0), host_use(case)),
    ]
    if case.work is not None and case.work.attained is not None:
        reached = units.percent(case.work.attained)
        facts.append(measured("operators", f"at {reached} of their ceilings"))
    crowded = case.telemetered.crowded
    sure = full and not crowded and (ranks > 1 or call is not None)
    doubt = "other programs take cores too" if crowded else ""
    if not crowded and not full:
        doubt = "cores are idle part of the time: operators may be slow for their size"
    yield make_finding(
        RULE,
        claim=f"{who} share {units.plural(allowed, 'core')} and wait for each other",
        share=share,
        bound=_bound(case, share, ranks),
        confidence="high" if sure else "medium",
        place=located_call(case, call),
        evidence=facts,
        fix="threads",
        change=_change(call, each, ranks),
        doubt=doubt,
    )


def _bound(case: Case, share: float, ranks: int) -> float | None:
    """Return the bound. Tracing lengthens what is between operators, and so makes their part look
    smaller: of 24 threads on 2 cores they were 89 % of the traced step and 94 % of the untraced
    one, which became 4.9 × shorter. Ranks also wait for each other's tracing, and on a machine that
    others use lengths differ for that reason. There the share as traced gives the bound."""
    work = case.work
    if (
        ranks > 1
        or case.telemetered.crowded
        or work is None
        or work.attained is None
        or not case.step_ms
    ):
        return None
    untraced = min(work.operator_ms / case.step_ms, 1.0) * (1 - work.attained)
    return gain_without(max(share, untraced))


def _change(call: SourceCall | None, each: int, ranks: int) -> str:
    shared = f"  # {ranks} ranks on this machine" if ranks > 1 else ""
    if call is not None and call.name == "set_num_threads":
        return f"{call.on + '.' if call.on else ''}set_num_threads({each}){shared}"
    return f"torch.set_num_threads({each}){shared}\n# or, from outside: OMP_NUM_THREADS={each}"
