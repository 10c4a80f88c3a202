"""The user's files a run or a trace tells of, and the lines in them that keep tensors."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import Compilation, Step
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.kept_tensors import Kept, kept

_PUTS = frozenset({"append", "appendleft", "add", "put", "insert", "extend"})
_NUMBERS = frozenset({
    "item", "tolist", "float", "int", "len", "round", "str", "format", "join", "time",
    "perf_counter", "monotonic", "range", "copy", "keys", "values", "items",
})  # fmt: skip
_TENSOR = ".detach()"
"""What tells a reader of the source that a value is a tensor."""


def user_sources(case: Case) -> tuple[SourceFile, ...]:
    """Each file once, the script first."""
    found: dict[str, SourceFile] = {}
    for file in _files(case):
        source = case.sources.get(file)
        if source is not None and source.text not in found:
            found[source.text] = source
    return tuple(found.values())


def kept_lines(case: Case) -> tuple[Kept, ...]:
    """Return the lines that keep tensors: first those that were seen running, then those that keep
    a graph, then those that never release what they keep. A local variable of a function that
    trains nothing is left out, because it is gone before the next step ends."""
    found = [
        one for source in user_sources(case) for one in kept(source)
        if not (one.temporary or one.limited)
    ]  # fmt: skip
    return tuple(
        sorted(found, key=lambda one: (one.unseen, not one.graph, one.guessed, one.renewed))
    )


def kept_where_made(case: Case, place: Place) -> tuple[Kept, ...]:
    """Lines of one function that keep what is made in it: where a trace says that the function
    allocates what stays, an argument that is only put away was allocated by its caller, and a call
    on the line (`self.seen.append(x.repeat(8))`) makes a tensor, whatever the source says."""
    source = case.sources.get(place.file)
    if source is None:
        return ()
    scope = source.scope(place.line) if place.function != "<module>" else source.module
    inside = {getattr(node, "lineno", 0) for node in source.walk(scope)}
    given = {node.arg for node in source.walk(scope) if isinstance(node, ast.arg)}
    found = {one.line: one for one in kept(source) if one.line in inside}
    for one in kept(_with_tensors(source, list(_made(source, scope)))):
        if one.line in inside and one.line not in found:
            text = source.line(one.line)
            value = one.value.removesuffix(_TENSOR)
            found[one.line] = replace(one, text=text, value=value, detached="", guessed=True)
    return tuple(one for _, one in sorted(found.items()) if one.value not in given)


def _made(source: SourceFile, scope: ast.AST) -> Iterator[ast.expr]:
    """Calls and sums whose result is put into something."""
    for node in source.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.args[-1] if node.func.attr in _PUTS and node.args else None
        else:
            subscript = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
            value = node.value if isinstance(node, ast.Assign) and subscript else None
        if isinstance(value, ast.BinOp | ast.Subscript) or (
            isinstance(value, ast.Call)
            and ast.unparse(value.func).rpartition(".")[2] not in _NUMBERS
        ):
            yield value


def _with_tensors(source: SourceFile, values: list[ast.expr]) -> SourceFile:
    lines = [line.encode() for line in source.lines]  # columns of the tree are bytes
    for value in sorted(values, key=lambda v: -v.col_offset):
        line = lines[value.lineno - 1]
        if value.end_lineno == value.lineno:
            start, end = value.col_offset, value.end_col_offset
            lines[value.lineno - 1] = (
                line[:start] + b"(" + line[start:end] + b")" + _TENSOR.encode() + line[end:]
            )
    return SourceFile(source.file, b"\n".join(lines).decode(errors="replace"))


def _files(case: Case) -> Iterator[str]:
    if case.run is not None and case.run.target.kind == "script":
        yield str(Path(case.run.environment.folder) / case.run.target.name)
    capture = case.capture
    if capture is not None:
        places = [seen.place for seen in capture.modules]
        places += [seen.place for seen in capture.optimizers]
        places += [seen.place for seen in capture.loaders]
        yield from (place.rpartition(":")[0] for place in places)
    for site in case.sites.ops:
        if site.place is not None:
            yield site.place.file


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
        for node in ast.walk(source.module):
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


def _line(source: SourceFile, node: ast.expr, text: str) -> CompileLine:
    scope = source.scope(node.lineno)
    name = str(getattr(scope, "name", ""))
    without = _without(source, node) if isinstance(node, ast.Call) else ""
    return CompileLine(
        file=source.file, line=node.lineno, function=name, text=text, without=without
    )


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
