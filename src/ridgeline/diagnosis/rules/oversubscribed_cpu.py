"""More threads than cores: they take turns, and wait for each other at the end of each operator."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE, Rule, make_finding
from ridgeline.diagnosis.rules._machine import (
    FULL,
    below_ceilings,
    cores,
    host_use,
    own_calls,
    place_of_call,
    ranks_here,
    used_cores,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.source.calls import SourceCall

OVER = 1.5
"""Threads for each core: one more than there are cores is what a worker or a copy thread is."""
LEAST = 0.02
REACHED = 0.6
"""Of the ceilings: operators that get so far lose little to threads, however many there are. With a
thread for each core large products reach 0.74, the operators of an MLP of width 256 0.43."""
FAR_BELOW = 0.3
"""Of the ceilings, where cores stay idle: 24 threads on 2 cores that sleep while they wait for each
other reach 0.12, and leave a third of the cores' time unused."""
SEVERAL = 1.2
"""Cores the program itself uses, from which its operators do run on several threads: small ones run
on one, whatever is set, and are below the ceilings for their size."""
_SETTERS = ("set_num_threads", "threadpool_limits")

RULE = Rule(id="oversubscribed-cpu", family="machine", budget="work", needs=("timed", "telemetry"))


def look(case: Case) -> Iterator[Finding]:
    allowed = cores(case)
    ranks = ranks_here(case)
    if case.on_gpu or not allowed:
        return
    full = _full(case, allowed, ranks)
    if not _held_up(case, full):
        return
    threads = case.capture.flags.threads if case.capture is not None else 0
    if threads > 1 and threads * ranks >= OVER * allowed:
        yield from _operators(case, threads, ranks, allowed, full)


def _held_up(case: Case, full: bool) -> bool:
    """Whether threads that wait for each other can be what the step's time is."""
    attained = case.work.attained if case.work is not None else None
    if full:
        return attained is None or attained < REACHED
    several = (case.telemetered.program_cores or 0.0) > SEVERAL
    return several and attained is not None and attained < FAR_BELOW


def _full(case: Case, allowed: int, ranks: int) -> bool:
    """All processors of the machine, or the part of them the program may use."""
    own = used_cores(case) * ranks  # telemetry is this rank's
    return (host_use(case) or 0.0) >= FULL or own >= FULL * allowed


def _operators(case: Case, threads: int, ranks: int, allowed: int, full: bool) -> Iterator[Finding]:
    share = _slow(case, threads * ranks, allowed)
    if share < LEAST:
        return
    call = next(own_calls(case, _SETTERS), None)
    each = max(allowed // ranks, 1)
    who = f"{ranks} ranks with {threads} threads each" if ranks > 1 else f"{threads} threads"
    said = [
        Evidence(
            what="threads",
            text=f"{threads * ranks} for {units.plural(allowed, 'core')}",
            value=threads * ranks / allowed,
        ),
        Evidence(
            what="processors in use",
            text=units.percent(host_use(case) or 1.0),
            value=host_use(case),
        ),
    ]
    if case.work is not None and case.work.attained is not None:
        reached = units.percent(case.work.attained)
        said.append(Evidence(what="operators", text=f"at {reached} of their ceilings"))
    crowded = case.telemetered.crowded
    sure = full and not crowded and (ranks > 1 or call is not None)
    level: Confidence = "high" if sure else "medium"
    yield make_finding(
        RULE,
        claim=f"{who} share {units.plural(allowed, 'core')} and wait for each other",
        share=share,
        bound=_bound(case, share, ranks),
        confidence=level,
        place=place_of_call(call),
        evidence=said,
        change=_change(call, each, ranks),
        doubt=_doubt(crowded, full),
    )


def _slow(case: Case, threads: int, allowed: int) -> float:
    """Without ceilings: as if each thread had its core."""
    lost = below_ceilings(case)
    return lost if lost is not None else 1 - allowed / threads


def _bound(case: Case, share: float, ranks: int) -> float | None:
    """Tracing lengthens what is between operators, and so makes their part look smaller: of 24
    threads on 2 cores they were 89 % of the traced step and 94 % of the untraced one, which became
    4.9 × shorter. Ranks also wait for each other's tracing, and on a machine others use lengths
    differ for their sake: there it is left as traced."""
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
    return 1 / (1 - min(max(share, untraced) * (1 + SHARE_TOLERANCE), MAX_SHARE))


def _doubt(crowded: bool, full: bool) -> str:
    if crowded:
        return "other programs take cores too"
    return "" if full else "cores are idle part of the time: operators may be slow for their size"


def _change(call: SourceCall | None, each: int, ranks: int) -> str:
    shared = f"  # {ranks} ranks on this machine" if ranks > 1 else ""
    if call is not None and call.name == "set_num_threads":
        return f"{call.on + '.' if call.on else ''}set_num_threads({each}){shared}"
    return f"torch.set_num_threads({each}){shared}\n# or, from outside: OMP_NUM_THREADS={each}"
