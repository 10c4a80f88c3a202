"""The program on every core of the machine, where something held it to fewer."""

import functools
import os
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Made, Model, Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit, Import, Insert, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

FIX = Fix(
    id="affinity",
    group="global",
    title="every core of the machine",
    alters="nothing",
    answers=("affinity",),
    own_process=True,
    why="An affinity is inherited by each thread and worker: they take turns on its cores while "
    "others stand idle.",
    wrong_when="Those cores were given to the program on purpose, because others use the rest.",
)
BINDING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
SETTING = "os.sched_setaffinity(0, range(os.cpu_count() or 1))"


def reason_to_skip(ground: Ground) -> Reason | None:
    if "affinity" not in ground.findings:
        return because(Skip.NO_AFFINITY_LIMIT)
    if 0 < ground.processors <= ground.flags.allowed_cores:
        return because(Skip.EVERY_CORE_ALLOWED)
    return binding_variable(ground)


def binding_variable(ground: Ground) -> Reason | None:
    """Return the variable around the program that binds its threads, as a reason."""
    named = next((name for name in BINDING_VARIABLES if ground.variables.get(name)), "")
    return because(Skip.SET_BY_ENVIRONMENT, variable=named) if named else None


def apply(program: Program, options: Mapping[str, str]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        program.found_nothing(FIX.id, because(Skip.NO_AFFINITIES))
        return
    theirs, main = os.sched_setaffinity, os.getpid()
    program.found_nothing(FIX.id, because(Skip.EVERY_CORE_ALLOWED))

    def release(place: str = "") -> None:
        before, after = _release(theirs)
        if after > before:
            program.did(FIX.id, because(Done.CORES_FREED, before=before, after=after), place)

    @functools.wraps(theirs)
    def sched_setaffinity(pid: int, mask: Any) -> None:
        theirs(pid, mask)
        if pid in (0, main) and os.getpid() == main:  # a worker's own is the program's choice
            release(user_line())

    def at_loader(made: Made) -> None:
        release()

    def at_model(model: Model) -> None:
        release()

    release()
    os.sched_setaffinity = sched_setaffinity
    # A call that does not go through os (psutil, a library in C) is seen before workers start and
    # before the first step.
    program.on_loader(FIX.id, at_loader)
    program.on_model(FIX.id, at_model)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why = "all cores: threads and workers inherit it"
    if not applied.lines:
        top = Top(file="", where="after imports", text=SETTING, why=why)
        return Import(file="", text="import os"), top
    edits: list[Edit] = []
    for file, line in applied.lines:
        edits.append(Import(file=file, text="import os"))
        edits.append(Insert(file=file, line=line, where="after", text=SETTING, why=why))
    return tuple(edits)


def bind_threads(cores: Any, set_affinity: Any) -> None:
    """Let every thread of the process run on these cores: a thread that exists, such as one that a
    library started when it was imported, does not inherit them."""
    for thread in os.listdir("/proc/self/task"):
        try:
            set_affinity(int(thread), cores)
        except OSError:
            continue  # it has ended, or a container allows no more


def _release(set_affinity: Any) -> tuple[int, int]:
    """Return the number of allowed cores before and after."""
    before = len(os.sched_getaffinity(0))
    every = range(os.cpu_count() or 1)
    if before >= len(every):
        return before, before
    bind_threads(every, set_affinity)
    return before, len(os.sched_getaffinity(0))
