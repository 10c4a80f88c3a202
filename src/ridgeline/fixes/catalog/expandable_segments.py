"""CUDA memory in segments that grow, so that gaps between blocks can be used."""

import os
from collections.abc import Mapping

from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

FIX = Fix(
    id="expandable-segments",
    group="global",
    title="expandable memory segments",
    alters="nothing",
    answers=("fragmentation",),
    saves="memory",
    own_process=True,
    why="The allocator maps pages behind one long address range instead of asking for blocks of "
    "fixed size: sizes that change leave no gaps.",
    wrong_when="Tensors are shared with other processes over CUDA IPC, or the driver maps no "
    "memory by pages (Windows, some virtual machines).",
)
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
KEY = "expandable_segments"
ON = f"{KEY}:True"


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    return _obstacle(ground.variables)


def variables(environment: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Return the option added to those that are set. torch reads the newer name if both are set."""
    if _obstacle(environment):
        return {}
    name = NEW if environment.get(NEW) else OLD
    before = environment.get(name, "").strip().strip(",")
    return {name: f"{before},{ON}" if before else ON}


def apply(program: Program, options: Mapping[str, str]) -> None:
    if program.device != "cuda":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return
    name = _set_in(os.environ)
    if not name:
        program.found_nothing(FIX.id, because(Skip.VARIABLE_NOT_SET, variable=OLD))
        return

    def look() -> None:
        if _set_in(os.environ) == name:
            program.did(FIX.id, because(Done.VARIABLE, variable=name, value=os.environ[name]))
        else:
            program.found_nothing(FIX.id, because(Skip.PROGRAM_SETS, setting=OLD))

    program.after_first_step(FIX.id, look)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    facts = applied.targets[0].done.facts
    return (
        Top(
            file="", where="start",
            text=f'import os\n\nos.environ["{facts["variable"]}"] = "{facts["value"]}"',
            why="segments grow, so that sizes that change leave no gaps",
        ),
    )  # fmt: skip


def _obstacle(environment: Mapping[str, str]) -> Reason | None:
    options = ",".join(environment.get(name, "") for name in (NEW, OLD))
    if KEY in options:
        return because(Skip.SET_BY_ENVIRONMENT, variable=KEY)
    other = "cudaMallocAsync" in options
    return because(Skip.OTHER_ALLOCATOR, allocator="cudaMallocAsync") if other else None


def _set_in(environment: Mapping[str, str]) -> str:
    return next((name for name in (NEW, OLD) if ON in environment.get(name, "")), "")
