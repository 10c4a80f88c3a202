"""More threads than cores: they take turns, and wait for each other at the end of each operator."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._machine import (
    FULL,
    below_ceilings,
    cores,
    host_use,
    own_calls,
    place_of_call,
    ranks_here,
    used_cores,
)
from ridgeline.diagnose.source.calls import SourceCall
from ridgeline.records.finding import Confidence, Evidence, Finding

OVER = 1.5
"""Threads for each core: one more than there are cores is what a worker or a copy thread is."""
LEAST = 0.02
_SETTERS = ("set_num_threads", "threadpool_limits")

RULE = Rule(
    id="oversubscribed-cpu",
    family="machine",
    title="More threads than cores",
    budget="work",
    needs=("timed", "telemetry"),
    looks_at="Threads torch uses inside operators, times the ranks on this machine, against the "
    "cores the program may use; and whether all cores are full. Threads of DataLoader workers are "
    "looked at by many-workers.",
    threshold="1.5 threads for each core, with 85 % of all cores in use. Below that nobody waits, "
    "however many threads there are.",
    why="A parallel operator is over when its slowest thread is. With more threads than cores some "
    "of them are not running, and the others wait for them, spinning: they take the time the "
    "missing ones need. Two ranks on one machine, each with a thread for every core, can be ten "
    "times slower than with half of them each.",
    fix="A thread for each core, shared between the ranks; one in each DataLoader worker:\n\n"
    "```python\n"
    "torch.set_num_threads(max(1, os.cpu_count() // int(os.environ['LOCAL_WORLD_SIZE'])))\n"
    "```\n\n"
    "or from outside, before the program starts:\n\n"
    "```sh\n"
    "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 train.py\n"
    "```",
    wrong_when="Threads that mostly wait for storage or the network cost nothing. The bound takes "
    "the operators to reach the machine's measured ceilings with as many threads as cores; they "
    "may be slow for other reasons too.",
)


def look(case: Case) -> Iterator[Finding]:
    allowed = cores(case)
    ranks = ranks_here(case)
    if case.on_gpu or not allowed or not _full(case, allowed, ranks):
        return
    threads = case.capture.flags.threads if case.capture is not None else 0
    if threads > 1 and threads * ranks >= OVER * allowed:
        yield from _operators(case, threads, ranks, allowed)


def _full(case: Case, allowed: int, ranks: int) -> bool:
    """All processors of the machine, or the part of them the program may use."""
    own = used_cores(case) * ranks  # telemetry is this rank's
    return (host_use(case) or 0.0) >= FULL or own >= FULL * allowed


def _operators(case: Case, threads: int, ranks: int, allowed: int) -> Iterator[Finding]:
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
    level: Confidence = "high" if ranks > 1 or call is not None else "medium"
    yield found(
        RULE,
        claim=f"{who} share {units.plural(allowed, 'core')} and wait for each other",
        share=share,
        confidence="medium" if crowded else level,
        place=place_of_call(call),
        evidence=said,
        change=_change(call, each, ranks),
        doubt="other programs take cores too" if crowded else "",
    )


def _slow(case: Case, threads: int, allowed: int) -> float:
    """Without ceilings: as if each thread had its core."""
    lost = below_ceilings(case)
    return lost if lost is not None else 1 - allowed / threads


def _change(call: SourceCall | None, each: int, ranks: int) -> str:
    shared = f"  # {ranks} ranks on this machine" if ranks > 1 else ""
    if call is not None and call.name == "set_num_threads":
        return f"{call.on + '.' if call.on else ''}set_num_threads({each}){shared}"
    return f"torch.set_num_threads({each}){shared}\n# or, from outside: OMP_NUM_THREADS={each}"
