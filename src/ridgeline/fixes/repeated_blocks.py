"""Blocks that a model repeats: members of its lists and sequences that are of one class."""

from typing import Any

MIN_BLOCKS = 3
"""Fewer members of one class are not called repeated."""
MIN_PARAMETER_SHARE = 0.5
"""Repeated blocks must hold more than this share of the parameters outside embedding tables: only
then are they the model."""


def repeated_blocks(torch: Any, model: Any) -> list[Any]:
    """Return the outermost repeated blocks in the order they are registered; [] if they do not make
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
