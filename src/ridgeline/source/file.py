"""A file of the user's source, parsed once, and the questions that every reader asks about it.

`SourceFile` holds the text, its syntax tree and what surrounds each node. `SourceFiles` finds files
by the names that a trace or a run gives them. `parsed` does the same for a text at hand. The
functions after them answer questions about single nodes of a tree. The last part lists the names
that a file binds at its top level, and what its imports bind them to.
"""

import ast
import builtins
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

from ridgeline.records.trace import Place

MAX_SOURCE_BYTES = 4 * 2**20
"""A larger file is not read: nobody wrote it by hand."""
CalledLines = Mapping[int, frozenset[str]]
"""The names of the functions that each line was seen calling."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
Loop = ast.For | ast.AsyncFor | ast.While
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
_FunctionOrLambda = Function | ast.Lambda
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_CLASSES = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))


class Decoded(Struct, frozen=True, kw_only=True):
    """The text of a file's bytes, and the encoding that gives the same bytes back."""

    text: str
    encoding: str
    fault: str = ""
    """Why the file cannot be patched. The text still gives the bytes back."""


def decoded(raw: bytes) -> Decoded:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        if text.encode(encoding) == raw:
            return Decoded(text=text, encoding=encoding)
        fault = f"its encoding, {encoding}, does not give the same bytes back"
    except (SyntaxError, UnicodeError, LookupError) as error:
        first_line = str(error).split("\n")[0]
        fault = f"it cannot be decoded ({first_line})"
    # surrogateescape keeps bytes that are no UTF-8
    return Decoded(text=raw.decode("utf-8", "surrogateescape"), encoding="utf-8", fault=fault)


def encoded(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "surrogateescape")


def text_of(file: Path) -> str:
    r"""Return the text of a file as Python reads it, its lines ended by \n; "" if it cannot be
    read."""
    try:
        read = decoded(file.read_bytes())
    except OSError:
        return ""
    return "" if read.fault else read.text.replace("\r\n", "\n").replace("\r", "\n")


class _Syntax:
    """The syntax tree of one text. Every `SourceFile` of the same text shares it."""

    def __init__(self, text: str) -> None:
        self.module = ast.parse(text)
        self.nodes = list(ast.walk(self.module))
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}


@lru_cache(maxsize=128)
def _syntax(text: str) -> _Syntax:
    return _Syntax(text)


