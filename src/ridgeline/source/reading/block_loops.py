"""Where a model runs its repeated blocks one after the other: the line to checkpoint."""

import ast

from msgspec import Struct

from ridgeline.source.reading.sources import Source


class BlockLoop(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    block: str
    """The loop's name for a block."""
    target: str
    """What the result is assigned to, as written."""
    arguments: str
    """As written."""


def block_loops(source: Source) -> tuple[BlockLoop, ...]:
    """`for block in self.blocks: x = block(x)`: loops of a method that call what they run over."""
    found = []
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for loop in source.walk(function):
            if isinstance(loop, ast.For):
                names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
                found += _calls(source, function.name, loop, names)
    return tuple(found)


def _calls(source: Source, function: str, loop: ast.For, names: set[str]) -> list[BlockLoop]:
    found = []
    for node in ast.walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        called = node.value.func
        if isinstance(called, ast.Name) and called.id in names and node.value.args:
            arguments = [ast.unparse(argument) for argument in node.value.args]
            arguments += [ast.unparse(keyword) for keyword in node.value.keywords]
            found.append(
                BlockLoop(
                    file=source.file, line=node.lineno, function=function, block=called.id,
                    target=ast.unparse(node.targets[0]), arguments=", ".join(arguments),
                )
            )  # fmt: skip
    return found
