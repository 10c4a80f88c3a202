"""What the rules of compiling share: the lines that ask for it, and when a program's start ends."""

import ast
import re
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import place_at, user_sources
from ridgeline.records.run import Compilation, Step
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile

MIN_STEPS_RECOMPILING = 3
"""Steps in a row that compile again after the first. A second shape, made dynamic, is one, a last
batch or another mode a second."""
_NOT_THE_USERS = re.compile(
    r"site-packages|dist-packages|"
    r"(?:^|/)torch/(?:_\w+|nn|optim|autograd|utils|fx|amp|ao|cuda|distributed|export)/"
)
"""Paths of installed packages, and of torch if it was built from source."""


class CompileLine(Struct, frozen=True, kw_only=True):
    place: Place
    text: str
    """The call as written: `torch.compile(model)`, or the decorator."""
    without: str = ""
    """The statement without compiling: net = model, for net = torch.compile(model). A comment if
    nothing remains of it."""


def compile_lines(case: Case) -> tuple[CompileLine, ...]:
    """Return the lines of the user's source that ask for compiling."""
    found = []
    for source in user_sources(case):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Call) and _is_compile(node.func):
                found.append(_line(source, node, ast.unparse(node), _without(source, node)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    _line(source, decorator, f"@{ast.unparse(decorator)}")
                    for decorator in node.decorator_list
                    if _is_compile(decorator)
                ]
    return tuple(found)


def users_own(place: str) -> Place | None:
    """Return the place of a compiled frame if it is the user's; None for torch's own wrappers."""
    found = place_at(place)
    if found is None or _NOT_THE_USERS.search(found.file.replace("\\", "/")):
        return None
    return found


def start_ends(steps: Sequence[Step], compilations: Sequence[Compilation]) -> int:
    """Return the index of the last step that belongs to the start, in which any compiled program
    compiles; -1 if none compiled. It is the first calm step after one that compiled. If guards
    failed again and again before, or no step was calm, it is the first step that compiled."""
    ordered = sorted(steps, key=lambda step: step.index)
    compiling = [step.index for step in ordered if step.compile_ns > 0]
    if not compiling:
        return -1
    later = (step for step in ordered if step.index > compiling[0])
    calm = next((step.index for step in later if not step.compile_ns), None)
    early = sum(1 for index in compiling[1:] if calm is None or index < calm)
    again = min(early, len(recompiled(compilations))) >= MIN_STEPS_RECOMPILING
    return compiling[0] if calm is None or again else calm


def recompiled(compilations: Sequence[Compilation]) -> list[Compilation]:
    return [compilation for compilation in compilations if compilation.recompile_reason]


def _is_compile(called: ast.AST) -> bool:
    text = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
    return text == "torch.compile" or (
        isinstance(called, ast.Attribute) and called.attr == "compile" and not text.startswith("re")
    )


def _line(source: SourceFile, node: ast.expr, text: str, without: str = "") -> CompileLine:
    function = source.function_name(node.lineno)
    place = Place(file=source.file, line=node.lineno, function=function)
    return CompileLine(place=place, text=text, without=without)


def _without(source: SourceFile, call: ast.Call) -> str:
    statement = source.statement_of(call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return ""
    written = ast.unparse(statement)
    given = call.args[0] if call.args else next((k.value for k in call.keywords), None)
    if ast.unparse(call.func) != "torch.compile" or given is None:
        return f"# {written}" if isinstance(statement, ast.Expr) else ""
    left = written.replace(ast.unparse(call), ast.unparse(given), 1)
    begin, _, end = left.partition(" = ")
    return f"# {written}" if begin == end or left == ast.unparse(given) else left
