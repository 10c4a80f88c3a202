"""Memory that a step frees stays with the process, for the next step.

The C library gives large pieces back to the system as soon as they are freed, and what lies free at
the end of its heap. The next step asks for the same again, page by page, and each page is cleared
first. Measured on two cores, attention in bfloat16: 2,400 pages a step, and 14 ms where 10 will do.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

from ridgeline.fixes.fix import Fix, Source, speedup_without
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

FIX = Fix(
    id="kept-memory",
    group="global",
    title="freed memory kept for the next step",
    alters="nothing",
    own_process=True,
    why="The C library gives freed memory back to the system, and every step asks for it again, "
    "page by page, each cleared first. Told to keep it, a step finds the last one's.",
    wrong_when="The program needs much memory for a while and little afterwards, and others on the "
    "machine could use the rest; or another allocator is preloaded (jemalloc, tcmalloc), which "
    "has settings of its own.",
)
MMAP_MAX, TRIM_THRESHOLD = -4, -1
"""Options of mallopt: how many pieces may be mapped by themselves, and how much memory may lie free
at the end of the heap."""
MALLOC_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)  # fmt: skip
SETTING = f"""\
import ctypes
import sys

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):  # glibc
    ctypes.CDLL(None).mallopt({MMAP_MAX}, 0)  # M_MMAP_MAX: large pieces come from the heap, too
    ctypes.CDLL(None).mallopt({TRIM_THRESHOLD}, -1)  # M_TRIM_THRESHOLD: which never shrinks"""


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cpu":
        return because(Skip.NO_CPU_WORK)
    return _obstacle(ground.variables)


def bound(ground: Ground) -> float | None:
    """Return the bound if everything goes that the system does for the program in a step."""
    return speedup_without(ground.system_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    obstacle = _obstacle(os.environ) or (None if _glibc() else because(Skip.NOT_GLIBC))
    if obstacle is not None:
        program.found_nothing(FIX.id, obstacle)
        return
    library = ctypes.CDLL(None)
    if library.mallopt(MMAP_MAX, 0) and library.mallopt(TRIM_THRESHOLD, -1):
        code = "mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1)"
        program.did(FIX.id, because(Done.SETTING, statement=code))
    else:
        program.found_nothing(FIX.id, because(Skip.MALLOPT_REFUSED))


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return (
        Top(
            file="", where="start", text=SETTING,
            why="what a step frees is kept for the next one",
        ),
    )  # fmt: skip


def _glibc() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def _obstacle(environment: Mapping[str, str]) -> Reason | None:
    preloaded = environment.get("LD_PRELOAD", "")
    if "malloc" in preloaded:
        return because(Skip.OTHER_ALLOCATOR, allocator=os.path.basename(preloaded))
    named = next((name for name in MALLOC_VARIABLES if environment.get(name)), "")
    return because(Skip.SET_BY_ENVIRONMENT, variable=named) if named else None
