"""What torch.compile did in a run: seconds compiling, where, and the line that asked for it."""

import ast
import re
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._memory_lines import user_sources
from ridgeline.records.run import Compilation
from ridgeline.records.step import Step
from ridgeline.records.trace import Place
from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.statements import statement_of

EARLY = 3
"""Steps one after another that compile again after the first: a second shape, made dynamic, is one,
a last batch or another mode a second."""
_NOT_THE_USERS = re.compile(
    r"site-packages|dist-packages|"
    r"(?:^|/)torch/(?:_\w+|nn|optim|autograd|utils|fx|amp|ao|cuda|distributed|export)/"
)
"""Paths of installed packages, and of torch where it was built from source."""


class CompileLine(Struct, frozen=True, kw_only=True):
    """`torch.compile(model)`, or the decorator."""

    file: str
    line: int
    function: str
    text: str
    """The call as written."""
    without: str = ""
    """The statement without compiling: net = model, of net = torch.compile(model). A comment where
    nothing of it is left to do."""

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
    if not file or not line.isdigit() or _NOT_THE_USERS.search(file.replace("\\", "/")):
        return None
    return Place(file=file, line=int(line))


def start_ends(steps: Sequence[Step], compilations: Sequence[Compilation]) -> int:
    """The index of the last step that belongs to the start: compiling up to it is what any compiled
    program does. That is the first step that is calm after one compiled; but where guards failed
    again and again before, or none ever was calm, the first that compiled. -1: none did."""
    ordered = sorted(steps, key=lambda s: s.index)
    compiling = [s.index for s in ordered if s.compile_ns > 0]
    if not compiling:
        return -1
    calm = next((s.index for s in ordered if s.index > compiling[0] and not s.compile_ns), None)
    early = sum(1 for index in compiling[1:] if calm is None or index < calm)
    if calm is None or (early >= EARLY and len(recompiled(compilations)) >= EARLY):
        return compiling[0]
    return calm


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
    without = _without(source, node) if isinstance(node, ast.Call) else ""
    return CompileLine(
        file=source.file, line=node.lineno, function=name, text=text, without=without
    )


def _without(source: Source, call: ast.Call) -> str:
    statement = statement_of(source, call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return ""
    written = ast.unparse(statement)
    given = call.args[0] if call.args else next((k.value for k in call.keywords), None)
    if ast.unparse(call.func) != "torch.compile" or given is None:
        return f"# {written}" if isinstance(statement, ast.Expr) else ""
    left = written.replace(ast.unparse(call), ast.unparse(given), 1)
    begin, _, end = left.partition(" = ")
    return f"# {written}" if begin == end or left == ast.unparse(given) else left
