"""The backward captured as one graph and compiled, beside the compiled model."""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import compiling
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit, Import, Top, Within
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.models import backward

FLAG = "torch._dynamo.config.compiled_autograd = True"
ENABLED = "torch._dynamo.compiled_autograd._enable(torch.compile)"
FIX = Fix(
    id="compiled-autograd",
    group="model",
    title="compiled autograd",
    alters="rounding",
    answers=("graph-breaks", "small-kernels"),
    together=("compile",),
    slow_start=True,
    longer=2,
    why="The whole backward becomes one graph, over the model's graph breaks, with the sums of "
    "gradients in it.",
    wrong_when="The backward differs from step to step: each is captured again.",
)


def reason_to_skip(ground: Ground) -> str:
    if not ground.trains:
        return "nothing trains: there is no backward"
    if ground.torch < (2, 6):
        return "this version of torch has it in parts only"
    if ground.ranks > 1:
        return "DDP sends gradients from inside the backward"
    return compiling.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    on: list[str] = []

    def ready(model: Model) -> str:
        """The flag is read when a model is compiled, and covers its forward alone: torch enables
        it for the time of a compiled call, which the backward is not."""
        if not on:
            importlib.import_module("torch._dynamo").config.compiled_autograd = True
            autograd = torch.autograd
            autograd._engine_run_backward = captured(program, autograd._engine_run_backward, model)
            program.found_nothing(FIX.id, "no backward was captured")
            on.append(model.place)
        return ""

    program.on_model(FIX.id, ready)


def captured(program: Program, theirs: Any, model: Model) -> Any:
    """What runs a backward, with its graph captured."""
    enable = importlib.import_module("torch._dynamo.compiled_autograd")._enable
    counters = importlib.import_module("torch._dynamo.utils").counters
    place, compiler = model.place, program.torch.compile
    said: list[bool] = []

    @functools.wraps(theirs)
    def run(*args: Any, **kwargs: Any) -> Any:
        with enable(compiler):
            found = theirs(*args, **kwargs)
        if not said and counters["compiled_autograd"]["captures"]:
            said.append(True)
            program.did(FIX.id, "backward captured and compiled", place)
        return found

    return run


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    why = "the whole backward is compiled as one graph"
    for file, line in at(applied)[:1]:
        lines = backward(source(file) or "", line)
        if isinstance(lines, str):
            raise EditByHand(f"{lines}; write {FLAG}, and around the backward: with {ENABLED}:")
        return (
            Import(file=file, text="import torch._dynamo.compiled_autograd"),
            Top(file=file, where="after imports", text=FLAG, why=why),
            Within(file=file, first=lines[0], last=lines[1], header=ENABLED, why=why),
        )
    raise EditByHand(f"write {FLAG}, and around the backward: with {ENABLED}:")
