"""CUDA memory in segments that grow, so that gaps between blocks can be used."""

import os
from collections.abc import Mapping

from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="expandable-segments",
    group="global",
    title="expandable memory segments",
    alters="nothing",
    answers=("fragmentation",),
    saves="memory",
    why="The allocator maps pages behind one long address range instead of asking for blocks of "
    "fixed size: sizes that change leave no gaps.",
    wrong_when="Tensors are shared with other processes over CUDA IPC, or the driver maps no "
    "memory by pages (Windows, some virtual machines).",
)
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
KEY = "expandable_segments"
ON = f"{KEY}:True"


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "it is an option of the GPU's allocator"
    return _against(ground.variables)


def variables(environment: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Added to what is set: torch reads the newer name where both are there."""
    if _against(environment):
        return {}
    name = NEW if environment.get(NEW) else OLD
    before = environment.get(name, "").strip().strip(",")
    return {name: f"{before},{ON}" if before else ON}


def apply(program: Program, options: Mapping[str, str]) -> None:
    if program.device != "cuda":
        program.found_nothing(FIX.id, "there is no GPU")
        return
    name = _set_in(os.environ)
    if not name:
        program.found_nothing(FIX.id, f"{OLD} was not set when the program began")
        return

    def look() -> None:
        if _set_in(os.environ) == name:
            program.did(FIX.id, f"{name}={os.environ[name]}")
        else:
            program.found_nothing(FIX.id, f"the program sets {OLD} itself")

    program.after_first_step(FIX.id, look)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    name, _, value = applied.what.partition("=")
    return (
        Top(
            file="", where="start",
            text=f'import os\n\nos.environ["{name}"] = "{value}"',
            why="segments grow, so that sizes that change leave no gaps",
        ),
    )  # fmt: skip


def _against(environment: Mapping[str, str]) -> str:
    told = ",".join(environment.get(name, "") for name in (NEW, OLD))
    if KEY in told:
        return f"the environment sets {KEY} already"
    return "the environment chooses CUDA's own allocator" if "cudaMallocAsync" in told else ""


def _set_in(environment: Mapping[str, str]) -> str:
    return next((name for name in (NEW, OLD) if ON in environment.get(name, "")), "")
