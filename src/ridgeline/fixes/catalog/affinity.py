"""The program on every core of the machine, where something held it to fewer."""

import functools
import os
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Made, Model, Program
from ridgeline.harness.capture.places import here
from ridgeline.records.edit import Edit, Import, Insert, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="affinity",
    group="global",
    title="every core of the machine",
    alters="nothing",
    answers=("affinity",),
    why="An affinity is inherited by each thread and worker: they take turns on its cores while "
    "others stand idle.",
    wrong_when="Those cores were given to the program on purpose, because others use the rest.",
)
BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
SETTING = "os.sched_setaffinity(0, range(os.cpu_count() or 1))"
NOT_HELD = "the program is held to no fewer cores than there are"


def reason_to_skip(ground: Ground) -> str:
    if "affinity" not in ground.findings:
        return "no affinity was found to hold the program back"
    if 0 < ground.processors <= ground.flags.allowed_cores:
        return NOT_HELD
    named = next((name for name in BINDING if ground.variables.get(name)), "")
    return f"{named} is set around the program: unset it there" if named else ""


def apply(program: Program, options: Mapping[str, str]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        program.found_nothing(FIX.id, "this system has no affinities")
        return
    theirs, main = os.sched_setaffinity, os.getpid()
    program.found_nothing(FIX.id, NOT_HELD)

    def release(place: str = "") -> None:
        before, after = _released(theirs)
        if after > before:
            program.did(FIX.id, f"{before} → {after} cores", place)

    @functools.wraps(theirs)
    def sched_setaffinity(pid: int, mask: Any) -> None:
        theirs(pid, mask)
        if pid in (0, main) and os.getpid() == main:  # a worker's own is the program's choice
            release(here())

    def at_loader(made: Made) -> str:
        release()
        return ""

    def at_model(model: Model) -> str:
        release()
        return ""

    release()
    os.sched_setaffinity = sched_setaffinity
    # What does not go through os (psutil, a library in C) is seen before workers are started and
    # before the first step.
    program.on_loader(FIX.id, at_loader)
    program.on_model(FIX.id, at_model)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why = "all cores: threads and workers inherit it"
    places = at(applied)
    if not places:
        top = Top(file="", where="after imports", text=SETTING, why=why)
        return Import(file="", text="import os"), top
    edits: list[Edit] = []
    for file, line in places:
        edits.append(Import(file=file, text="import os"))
        edits.append(Insert(file=file, line=line, where="after", text=SETTING, why=why))
    return tuple(edits)


def _released(set_to: Any) -> tuple[int, int]:
    """Cores before and after, of every thread there is: one that exists does not inherit."""
    before = len(os.sched_getaffinity(0))
    every = range(os.cpu_count() or 1)
    if before >= len(every):
        return before, before
    for thread in os.listdir("/proc/self/task"):
        try:
            set_to(int(thread), every)
        except OSError:
            continue  # it has ended, or a container allows no more
    return before, len(os.sched_getaffinity(0))
