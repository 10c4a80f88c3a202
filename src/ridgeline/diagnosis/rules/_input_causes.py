"""Which rule speaks for a starved device: see `_input`."""

import re
from typing import Literal

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._input import Feeding
from ridgeline.diagnosis.rules._reading import reading_share
from ridgeline.diagnosis.rules._repeated import repeated_share
from ridgeline.diagnosis.rules._threads_set import threads_set

Speaker = Literal["loader-starves", "few-workers", "many-workers"]

FREE = 0.75
"""Processors not in use that one more worker can have; a worker needs one, less what it waits."""
WAITS = 0.5
"""Of a busy worker's time on a processor: below it, it waits for something else, and more of them
wait beside each other on the same processors."""
CROWD = 1.5
"""Threads that want to run for each processor, from which they are in each other's way."""
FULL = 0.9
"""Of the processors in use: none is idle."""
BESIDES = 4
"""Threads of a worker without a pool: its own, one that feeds its queue, one that watches its
parent, a sampler of ours. Seen with torch 2.13: 3 or 4."""
_WAITING = re.compile(
    r"sleep|read|recv|request|urlopen|download|get_object|open\(|fetch|connect|select|poll|wait",
    re.IGNORECASE,
)
EXPLAINED = 0.5
"""Of the making of a batch: from here on the rule that names it comes first."""


def speaker(case: Case, fed: Feeding) -> Speaker:
    if not fed.workers or fed.plain:
        return "loader-starves"
    if worker_threads(case) > 1 and crowded(case, fed.workers):
        return "many-workers"
    enough = fed.needed is None or fed.needed > fed.workers
    return "few-workers" if enough and room(case, fed) else "loader-starves"


def explained(case: Case, fed: Feeding) -> bool:
    """Whether small-files or repeated-decoding names the reason."""
    return max(reading_share(case), repeated_share(case)) >= EXPLAINED


def room(case: Case, fed: Feeding) -> bool:
    """Whether one more worker would find a processor, or needs none."""
    on_processor = worker_load(case, fed)
    if waits(case, fed):
        return True
    idle = idle_cores(case)
    return idle is not None and idle >= FREE * (on_processor if on_processor is not None else 1.0)


def waits(case: Case, fed: Feeding) -> bool:
    """Whether workers wait for something that is no processor. Where those are all in use, only
    what the costliest line calls can tell."""
    load, used = worker_load(case, fed), in_use(case)
    if load is None or load >= WAITS:
        return False
    if used is not None and used < FULL * cores_of(case) and not case.telemetered.crowded:
        return True
    line = fed.line
    return line is not None and bool(_WAITING.search(f"{line.source} {line.calls}"))


def crowded(case: Case, workers: int | None) -> bool:
    """Whether workers, or their threads, take each other's processors."""
    cores = cores_of(case)
    if not cores or not workers:
        return False
    full = in_use(case)
    return full is not None and full >= FULL * cores and running(case, workers) > CROWD * cores


def running(case: Case, workers: int) -> float:
    """Threads that want a processor: those of a worker's pool count, its feeder threads do not."""
    return workers * max(worker_threads(case), 1)


def worker_threads(case: Case) -> int:
    """Of one worker, those of its pools; 1: it has none. As counted by the system, or as its
    `worker_init_fn` sets them."""
    seen = [p.threads for look in case.telemetry for p in look.processes if p.worker and p.threads]
    usual = sorted(seen)[len(seen) // 2] if seen else 0
    counted = usual - BESIDES if usual > BESIDES + 1 else 1
    said = threads_set(case)
    return max(counted, said.number if said is not None and said.in_workers else 1)


def worker_load(case: Case, fed: Feeding) -> float | None:
    """Processor time of a worker while it makes a batch, of that time; None: not known."""
    used = case.telemetered.worker_cores
    view = case.python
    if used is None or not fed.workers:
        return None
    busy = 1.0
    if view is not None and view.worker_samples:
        busy = max(1 - view.worker_idle_samples / view.worker_samples, 0.05)
    return used / (fed.workers * busy)


def cores_of(case: Case) -> int:
    return case.run.environment.cores if case.run is not None else 0


def in_use(case: Case) -> float | None:
    """Processors in use by the program, its workers and others."""
    seen = case.telemetered
    if seen.program_cores is None and seen.worker_cores is None:
        return None
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0) + (seen.other_cores or 0.0)


def idle_cores(case: Case) -> float | None:
    used, cores = in_use(case), cores_of(case)
    return max(cores - used, 0.0) if used is not None and cores else None
