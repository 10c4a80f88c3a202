"""The batch in micro-batches whose gradients add up.

A loop that accumulates (smaller batches, the update at each k-th) cannot be had from outside and
stay the same program: its scheduler would step k times as often, clipping would cut part of a
gradient, a count of steps would end it early, and a loss over the batch would be one over a part.
So the model itself is called in parts: each part's activations are computed again in the backward,
the outputs are whole, and loss, clipping, schedule and update are the program's own.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.evidence import Evidence
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.rehearsal import rehearsed
from ridgeline.records.edit import Edit, Replace, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, parsed
from ridgeline.source.models import called
from ridgeline.units import percent

PARTS = (2, 4, 8, 16)
SAME, SAME_SMALL = 1e-3, 3e-2
"""Of the outputs' norm, in float32 (TF32 among it) and in 16 bits: products of fewer rows round
otherwise. What mixes samples is off by more."""
FIX = Fix(
    id="gradient-accumulation",
    group="loop",
    title="the batch in micro-batches, gradients accumulated",
    alters="rounding",
    slot="checkpoint",
    answers=("activation-peak",),
    saves="memory",
    why="The model takes a part of the batch at a time, and what a part keeps for the backward is "
    "computed again there: activations of one part instead of all, for a third more arithmetic. "
    "The loss is over the whole batch, as before.",
    wrong_when="Memory is not what limits the program. Samples meet inside the model (batch norm, "
    "contrastive losses), or it draws random numbers (dropout): then it is left as it is.",
)


def reason_to_skip(ground: Ground) -> str:
    if not ground.trains:
        return "nothing trains, so nothing is kept for a backward"
    return "" if choices(ground) else "a batch of one sample cannot be divided"


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    sizes = [one.batch_size for one in ground.loaders if one.batch_size is not None]
    most = max(sizes) if sizes else PARTS[-1]
    return tuple({"parts": str(number)} for number in PARTS if number <= most)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    parts = int(options.get("parts") or PARTS[0])

    def divide(model: Model) -> str:
        why = _against(torch, model, parts)
        if why:
            program.found_nothing(FIX.id, why)
            return ""
        around(model.inner, FIX.id, lambda forward: _divided(forward, parts))
        return f"{type(model.inner).__name__} called in {parts} parts of the batch"

    program.on_model(FIX.id, divide)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    kind, _, rest = applied.what.partition("; ")[0].partition(" called in ")
    parts = rest.partition(" ")[0]
    code = (Path(__file__).parents[1] / "in_parts.py").read_text(encoding="utf-8")
    body = re.sub(r"  # (type: ignore|fmt: skip).*", "", code.partition('"""\n\n')[2]).strip()
    why = "activations of a part of the batch at a time; gradients add up"
    edits: list[Edit] = []
    for file, line in at(applied):
        call = _call(source(file) or "", line, kind)
        if isinstance(call, str):
            raise EditByHand(
                f"{call}; call the model in parts: in_parts(model, x, parts={parts}), from "
                "ridgeline.fixes.in_parts"
            )
        before = ast.unparse(call)
        given = before[len(ast.unparse(call.func)) + 1 : -1]
        after = f"in_parts({ast.unparse(call.func)}, {given}, parts={parts})"
        edits.append(Top(file=file, where="after imports", text=body, why=why))
        edits.append(Replace(file=file, line=line, before=before, after=after, why=why))
    if not edits:
        raise EditByHand(f"call the model in parts: in_parts(model, x, parts={parts})")
    return tuple(dict.fromkeys(edits))


def _divided(forward: Forward, parts: int) -> Forward:
    from ridgeline.fixes.in_parts import in_parts

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return forward(self, *args, **kwargs)

        def whole(*some: Any, **named: Any) -> Any:
            return forward(self, *some, **named)

        return in_parts(whole, *args, parts=parts, **kwargs)

    return under


def _against(torch: Any, model: Model, parts: int) -> str:
    """Why it is left whole: seen in a call of the whole batch and one of its parts."""
    inner = model.inner
    if isinstance(inner, torch.jit.ScriptModule):
        return f"{type(inner).__name__} is TorchScript"
    norms = (torch.nn.modules.batchnorm._BatchNorm,)
    if any(isinstance(one, norms) and one.training for one in inner.modules()):
        return "a batch norm would see parts of a batch"
    given = (*model.args, *model.kwargs.values())
    if any(hasattr(one, "get_seq_length") for one in given):
        return "the model fills a cache as it runs"
    whole = rehearsed(torch, inner, model.args, model.kwargs)
    if whole.draws:
        return "the model draws random numbers (dropout): parts of a batch would draw others"
    if whole.writes:
        return "the model writes its buffers as it runs: each part would"
    from ridgeline.fixes.in_parts import in_parts

    first = next((one for one in given if isinstance(one, torch.Tensor) and one.dim()), None)
    if first is None or first.size(0) < parts:
        return f"its first tensor has no {parts} rows"
    evidence = Evidence(torch)
    evidence.add(whole.returned, _by_parts(torch, in_parts, model, parts))
    small = torch.is_autocast_enabled(model.device) or any(
        one.dtype in (torch.bfloat16, torch.float16) for one in inner.parameters()
    )
    if not evidence.error <= (SAME_SMALL if small else SAME):
        return f"in parts its outputs are off by {percent(evidence.error)}: samples meet in it"
    return ""


def _by_parts(torch: Any, in_parts: Any, model: Model, parts: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return rehearsed(torch, model.inner, args, kwargs).returned

    with torch.no_grad():
        return in_parts(call, *model.args, parts=parts, **model.kwargs)


def _call(text: str, line: int, kind: str) -> ast.Call | str:
    """Of the model, by its name, on that line."""
    where = called(text, line, kind)
    if isinstance(where, str):
        return where
    file = parsed(text)
    for call in file.calls_on_line(line) if file is not None else ():
        if dotted_name(call.func) == where.name and (call.args or call.keywords):
            return call
    return f"no call of {where.name} is on line {line}"
