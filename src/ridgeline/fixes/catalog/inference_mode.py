"""Calls of the model without any record for gradients."""

import ast
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_forward import Forward, tensors_in, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit, Import, Replace, Within
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, parsed
from ridgeline.source.models import called

HEADER = "torch.inference_mode()"
FIX = Fix(
    id="inference-mode",
    group="model",
    title="inference mode",
    alters="nothing",
    answers=("gradients-in-inference",),
    why="No graph is recorded, no activation is kept for a backward, and no tensor is versioned.",
    wrong_when="An output is written to in place outside the model, or a gradient is asked of it "
    "later. That cannot be known before: torch raises when it happens, and the trial fails.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    return because(Skip.TRAINS) if ground.trains else None


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def stop_recording(model: Model) -> Reason:
        given = tensors_in(torch, (model.args, model.kwargs))
        if any(tensor.requires_grad for tensor in given):
            return because(Skip.INPUT_NEEDS_GRADIENT)
        if torch.is_inference_mode_enabled():
            return because(Skip.ALREADY_SET, setting="inference mode")
        wrap_forward(model.inner, FIX.id, lambda forward: _unrecorded(torch, forward), outside=True)
        return because(Done.INFERENCE_MODE, model=model.name)

    program.on_model(FIX.id, stop_recording)


def _unrecorded(torch: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return forward(self, *args, **kwargs)
        with torch.inference_mode():
            return forward(self, *args, **kwargs)

    return under


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    found: list[Edit] = []
    for target in applied.targets:
        place = target.place
        if place is None or place.line is None:
            continue
        file, text = place.file, source(place.file)
        where = called(text or "", place.line, str(target.done.facts["model"]))
        if isinstance(where, Reason):
            raise EditByHand(ByHand.AROUND_MODEL_CALL, cause=where, header=HEADER)
        why = "nothing is recorded for gradients"
        header = _no_grad(text or "", where.first)
        if header is not None:
            found.append(
                Replace(file=file, line=header[0], before=header[1], after=HEADER, why=why)
            )
        else:
            found.append(
                Within(file=file, first=where.first, last=where.last, header=HEADER, why=why)
            )
            found.append(Import(file=file, text="import torch"))
    return tuple(dict.fromkeys(found))


def _no_grad(text: str, line: int) -> tuple[int, str] | None:
    """Return line and expression of the `with torch.no_grad():` around a line, if there is one."""
    tree = parsed(text)
    for node in tree.nodes if tree is not None else ():
        if isinstance(node, ast.With) and node.lineno < line <= (node.end_lineno or node.lineno):
            for item in node.items:
                one = item.context_expr
                if isinstance(one, ast.Call) and dotted_name(one.func) == "torch.no_grad":
                    return node.lineno, "torch.no_grad()"
    return None
