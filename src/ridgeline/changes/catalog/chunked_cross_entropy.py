"""Cross-entropy over a large vocabulary, some rows at a time."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.capture.places import here
from ridgeline.changes.change import Change, NotWritten, Source
from ridgeline.changes.places import at
from ridgeline.changes.program import Program
from ridgeline.changes.source_tree import SourceTree, calls, dotted
from ridgeline.records.edit import Edit, Keyword, Replace, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

CLASSES = 8192
CHUNK = 2**24
"""Elements at a time: 64 MiB of float32, small beside logits worth the trouble, and enough rows to
keep a GPU busy (333 of GPT-2's 50,257 classes)."""
_LOOKED = 8
"""Calls whose line is looked for: a walk over the frames each."""
CHANGE = Change(
    id="chunked-cross-entropy",
    group="model",
    title="cross-entropy in chunks",
    alters="rounding",
    answers=("huge-logits", "activation-peak"),
    saves="memory",
    why="Softmax of the logits is computed for some rows at a time and again in the backward: one "
    "or two tensors of the size of the logits are never made.",
    wrong_when="The loss is inside a compiled region, where it is fused already; or gradients of "
    "gradients are wanted.",
)


def able(ground: Ground) -> str:
    return "" if ground.trains else "nothing trains, so no loss keeps its softmax"


def put_on(program: Program, options: Mapping[str, str]) -> None:
    functional = program.torch.nn.functional
    functional.cross_entropy = chunked(
        program, functional.cross_entropy, int(options.get("elements", CHUNK))
    )
    program.found_nothing(
        CHANGE.id,
        f"no cross-entropy of class numbers over {CLASSES:,} classes or more was large enough to "
        "be cut",
    )


def chunked(program: Program, theirs: Any, chunk: int) -> Any:
    """torch.nn.functional.cross_entropy, cut where that is worth it."""
    from ridgeline.changes.chunked_loss import chunked_cross_entropy

    torch = program.torch
    said: list[str] = []

    def cross_entropy(
        input: Any, target: Any, weight: Any = None, size_average: Any = None,
        ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        plain = size_average is None and reduce is None and reduction in ("mean", "sum")
        if torch.compiler.is_compiling() or not (plain and _fits(torch, input, target, chunk)):
            return theirs(
                input, target, weight, size_average, ignore_index, reduce, reduction,
                label_smoothing,
            )  # fmt: skip
        rows = max(chunk // input.size(1), 1)
        if len(said) < _LOOKED:
            place = here()
            if place not in said:
                what = f"cross_entropy of {input.size(1):,} classes, {rows} rows at a time"
                program.did(CHANGE.id, what, place)
            said.append(place)
        return chunked_cross_entropy(
            input, target, weight, ignore_index, reduction, label_smoothing, rows
        )

    cross_entropy.__doc__ = theirs.__doc__
    return cross_entropy


def _fits(torch: Any, input: Any, target: Any, chunk: int) -> bool:
    return (
        type(input) is torch.Tensor
        and type(target) is torch.Tensor
        and input.dim() == 2
        and target.dim() == 1
        and input.requires_grad
        and not target.is_floating_point()
        and input.size(0) == target.size(0)
        and input.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and input.size(1) >= CLASSES
        and input.numel() >= 2 * chunk
    )


def written(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """The call's name and two keywords: what it is given may be edited by others."""
    rows = applied.what.rpartition(" rows")[0].rpartition(" ")[2]
    code = (Path(__file__).parents[1] / "chunked_loss.py").read_text(encoding="utf-8")
    body = re.sub(r"  # (type: ignore|fmt: skip).*", "", code.partition('"""\n\n')[2])
    why = "the logits' softmax is never whole in memory"
    found: list[Edit] = []
    for file, line in at(applied):
        call = _call(source(file), line)
        if call is None:
            raise NotWritten(
                f"no cross_entropy(…) by its name on line {line} of {file}: use "
                "chunked_cross_entropy there, from ridgeline.changes.chunked_loss"
            )
        name = dotted(call[0].func)
        last = name.rpartition(".")[2]
        given = ("input", "target") if call[1] is not None else ()
        found.append(Top(file=file, where="after imports", text=body.strip(), why=why))
        found.append(
            Replace(file=file, line=line, before=name, after="chunked_cross_entropy", why=why)
        )
        settings = [(one, f"{name}.{one}") for one in call[1] or ()]
        for key, value in (*settings, ("rows", rows)):
            found.append(
                Keyword(
                    file=file, line=line, call=last, name=key, value=value, why=why,
                    positional=given,
                )
            )  # fmt: skip
    return tuple(dict.fromkeys(found))


def _call(text: str | None, line: int) -> tuple[ast.Call, list[str] | None] | None:
    """Of the function; or of a CrossEntropyLoss of this file, with the settings it was given."""
    try:
        tree = SourceTree(text or "")
    except (SyntaxError, ValueError):
        return None
    losses = _losses(tree)
    for call in calls(tree.module):
        if not call.lineno <= line <= (call.end_lineno or call.lineno):
            continue
        name = dotted(call.func)
        if name.rpartition(".")[2] == "cross_entropy" and len(call.args) < 4:
            return call, None
        if name in losses and len(call.args) == 2 and not call.keywords:
            return call, losses[name]
    return None


def _losses(tree: SourceTree) -> dict[str, list[str]]:
    """Names of CrossEntropyLoss objects, with the keywords they are made with."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value
            if dotted(made.func).rpartition(".")[2] == "CrossEntropyLoss":
                named = [one.arg for one in made.keywords if one.arg]
                weight = ["weight"] if made.args else []
                found.update({dotted(one): [*weight, *named] for one in node.targets})
    return found
