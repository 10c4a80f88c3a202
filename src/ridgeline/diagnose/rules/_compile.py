"""What torch.compile did in a run: seconds compiling, where, and the line that asked for it."""

import ast
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rules._memory_lines import user_sources
from ridgeline.diagnose.source.sources import Source
from ridgeline.records.run import Compilation
from ridgeline.records.step import Step
from ridgeline.records.trace import Place

_OWN = ("site-packages", "dist-packages", "/torch/_dynamo/", "/torch/nn/")


class CompileLine(Struct, frozen=True, kw_only=True):
    """`torch.compile(model)`, or the decorator."""

    file: str
    line: int
    function: str
    text: str
    """The call as written."""

    @property
    def place(self) -> Place:
        return Place(file=self.file, line=self.line, function=self.function)


def compile_lines(case: Case) -> tuple[CompileLine, ...]:
    """Where the user's source asks for compiling."""
    found = []
    for source in user_sources(case):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and _is_compile(node.func):
                found.append(_line(source, node, ast.unparse(node)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    _line(source, decorator, f"@{ast.unparse(decorator)}")
                    for decorator in node.decorator_list
                    if _is_compile(decorator)
                ]
    return tuple(found)


def users_own(place: str) -> Place | None:
    """A compiled frame's place where it is the user's; None for torch's own wrappers."""
    file, _, line = place.rpartition(":")
    if not file or not line.isdigit() or any(part in file for part in _OWN):
        return None
    return Place(file=file, line=int(line))


def first_compiling(steps: Sequence[Step]) -> int:
    """The index of the first step after which one did not compile: compiling before it is the
    start of the program. -1 where none compiled."""
    ordered = sorted(steps, key=lambda s: s.index)
    started = False
    for step in ordered:
        if step.compile_ns > 0:
            started = True
        elif started:
            return step.index
    return -1


def recompiled(compilations: Sequence[Compilation]) -> list[Compilation]:
    return [one for one in compilations if one.recompile_reason]


def _is_compile(called: ast.AST) -> bool:
    text = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
    return text == "torch.compile" or (
        isinstance(called, ast.Attribute) and called.attr == "compile" and not text.startswith("re")
    )


def _line(source: Source, node: ast.expr, text: str) -> CompileLine:
    scope = source.scope(node.lineno)
    name = str(getattr(scope, "name", ""))
    return CompileLine(file=source.file, line=node.lineno, function=name, text=text)
