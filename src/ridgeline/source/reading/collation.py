"""The functions that put a batch together: a loader's `collate_fn` and what it calls."""

import ast
from collections.abc import Iterable

from ridgeline.source.reading.sources import Source, Sources

_BY_NAME = "collat"


def collating(sources: Sources, files: Iterable[str]) -> frozenset[str]:
    """Their names, without the class or function around them. What they make depends on which
    samples came together, so with shuffling it differs each time."""
    read = [source for file in dict.fromkeys(files) if (source := sources.get(file)) is not None]
    bodies: dict[str, list[tuple[Source, ast.AST]]] = {}
    found: set[str] = set()
    for source in read:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.keyword) and node.arg == "collate_fn":
                found |= _names(node.value)
            elif isinstance(node, ast.FunctionDef):
                bodies.setdefault(node.name, []).append((source, node))
            elif isinstance(node, ast.ClassDef):  # an object as a collate_fn
                calls = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                called = [n for n in calls if n.name == "__call__"]
                bodies.setdefault(node.name, []).extend((source, n) for n in called)
    found |= {name for name in bodies if _BY_NAME in name.lower()}
    return frozenset(_reached(found, bodies))


def _reached(found: set[str], bodies: dict[str, list[tuple[Source, ast.AST]]]) -> set[str]:
    reached: set[str] = set()
    ahead = [name for name in found if name in bodies]
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        for source, body in bodies[name]:
            reached |= {"__call__"} if getattr(body, "name", "") == "__call__" else set()
            calls = [n.func for n in source.walk(body) if isinstance(n, ast.Call)]
            ahead += [n for call in calls for n in _names(call) if n in bodies]
    return reached


def _names(node: ast.AST) -> set[str]:
    """collate, Collate(8), self.collate, partial(collate, pad=0), lambda items: collate(items)"""
    named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return named | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
