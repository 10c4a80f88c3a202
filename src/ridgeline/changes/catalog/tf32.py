"""TF32 in float32 products."""

from collections.abc import Mapping

from ridgeline.changes.change import Change, Source
from ridgeline.changes.program import Program
from ridgeline.records.edit import Edit, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

CHANGE = Change(
    id="tf32",
    group="global",
    title="TF32 in float32 products",
    alters="rounding",
    precision="tf32",
    answers=("tf32-off",),
    why="Tensor cores multiply float32 numbers with 10 bits of mantissa and add in float32.",
    wrong_when="The program needs float32's own precision in products: linear solvers, physics.",
)
SETTING = 'torch.set_float32_matmul_precision("high")'


def able(ground: Ground) -> str:
    if ground.device != "cuda":
        return "a CPU has no TF32"
    if ground.capability < (8, 0):
        return "this GPU has no TF32"
    return "it is on already" if ground.flags.matmul_precision in ("high", "medium") else ""


def put_on(program: Program, options: Mapping[str, str]) -> None:
    program.torch.set_float32_matmul_precision("high")
    program.torch.backends.cudnn.allow_tf32 = True
    program.did(CHANGE.id, SETTING)


def written(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return (
        Top(file="", where="after imports", text=SETTING, why="tensor cores for float32 products"),
    )
