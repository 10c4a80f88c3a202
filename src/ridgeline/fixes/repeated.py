"""Blocks a model repeats: the members of its lists and sequences that are of one class."""

from typing import Any

NONE = "the model has no repeated blocks that are most of it"
LEAST = 3
MOST = 0.5
"""Of the parameters outside embedding tables must be in them: they are the model."""


def repeated(torch: Any, model: Any) -> list[Any]:
    """The outermost ones, in the order they are registered; [] where the model has none that
    count. Plain layers are none: a block has layers of its own."""
    by_kind: dict[type, list[Any]] = {}
    for container in model.modules():
        if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential):
            for member in container.children():
                if next(member.children(), None) is not None:
                    by_kind.setdefault(type(member), []).append(member)
    many = [one for kind in by_kind.values() if len(kind) >= LEAST for one in kind]
    blocks = _outermost(many)
    inside = {id(p): p.numel() for block in blocks for p in block.parameters()}
    tables = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    whole = sum(p.numel() for p in model.parameters() if id(p) not in tables)
    return blocks if whole and sum(inside.values()) > MOST * whole else []


def _outermost(blocks: list[Any]) -> list[Any]:
    within = {id(inner) for block in blocks for inner in block.modules() if inner is not block}
    seen: set[int] = set()
    found = []
    for block in blocks:
        if id(block) not in within and id(block) not in seen:  # one block may be in two lists
            seen.add(id(block))
            found.append(block)
    return found