class SourceFile:
    """One file, parsed. Raises SyntaxError, ValueError or RecursionError if it is not Python."""

    def __init__(self, file: str, text: str, called: CalledLines | None = None) -> None:
        """`called` has the functions that each line was seen calling in the traced steps; it is
        None or empty if these are not known."""
        self.called = called or {}
        self.file = file
        self.text = text
        self.lines = text.splitlines()
        self._syntax = _syntax(text)
        self.module = self._syntax.module
        self.nodes: Sequence[ast.AST] = self._syntax.nodes
        """All nodes of the tree, in the order of `ast.walk`."""
        self.calls: Sequence[ast.Call] = self._syntax.calls
        self.functions: Sequence[Function] = self._syntax.functions

    def line(self, number: int) -> str:
        """Return the text of a line without its indentation; "" if there is no such line."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def indent(self, number: int) -> str:
        """Return the spaces that a line begins with."""
        text = self.lines[number - 1] if 0 < number <= len(self.lines) else ""
        return text[: len(text) - len(text.lstrip())]

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node as written."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def written(self, node: ast.AST) -> str:
        """Return the text of a node as written, without the indentation of its first line."""
        return dedent(self.indent(getattr(node, "lineno", 0)) + self.segment(node))

    def scope(self, line: int) -> ast.AST:
        """Return the function that begins at a line (at its decorator, as code objects have it),
        else the innermost function around the line, else the module."""
        begins = [f for f in self.functions if line in (first_line(f), f.lineno)]
        around = [f for f in self.functions if is_on_line(f, line)]
        functions = begins or sorted(around, key=lambda f: f.lineno)
        return functions[-1] if functions else self.module

    def function_name(self, line: int) -> str:
        """Return the name of the innermost function around a line; "" in the module itself."""
        return str(getattr(self.scope(line), "name", ""))

    def calls_on_line(self, line: int) -> list[ast.Call]:
        """Return the calls whose text includes a line."""
        return [call for call in self.calls if is_on_line(call, line)]

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, from the innermost outwards; the module comes last."""
        parents = self._syntax.parents
        while node in parents:
            node = parents[node]
            yield node

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement around a node, or the node itself."""
        return next(n for n in (node, *self.parents(node)) if isinstance(n, ast.stmt))

    def scope_of(self, node: ast.AST) -> Scope:
        """Return the function, class or module whose names a node sees first."""
        return next(n for n in self.parents(node) if isinstance(n, Scope))

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node, or None."""
        return next((n for n in self.parents(node) if isinstance(n, Function)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node, or None."""
        return next((n for n in self.parents(node) if isinstance(n, ast.ClassDef)), None)

    def loop_of(self, node: ast.AST) -> Loop | None:
        """Return the innermost `for` or `while` around a node in its own scope, or None."""
        for parent in self.parents(node):
            if isinstance(parent, Loop):
                return parent
            if isinstance(parent, Scope):
                return None
        return None

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements of the block that a statement stands in."""
        owner = self._syntax.parents[statement]
        for field in ("body", "orelse", "finalbody"):
            block = getattr(owner, field, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def statements_in(self, scope: Scope) -> Iterator[ast.stmt]:
        """Yield the statements of a scope in the order of their lines, without those of functions
        and classes inside it."""
        every = (n for n in ast.walk(scope) if isinstance(n, ast.stmt) and n is not scope)
        yield from sorted((n for n in every if self.scope_of(n) is scope), key=lambda n: n.lineno)

    def loops(self, node: ast.AST) -> int:
        """Return how many loops and comprehensions of its own function a node stands in."""
        count = 0
        for parent in self.parents(node):
            if isinstance(parent, _FunctionOrLambda):
                break
            count += isinstance(parent, Loop | Comprehension)
        return count

    def walk(self, scope: ast.AST) -> Iterator[ast.AST]:
        """Yield everything inside a function in the order of the source, without what is inside
        functions and classes defined there, whose lines are theirs."""
        for child in ast.iter_child_nodes(scope):
            yield child
            if not isinstance(child, Function | ast.ClassDef):
                yield from self.walk(child)

    def ran(self, node: ast.AST) -> bool | None:
        """Return whether an expression ran in the traced steps; None if that is not known."""
        if not self._is_followed(node):
            return None
        seen = self._calls_between(*_span(node))
        if isinstance(node, ast.Call) and last_name(node) in seen:
            return True
        if seen or any(isinstance(above, ast.withitem) for above in self.parents(node)):
            return None  # a `with` may have been entered before the trace began
        if _is_seen_if_made(node):
            return False
        return None if self.reached(node) else False

    def reached(self, node: ast.AST) -> bool:
        """Return False if `node` is in a branch or a loop that always makes a call, but made none
        in the traced steps; else True."""
        inside = node
        if not self._is_followed(node):
            return True
        for above in self.parents(node):
            if isinstance(above, _FunctionOrLambda):
                break
            for block in (getattr(above, "body", None), getattr(above, "orelse", None)):
                if not isinstance(block, list) or not any(one is inside for one in block):
                    continue
                if self._calls_between(block[0].lineno, block[-1].end_lineno or block[-1].lineno):
                    return True
                plain = [s for s in block if isinstance(s, ast.Expr | ast.Assign | ast.AugAssign)]
                if any(_is_seen_if_made(one.value) for one in plain):
                    return False
            inside = above
        return True

    def lines_calling(self, line: int, name: str) -> tuple[int, ...]:
        """Return the lines, in the function around `line`, that were seen calling a function of
        that name."""
        scope = self.scope(line)
        first, last = _span(scope) if isinstance(scope, Function) else (1, len(self.lines))
        return tuple(
            number
            for number, names in sorted(self.called.items())
            if first <= number <= last and name in names
        )

    def _is_followed(self, node: ast.AST) -> bool:
        """Return whether calls in the function around `node` were seen, so that the function was
        traced and not compiled."""
        around = next(
            (p for p in self.parents(node) if isinstance(p, _FunctionOrLambda)), self.module
        )
        return bool(self.called and self._calls_between(*_span(around)))

    def _calls_between(self, first: int, last: int) -> set[str]:
        return {name for line, names in self.called.items() if first <= line <= last
                for name in names}  # fmt: skip


class SourceFiles:
    """Files by the names that a trace or a run gives them. Nothing is raised: a file that is not
    there or cannot be parsed is None, and a finding then keeps the place that was measured.

    Kineto strips the search path from file names, so `data/loader.py` may be anywhere beneath a
    folder that was on it: the program's folder and its script's are tried.
    """

    def __init__(
        self,
        roots: Sequence[Path] = (),
        texts: dict[str, str] | None = None,
        called: Mapping[str, CalledLines] | None = None,
    ) -> None:
        """`texts` has files by name that are not looked for on disk. `called` has for each file
        the functions that its lines were seen calling in the traced steps."""
        self.called = called or {}
        self.roots = tuple(roots)
        self._texts = texts or {}
        self._kept: dict[str, SourceFile | None] = {}

    def get(self, file: str) -> SourceFile | None:
        if file not in self._kept:
            text = self._texts[file] if file in self._texts else self._read(file)
            self._kept[file] = parsed(text, file, self._called_in(file))
        return self._kept[file]

    def around(self, place: Place | None) -> Iterator[tuple[SourceFile, ast.AST]]:
        """Yield the nodes of the function around a place, each with its file, in the order of the
        source; nothing if its source cannot be read."""
        source = self.get(place.file) if place is not None else None
        if source is not None and place is not None:
            yield from ((source, node) for node in source.walk(source.scope(place.line)))

    def _called_in(self, file: str) -> CalledLines:
        """Return the calls seen in a file, found by its path or the end of its path: a trace names
        files without the entry of `sys.path`."""
        end = f"/{file.removeprefix('./')}"
        return next((c for f, c in self.called.items() if f == file or f.endswith(end)), {})

    def _read(self, file: str) -> str | None:
        if not file or not file.endswith(".py"):
            return None
        for path in (Path(file), *(root / file for root in self.roots)):
            try:
                if path.is_file() and path.stat().st_size <= MAX_SOURCE_BYTES:
                    return path.read_text(encoding="utf-8", errors="replace")
            except (OSError, ValueError):
                continue
        return None


def parsed(
    text: str | None, file: str = "", called: CalledLines | None = None
) -> SourceFile | None:
    """Return a text as a parsed file; None if there is no text or it is not Python."""
    if text is None:
        return None
    try:
        return SourceFile(file, text, called)
    except _UNREADABLE:
        return None


def parsed_expression(text: str) -> ast.expr | None:
    """Return an expression parsed anew, so that the caller may change it; None for other text."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except _UNREADABLE:
        return None


def dotted_name(node: ast.AST) -> str:
    """Return a name with its attributes, as in `self.model`; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def last_name(node: ast.AST | None) -> str:
    """Return the last part of a name, or of what a call calls: `item` of `loss.mean().item()`; ""
    for anything else."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def call_line(call: ast.Call) -> int:
    """Return the line that a profiler gives a call: in a chain over several lines, that of its last
    name."""
    return call.func.end_lineno or call.lineno


def is_on_line(node: ast.expr | ast.stmt, line: int) -> bool:
    """Return whether the text of a node includes a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    yield from (n for n in ast.walk(node) if isinstance(n, ast.Call))


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call gives for a keyword, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def names_in(node: ast.AST) -> set[str]:
    """Return the plain names in a node: `x` and `scale` of `x.abs() * scale`."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def targets_of(node: ast.AST) -> list[ast.expr]:
    """Return what an assignment assigns to, each target as written; [] for anything else."""
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def assigns(node: ast.AST, name: str) -> bool:
    """Return whether `node` is `name = …`, alone or as one of several targets."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in node.targets
    )


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, without `*args` and `**kwargs`."""
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _span(node: ast.AST) -> tuple[int, int]:
    """Return the first and last line of an expression; for a branch, those of its test."""
    node = getattr(node, "test", node)
    first = getattr(node, "lineno", 0)
    return first, getattr(node, "end_lineno", None) or first or 10**9


def _is_seen_if_made(node: ast.AST) -> bool:
    """Return whether the profiler records such a call. It records no calls of classes, such as
    `float()`."""
    return (
        isinstance(node, ast.Call)
        and not (isinstance(node.func, ast.Name) and node.func.id in _CLASSES)
        and not last_name(node)[:1].isupper()
    )


def first_line(function: Function | ast.ClassDef) -> int:
    """Return the line on which a definition begins: that of its first decorator, if it has any."""
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


_ALWAYS_BOUND = {*dir(builtins), "__file__", "__name__"}
_CONDITIONAL = ast.If | ast.For | ast.While | ast.Match | ast.AsyncFor | ast.ExceptHandler


class Binding(Struct, frozen=True, kw_only=True):
    name: str
    thing: str = ""
    """The dotted name of what an import binds; "" for other bindings."""
    module: str = ""
    """The module that was loaded for it."""
    line: int
    certain: bool
    """Whether the binding stands under no condition such as `if TYPE_CHECKING`."""


def imported(node: ast.AST, certain: bool = True) -> list[Binding]:
    """Return what an import statement binds; `from a import b` and `import a.b as b` bind the
    same."""
    bound = []
    if isinstance(node, ast.Import):
        for alias in node.names:
            thing = alias.name if alias.asname else alias.name.split(".")[0]
            bound.append((alias.asname or thing, thing, alias.name))
    elif isinstance(node, ast.ImportFrom):
        prefix = "." * node.level + (f"{node.module}." if node.module else "")
        for alias in node.names:
            bound.append((alias.asname or alias.name, prefix + alias.name, prefix + alias.name))
    line = getattr(node, "lineno", 0)
    return [
        Binding(name=name, thing=thing, module=module, line=line, certain=certain)
        for name, thing, module in bound
    ]


@lru_cache(maxsize=4)
def bindings(text: str) -> tuple[Binding, ...]:
    """Return what a file binds at its top level. Raises SyntaxError or ValueError."""
    return tuple(binding for node in ast.parse(text).body for binding in _bound(node, True))


@lru_cache(maxsize=4)
def aliases(text: str) -> dict[str, str]:
    """Return the names that a file gives anywhere by `import … as`, `name = thing` or
    `name = partial(thing, …)`, with the last name of what they stand for. A partial that gives
    arguments by position is left out: bare arguments are counted."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name.split(".")[-1]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(value, ast.Call):
                is_partial = last_name(value) == "partial" and len(value.args) == 1
                value = value.args[0] if is_partial else ast.Constant(None)
            thing = "" if isinstance(value, ast.Call) else last_name(value)
            if isinstance(target, ast.Name) and thing:
                found[target.id] = thing
    return found


def _bound(node: ast.AST, certain: bool) -> Iterator[Binding]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from imported(node, certain)
    elif isinstance(node, Function | ast.ClassDef):
        yield Binding(name=node.name, line=node.lineno, certain=certain)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield Binding(name=node.id, line=node.lineno, certain=certain)
    elif not isinstance(node, Comprehension | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child, certain and not isinstance(node, _CONDITIONAL))


def needed(code: str) -> set[str]:
    """Return the names that a piece of code reads and does not bind itself, builtins apart."""
    nodes = list(ast.walk(ast.parse(code)))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    reads: set[str] = set()
    for node in nodes:
        bound |= {binding.name for binding in imported(node)}
        if isinstance(node, Function | ast.ClassDef | ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return reads - bound - _ALWAYS_BOUND
