"""The backward captured as one graph and compiled, beside the compiled model."""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import bound
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit, Import, Top, Within
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.models import backward

FLAG = "torch._dynamo.config.compiled_autograd = True"
ENABLED = "torch._dynamo.compiled_autograd._enable(torch.compile)"
__all__ = ["FIX", "apply", "bound", "reason_to_skip", "source_edits"]
FIX = Fix(
    id="compiled-autograd",
    group="model",
    title="compiled autograd",
    alters="rounding",
    answers=("graph-breaks", "small-kernels"),
    together=("compile",),
    slow_start=True,
    longer=2,
    own_process=True,
    why="The whole backward becomes one graph, over the model's graph breaks, with the sums of "
    "gradients in it.",
    wrong_when="The backward differs from step to step: each is captured again.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.trains:
        return because(Skip.DOES_NOT_TRAIN)
    if ground.torch < (2, 6):
        return because(Skip.TORCH_LACKS, feature="complete compiled autograd")
    if ground.ranks > 1:
        return because(Skip.DDP_SENDS_IN_BACKWARD)
    return compiling.reason_to_skip(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    on: list[str] = []

    def prepare(model: Model) -> Reason | None:
        """Set the flag, which torch reads when it compiles a model, and capture every backward: the
        flag covers a compiled call alone, which the backward is not."""
        if not on:
            importlib.import_module("torch._dynamo").config.compiled_autograd = True
            autograd = torch.autograd
            autograd._engine_run_backward = captured(program, autograd._engine_run_backward, model)
            on.append(model.place)
            return because(Skip.NO_BACKWARD_CAPTURED)
        return None

    program.on_model(FIX.id, prepare)


def captured(program: Program, theirs: Any, model: Model) -> Any:
    """Return the function that runs a backward, with its graph captured."""
    enable = importlib.import_module("torch._dynamo.compiled_autograd")._enable
    counters = importlib.import_module("torch._dynamo.utils").counters
    place, compiler = model.place, program.torch.compile
    reported: list[bool] = []

    @functools.wraps(theirs)
    def run(*args: Any, **kwargs: Any) -> Any:
        with enable(compiler):
            found = theirs(*args, **kwargs)
        if not reported and counters["compiled_autograd"]["captures"]:
            reported.append(True)
            program.did(FIX.id, because(Done.BACKWARD_CAPTURED), place)
        return found

    return run


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why = "the whole backward is compiled as one graph"
    for file, line in applied.lines[:1]:
        lines = backward(source(file) or "", line)
        if isinstance(lines, Reason):
            raise EditByHand(ByHand.COMPILED_AUTOGRAD, cause=lines, flag=FLAG, header=ENABLED)
        return (
            Import(file=file, text="import torch._dynamo.compiled_autograd"),
            Top(file=file, where="after imports", text=FLAG, why=why),
            Within(file=file, first=lines[0], last=lines[1], header=ENABLED, why=why),
        )
    raise EditByHand(ByHand.COMPILED_AUTOGRAD, flag=FLAG, header=ENABLED)
