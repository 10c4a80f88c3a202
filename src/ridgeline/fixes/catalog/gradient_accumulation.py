"""The batch in micro-batches whose gradients add up.

A loop that accumulates (smaller batches, the update at each k-th) cannot be had from outside and
stay the same program: its scheduler would step k times as often, clipping would cut part of a
gradient, a count of steps would end it early, and a loss over the batch would be one over a part.
So the model itself is called in parts: each part's activations are computed again in the backward,
the outputs are whole, and loss, clipping, schedule and update are the program's own.
"""

import ast
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_edits import code_of
from ridgeline.fixes.model_forward import Forward, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.rehearsal import Evidence, rehearse
from ridgeline.records.edit import Edit, Replace, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Obstacle, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, parsed
from ridgeline.source.models import called

PARTS = (2, 4, 8, 16)
MAX_ERROR_SHARE, MAX_ERROR_SHARE_16_BITS = 1e-3, 3e-2
"""Share of the outputs' norm by which those of parts may be off, in float32 (TF32 included) and in
16 bits: products of fewer rows round otherwise. A model that mixes samples is off by more."""
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


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.trains:
        return because(Skip.DOES_NOT_TRAIN)
    return None if choices(ground) else because(Skip.BATCH_OF_ONE)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    sizes = [one.batch_size for one in ground.loaders if one.batch_size is not None]
    most = max(sizes) if sizes else PARTS[-1]
    return tuple({"parts": str(number)} for number in PARTS if number <= most)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    parts = int(options.get("parts") or PARTS[0])

    def divide(model: Model) -> Reason:
        obstacle = _obstacle(torch, model, parts)
        if obstacle is not None:
            return obstacle
        wrap_forward(model.inner, FIX.id, lambda forward: _divided(forward, parts))
        return because(Done.CALLED_IN_PARTS, model=model.name, parts=parts)

    program.on_model(FIX.id, divide)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    code = code_of("in_parts", "joined")
    why = "activations of a part of the batch at a time; gradients add up"
    parts = applied.targets[0].done.facts["parts"]
    edits: list[Edit] = []
    for target in applied.targets:
        place = target.place
        if place is None or place.line is None:
            continue
        model = str(target.done.facts["model"])
        call = _call(source(place.file) or "", place.line, model)
        if isinstance(call, Reason):
            raise EditByHand(ByHand.CALL_IN_PARTS, cause=call, parts=parts)
        before = ast.unparse(call)
        given = before[len(ast.unparse(call.func)) + 1 : -1]
        after = f"in_parts({ast.unparse(call.func)}, {given}, parts={parts})"
        edits.append(Top(file=place.file, where="after imports", text=code, why=why))
        edits.append(Replace(file=place.file, line=place.line, before=before, after=after, why=why))
    if not edits:
        raise EditByHand(ByHand.CALL_IN_PARTS, parts=parts)
    return tuple(dict.fromkeys(edits))


def _divided(forward: Forward, parts: int) -> Forward:
    from ridgeline.fixes.torch_functions import in_parts

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return forward(self, *args, **kwargs)

        def whole(*some: Any, **named: Any) -> Any:
            return forward(self, *some, **named)

        return in_parts(whole, *args, parts=parts, **kwargs)

    return under


def _obstacle(torch: Any, model: Model, parts: int) -> Reason | None:
    """Return why the batch cannot be divided, as a call of the whole batch and one of its parts
    show; None if it can."""
    inner = model.inner
    if isinstance(inner, torch.jit.ScriptModule):
        return because(Skip.TORCHSCRIPT, model=model.name)
    norms = (torch.nn.modules.batchnorm._BatchNorm,)
    if any(isinstance(one, norms) and one.training for one in inner.modules()):
        return because(Skip.BATCH_NORM_IN_PARTS)
    if model.fills_cache:
        return because(Skip.FILLS_A_CACHE)
    whole = rehearse(torch, inner, model.args, model.kwargs)
    if whole.draws:
        return because(Skip.DRAWS_RANDOM_NUMBERS)
    if whole.writes:
        return because(Skip.WRITES_BUFFERS)
    from ridgeline.fixes.torch_functions import in_parts

    given = (*model.args, *model.kwargs.values())
    first = next((one for one in given if isinstance(one, torch.Tensor) and one.dim()), None)
    if first is None or first.size(0) < parts:
        return because(Skip.TOO_FEW_ROWS, parts=parts)
    evidence = Evidence(torch)
    evidence.add(whole.returned, _by_parts(torch, in_parts, model, parts))
    small = torch.is_autocast_enabled(model.device) or any(
        one.dtype in (torch.bfloat16, torch.float16) for one in inner.parameters()
    )
    if not evidence.error_share <= (MAX_ERROR_SHARE_16_BITS if small else MAX_ERROR_SHARE):
        return because(Skip.SAMPLES_MEET, error_share=evidence.error_share)
    return None


def _by_parts(torch: Any, in_parts: Any, model: Model, parts: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return rehearse(torch, model.inner, args, kwargs).returned

    with torch.no_grad():
        return in_parts(call, *model.args, parts=parts, **model.kwargs)


def _call(text: str, line: int, kind: str) -> ast.Call | Reason:
    """Return the call of the model by its name on that line, or why there is none."""
    where = called(text, line, kind)
    if isinstance(where, Reason):
        return where
    file = parsed(text)
    for call in file.calls_on_line(line) if file is not None else ():
        if dotted_name(call.func) == where.name and (call.args or call.keywords):
            return call
    return because(Obstacle.NO_CALL_OF, name=where.name, line=line)
