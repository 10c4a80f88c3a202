"""Calls of the model without any record for gradients."""

import ast
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.outputs import tensors
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit, Import, Replace, Within
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, parsed
from ridgeline.source.models import called

WRITTEN = "torch.inference_mode()"
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


def reason_to_skip(ground: Ground) -> str:
    return "the program trains" if ground.trains else ""


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def quieten(model: Model) -> str:
        given = tensors(torch, (model.args, model.kwargs))
        if any(tensor.requires_grad for tensor in given):
            program.found_nothing(FIX.id, "the model is given tensors that need gradients")
            return ""
        if torch.is_inference_mode_enabled():
            program.found_nothing(FIX.id, "the program has it already")
            return ""
        around(model.inner, FIX.id, lambda forward: _without(torch, forward), outside=True)
        return f"inference_mode around {type(model.inner).__name__}"

    program.on_model(FIX.id, quieten)


def _without(torch: Any, forward: Forward) -> Forward:
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return forward(self, *args, **kwargs)
        with torch.inference_mode():
            return forward(self, *args, **kwargs)

    return under


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    found: list[Edit] = []
    for file, line in at(applied):
        text = source(file)
        where = called(text or "", line, applied.what.rpartition(" ")[2])
        if isinstance(where, str):
            raise EditByHand(f"{where}; write around the model's call: with {WRITTEN}:")
        why = "nothing is recorded for gradients"
        header = _no_grad(text or "", where.first)
        if header is not None:
            found.append(
                Replace(file=file, line=header[0], before=header[1], after=WRITTEN, why=why)
            )
        else:
            found.append(
                Within(file=file, first=where.first, last=where.last, header=WRITTEN, why=why)
            )
            found.append(Import(file=file, text="import torch"))
    return tuple(dict.fromkeys(found))


def _no_grad(text: str, line: int) -> tuple[int, str] | None:
    """Line and expression of a `with torch.no_grad():` around a line."""
    tree = parsed(text)
    for node in tree.nodes if tree is not None else ():
        if isinstance(node, ast.With) and node.lineno < line <= (node.end_lineno or node.lineno):
            for item in node.items:
                one = item.context_expr
                if isinstance(one, ast.Call) and dotted_name(one.func) == "torch.no_grad":
                    return node.lineno, "torch.no_grad()"
    return None
