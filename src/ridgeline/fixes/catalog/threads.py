"""Sets how many threads an operator is divided over, on a CPU."""

import os
from collections.abc import Mapping

from ridgeline.fixes.fix import Fix
from ridgeline.fixes.program import Program
from ridgeline.machine.processor import usable_cores
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

FIX = Fix(
    id="threads",
    group="global",
    title="threads of an operator",
    alters="rounding",
    answers=("oversubscribed-cpu", "many-workers"),
    why="Too many threads wait for each other and for a core; too few leave cores idle. Sums are "
    "divided otherwise, and so rounded otherwise.",
    wrong_when="Other programs share the cores: what is best depends on them.",
    edit_why="measured on this machine: choose again on another",
)
VARIABLE = "OMP_NUM_THREADS"


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cpu":
        return because(Skip.NO_CPU_WORK)
    if ground.variables.get(VARIABLE):
        return because(Skip.SET_BY_ENVIRONMENT, variable=VARIABLE)
    return None if choices(ground) else because(Skip.ONE_CORE)


def bound(ground: Ground) -> float | None:
    """Return the bound if the work of a single thread, except the wait for input, is divided over
    all cores. Return None for several threads: they may hinder each other, and it is not known by
    how much."""
    if ground.flags.threads != 1:
        return None
    cores = max(ground.cores // max(ground.ranks, 1), 1)
    waits = min(ground.input_share, 1.0)
    return 1 / (waits + (1 - waits) / cores)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    """Return as many threads as cores; as many as the loader's workers leave; half (two threads of
    a core share its arithmetic); one, for small tensors."""
    cores = max(ground.cores // max(ground.ranks, 1), 1)
    workers = max((one.workers for one in ground.loaders), default=0)
    wanted = dict.fromkeys((cores, max(cores - workers, 1), max(cores // 2, 1), 1))
    return tuple({"threads": str(one)} for one in wanted if one != ground.flags.threads)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    asked = int(options.get("threads") or usable_cores())
    if os.environ.get(VARIABLE):
        program.found_nothing(FIX.id, because(Skip.SET_BY_ENVIRONMENT, variable=VARIABLE))
        return
    if torch.get_num_threads() == asked:
        program.found_nothing(FIX.id, because(Skip.ALREADY_SET, setting=f"{asked} threads"))
        return
    torch.set_num_threads(asked)

    def look() -> None:
        has = torch.get_num_threads()
        if has == asked:
            code = f"torch.set_num_threads({asked})"
            program.did(FIX.id, because(Done.SETTING, statement=code))
        else:
            program.found_nothing(FIX.id, because(Skip.PROGRAM_SETS, setting=f"{has} threads"))

    program.after_first_step(FIX.id, look)
