"""Compiles a model's repeated blocks with torch.compile, each by itself."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import bound, reason_to_skip
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import Facts, after_made
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

__all__ = ["FIX", "apply", "bound", "reason_to_skip", "repeated_blocks", "source_edits"]
MIN_BLOCKS = 3
"""Fewer members of one class are not called repeated."""
MIN_PARAMETER_SHARE = 0.5
"""Repeated blocks must hold more than this share of the parameters outside embedding tables: only
then are they the model."""
FIX = Fix(
    id="compile-regional",
    group="model",
    title="torch.compile of the repeated blocks",
    alters="rounding",
    slot="compile",
    answers=("compile-unpaid", *compiling.ANSWERS),
    slow_start=True,
    spare_beside=("compile", "compile-reduce-overhead", "compile-max-autotune"),
    why="Blocks of one class are compiled once and the code is used for each: a fraction of the "
    "time to compile, most of the gain.",
    wrong_when="Much of the step is outside the blocks, or they differ in their shapes.",
)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def build(model: Model) -> Reason | tuple[Reason, ...]:
        obstacle = compiling.obstacle(torch, model.inner)
        if obstacle is not None:
            return obstacle
        blocks = repeated_blocks(torch, model.inner)
        if not blocks:
            return because(Skip.NO_REPEATED_BLOCKS)
        for block in blocks:
            compiling.compile_in_place(torch, block, {})
        return tuple(
            because(Done.COMPILED_BLOCKS, model=model.name, block=block, blocks=number)
            for block, number in Counter(type(block).__name__ for block in blocks).items()
        )

    program.on_model(FIX.id, build)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return after_made(applied, source, _compile_each, "blocks of one class compile once")


def _compile_each(facts: Facts, name: str) -> str:
    block = str(facts["block"])
    each = compiling.statement(block, "block")
    test = f'type(block).__name__ == "{block}"'
    return f"for block in {name}.modules():\n    if {test}:\n        {each}"


def repeated_blocks(torch: Any, model: Any) -> list[Any]:
    """Return the outermost blocks that the model repeats, members of one class in its
    lists and sequences, in the order they are registered; [] if they do not make
    up most of the model. A plain layer is not a block: a block has layers of its own."""
    by_kind: dict[type, list[Any]] = {}
    for container in model.modules():
        if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential):
            for member in container.children():
                if next(member.children(), None) is not None:
                    by_kind.setdefault(type(member), []).append(member)
    many = [one for kind in by_kind.values() if len(kind) >= MIN_BLOCKS for one in kind]
    blocks = _outermost(many)
    inside = {id(p): p.numel() for block in blocks for p in block.parameters()}
    tables = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    whole = sum(p.numel() for p in model.parameters() if id(p) not in tables)
    return blocks if whole and sum(inside.values()) > MIN_PARAMETER_SHARE * whole else []


def _outermost(blocks: list[Any]) -> list[Any]:
    within = {id(inner) for block in blocks for inner in block.modules() if inner is not block}
    distinct = {id(block): block for block in blocks}  # one block may be in two lists
    return [block for key, block in distinct.items() if key not in within]
