"""TF32 in float32 products."""

from collections.abc import Mapping

from ridgeline.fixes.fix import Fix, speedup_without
from ridgeline.fixes.precision import trains_in
from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

FIX = Fix(
    id="tf32",
    group="global",
    title="TF32 in float32 products",
    usual=True,
    little_beside=("autocast", "autocast-fp16"),
    alters="rounding",
    precision="tf32",
    answers=("tf32-off",),
    why="Tensor cores multiply float32 numbers with 10 bits of mantissa and add in float32.",
    wrong_when="The program needs float32's own precision in products: linear solvers, physics.",
    edit_why="tensor cores for float32 products",
)
SETTING = 'torch.set_float32_matmul_precision("high")'


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.capability < (8, 0):
        return because(Skip.GPU_LACKS, feature="TF32")
    if not trains_in(ground, "float32"):
        return because(Skip.NO_FLOAT32, model="the model")
    on = ground.flags.matmul_precision in ("high", "medium")
    return because(Skip.ALREADY_SET, setting="TF32") if on else None


def bound(ground: Ground) -> float | None:
    """Return the bound if products become sixteen times as fast. Datasheets have a factor of 8 (156
    against 19.5 TFLOP/s, A100), and the float32 kernel may be a poor one besides."""
    share = ground.products_share
    return speedup_without(15 / 16 * share if share is not None else None)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    if program.device != "cuda":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True

    def look() -> None:
        try:
            now = torch.get_float32_matmul_precision()
        except RuntimeError:  # set through torch's newer names, which do not mix with this one
            new = torch.backends.cuda.matmul.fp32_precision
            now = "high" if new == "tf32" else ""
        if now in ("high", "medium"):
            program.did(FIX.id, because(Done.SETTING, statement=SETTING))
        else:
            program.found_nothing(
                FIX.id,
                because(Skip.PROGRAM_SETS, setting=f"the precision of its products {now}".strip()),
            )

    program.after_first_step(FIX.id, look)
