"""Where a model stands in its source: the statement that makes it, the expression that is called
at a line, the statement after which that name is the model for good, and the lines from the call to
the backward.

Models are followed by names alone: what is called through an index or a call of its own is not
followed. Each function of the second part answers with a record, or with the reason why not.
"""

import ast
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.source.file import (
    Function,
    Scope,
    SourceFile,
    SourceFiles,
    calls_in,
    dotted_name,
)

_MOVES = ("to", "cuda")


class ModelMade(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    name: str
    """model"""
    text: str
    """The statement as written: model = Net().to(device)"""


def model_made(sources: SourceFiles, called_at: str) -> ModelMade | None:
    """Of the model called at `file:line`: the last statement of its file that assigns it or moves
    it, best one that moves it."""
    file, _, number = called_at.rpartition(":")
    source = sources.get(file) if file else None
    if source is None or not number.isdigit():
        return None
    for name in _names_called(source, int(number)):
        made = [n for n in ast.walk(source.module) if isinstance(n, ast.stmt) and _makes(n, name)]
        if made:
            moving = [node for node in made if _moves(node)]
            best = max(moving or made, key=lambda node: node.lineno)
            function = getattr(source.scope(best.lineno), "name", "")
            text = ast.get_source_segment(source.text, best) or ast.unparse(best)
            return ModelMade(file=file, line=best.lineno, function=function, name=name, text=text)
    return None


def with_memory_format(made: ModelMade, memory_format: str) -> str:
    """The statement with the memory format in its move, or one more that sets it."""
    moved = made.text.rstrip()
    if moved.endswith(")") and ".to(" in moved and not moved.endswith(".to()"):
        return f"{moved[:-1]}, memory_format=torch.{memory_format})"
    return f"{moved}\n{made.name} = {made.name}.to(memory_format=torch.{memory_format})"


def _names_called(source: SourceFile, line: int) -> list[str]:
    """Names called at a line, the innermost call first: the model in `loss(model(x), y)`."""
    calls = [
        node
        for node in ast.walk(source.module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    calls.sort(key=lambda node: (node.lineno, node.col_offset), reverse=True)
    return [node.func.id for node in calls if isinstance(node.func, ast.Name)]


def _makes(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        return (
            isinstance(func, ast.Attribute)
            and func.attr in _MOVES
            and isinstance(func.value, ast.Name)
            and func.value.id == name
        )
    return False


def _moves(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _MOVES
        for n in ast.walk(node)
    )


Others = Sequence[tuple[str, str]]
"""Files of the program, by path, with their texts."""
WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel")
_NO_BACKWARD = "no backward follows the model's call in its block"
_DEEP = 4
"""Functions a model is followed back through."""


class Called(Struct, frozen=True, kw_only=True):
    name: str
    """model, self.model"""
    first: int
    """Of the statement it is called in, and its last line."""
    last: int
    given: tuple[str, ...] = ()
    """Names it is called with, in their order, that may be given to something else there; "" for
    what is no such name."""


class MadeAt(Struct, frozen=True, kw_only=True):
    line: int
    """The statement after which it stands, by its first line."""
    name: str
    """The model there, without DDP around it: model.module."""
    file: str = ""
    """Of another file, where it is made there."""


def called(text: str, line: int, kind: str = "") -> Called | str:
    """`kind` is the model's class, where known: of several names called on the line, the one that
    is made from it."""
    tree = _tree(text)
    if isinstance(tree, str):
        return tree
    call = _model_call(tree, line, kind)
    if isinstance(call, str):
        return call
    statement = tree.statement_of(call)
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)]
    own = _names_of(tree.scope_of(call))
    return Called(
        name=dotted_name(call.func),
        first=statement.lineno,
        last=statement.end_lineno or statement.lineno,
        given=tuple(one.id if isinstance(one, ast.Name) and one.id in own else "" for one in given),
    )


def _names_of(scope: Scope) -> set[str]:
    """Names that may be given to something else there: in a function its own, not those around
    it, which an assignment would hide."""
    stored = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and _stores(n)}
    if not isinstance(scope, Function):
        return stored
    far = {name for n in ast.walk(scope) if isinstance(n, ast.Global) for name in n.names}
    inner = [n for n in ast.walk(scope) if isinstance(n, Function) and n is not scope]
    theirs = {
        n.id for one in inner for n in ast.walk(one) if isinstance(n, ast.Name) and _stores(n)
    }
    return (stored - theirs) | set(_parameters(scope)) | far


def _stores(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def call_of(text: str, line: int, kind: str = "") -> tuple[SourceFile, ast.Call] | str:
    """The model's call at that line, in its tree."""
    tree = _tree(text)
    if isinstance(tree, str):
        return tree
    call = _model_call(tree, line, kind)
    return call if isinstance(call, str) else (tree, call)


def made(text: str, line: int, kind: str = "", others: Others = ()) -> MadeAt | str:
    """Of the model called at that line. `others`: files it may have been handed over from."""
    tree = _tree(text)
    if isinstance(tree, str):
        return tree
    call = _model_call(tree, line, kind)
    if isinstance(call, str):
        return call
    found = _find_made(tree, dotted_name(call.func), call, _DEEP)
    if isinstance(found, MadeAt) or not others:
        return found
    return _made_in_others(tree, dotted_name(call.func), call, others) or found


def to_backward(text: str, line: int, kind: str = "") -> tuple[int, int] | str:
    """First and last line of the statements from the call to before the backward, or to the end of
    the block that returns the loss."""
    found = _onward(text, line, kind)
    if isinstance(found, str):
        return found
    rest, runs = found
    if not rest:
        return "the model's call and the backward are one statement"
    if runs is None and not isinstance(rest[-1], ast.Return):
        return _NO_BACKWARD
    return rest[0].lineno, rest[-1].end_lineno or rest[-1].lineno


def backward(text: str, line: int, kind: str = "") -> tuple[int, int] | str:
    """First and last line of the statement that runs the backward of what the model returned."""
    found = _onward(text, line, kind)
    if isinstance(found, str):
        return found
    runs = found[1]
    return _NO_BACKWARD if runs is None else (runs.lineno, runs.end_lineno or runs.lineno)


def _onward(text: str, line: int, kind: str) -> tuple[list[ast.stmt], ast.stmt | None] | str:
    """The statements of the block from the call on, and the one that runs the backward, which may
    follow the `with` the call is in."""
    tree = _tree(text)
    if isinstance(tree, str):
        return tree
    call = _model_call(tree, line, kind)
    if isinstance(call, str):
        return call
    start = tree.statement_of(call)
    if isinstance(start, ast.If | ast.For | ast.While | ast.With):
        return f"the model is called in the header of the statement on line {start.lineno}"
    rest = _from(tree, start)
    for at, one in enumerate(rest):
        if _runs_backward(one):
            return rest[:at], one
    around = next(tree.parents(start))
    while isinstance(around, ast.With):
        for one in _from(tree, around)[1:]:
            if _runs_backward(one):
                return rest, one
        around = next(tree.parents(around))
    return rest, None


def _from(tree: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    block = tree.block_of(statement)
    return block[block.index(statement) :]


def _runs_backward(statement: ast.stmt) -> bool:
    names = (
        getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls_in(statement)
    )
    return any(name.endswith("backward") for name in names)


def _tree(text: str) -> SourceFile | str:
    try:
        return SourceFile("", text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"the file cannot be read as Python: {error}"


def _model_call(tree: SourceFile, line: int, kind: str) -> ast.Call | str:
    """The model's among the calls on a line: run-time frames name lines, not columns."""
    every = [c for c in calls_in(tree.module) if c.lineno <= line <= (c.end_lineno or c.lineno)]
    exact = [c for c in every if c.lineno == line] or every
    if any(dotted_name(c.func) == "self" for c in exact):
        return f"the model calls itself on line {line}"
    found = []
    for call in exact:
        name = dotted_name(call.func)
        if name and (values := _values(tree, name, call)):
            text = " ".join(values)
            ours = bool(kind) and f"{kind}(" in text
            loss = "loss" in text.lower() or "criterion" in name.lower()
            named = name.rpartition(".")[2].lower() in ("model", "net", "network")
            found.append(((ours, not loss, named, call.col_offset), call))
    if not found:
        return f"no model is called by a name on line {line}"
    return max(found, key=lambda one: one[0])[1]


def _values(tree: SourceFile, name: str, call: ast.Call) -> list[str]:
    """What is assigned to that name anywhere it may come from; an argument's own name."""
    found = []
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Assign | ast.AnnAssign) and _assigns(node, name):
            found.append(ast.unparse(node.value) if node.value is not None else "")
    for scope in tree.parents(call):
        if isinstance(scope, Function) and name in _parameters(scope):
            found.append(name)
    return found


def _find_made(tree: SourceFile, name: str, use: ast.AST, deep: int) -> MadeAt | str:
    if name.startswith("self."):
        return _made_of_class(tree, name, use)
    for scope in tree.parents(use):
        if isinstance(scope, ast.ClassDef) or not isinstance(scope, Function | ast.Module):
            continue
        own = tree.scope_of(use) is scope
        before = tree.statement_of(use).lineno if own else 10**9
        found = [s for s in tree.statements_in(scope) if _assigns(s, name) and s.lineno < before]
        if found:
            return _settled(tree, found[-1], use if own else None, name)
        if isinstance(scope, Function) and name in _parameters(scope):
            return _made_by_caller(tree, scope, name, deep)
    return f"{name} is not assigned in this file before line {_line(use)}"


def _made_of_class(tree: SourceFile, name: str, use: ast.AST) -> MadeAt | str:
    own = next((n for n in tree.parents(use) if isinstance(n, ast.ClassDef)), None)
    if own is None:
        return f"{name} is used outside a class"
    kinds = [own, *(n for n in ast.walk(tree.module) if isinstance(n, ast.ClassDef))]
    bases = {dotted_name(base) for base in own.bases}
    for kind in (kinds[0], *(k for k in kinds[1:] if k.name in bases)):
        methods = [n for n in kind.body if isinstance(n, Function)]
        methods.sort(key=lambda method: method.name != "__init__")
        for method in methods:
            found = [s for s in tree.statements_in(method) if _assigns(s, name)]
            if found:
                same = tree.scope_of(use) is method
                return _settled(tree, found[-1], use if same else None, name)
    return f"{name} is not assigned in its class in this file"


def _made_in_others(
    tree: SourceFile, name: str, use: ast.AST, others: Others
) -> MadeAt | str | None:
    """Where a function of this file gets its model from the one file that calls it; None where
    that is not how it gets it."""
    function = next((n for n in tree.parents(use) if isinstance(n, Function)), None)
    if function is None or name not in _parameters(function):
        return None
    found: list[MadeAt] = []
    for file, text in others:
        other = _tree(text) if function.name in text and text != tree.text else ""
        if isinstance(other, str):
            continue
        where = _from_callers(other, function, _handed(tree, function), name, _DEEP)
        if isinstance(where, MadeAt):
            found.append(replace(where, file=file))
        elif where:
            return where
    return found[0] if len(found) == 1 else None


def _handed(tree: SourceFile, function: Function) -> list[str]:
    """Its parameters as callers give them: a method's without self."""
    method = isinstance(tree.scope_of(function), ast.ClassDef)
    return _parameters(function)[1 if method else 0 :]


def _made_by_caller(tree: SourceFile, function: Function, name: str, deep: int) -> MadeAt | str:
    found = _from_callers(tree, function, _handed(tree, function), name, deep)
    return found or f"{name} comes from where {function.name}() is called, in another file"


def _from_callers(
    tree: SourceFile, function: Function, parameters: list[str], name: str, deep: int
) -> MadeAt | str:
    """ "" where nothing in this tree calls it."""
    answers: list[MadeAt | str] = []
    for call in calls_in(tree.module):
        if (
            dotted_name(call.func).rpartition(".")[2] != function.name
            or tree.scope_of(call) is function
        ):
            continue
        at = parameters.index(name) if name in parameters else -1
        handed = call.args[at] if 0 <= at < len(call.args) else None
        for keyword in call.keywords:
            handed = keyword.value if keyword.arg == name else handed
        theirs = dotted_name(handed) if handed is not None else ""
        if not theirs:
            return f"line {call.lineno} hands {name} over without a name"
        answers.append(
            _find_made(tree, theirs, call, deep - 1) if deep else "it comes from far away"
        )
    if any(one != answers[0] for one in answers):
        return f"{function.name}() gets {name} from several places"
    return answers[0] if answers else ""


def _settled(tree: SourceFile, assigned: ast.stmt, use: ast.AST | None, name: str) -> MadeAt | str:
    """After the whole `if` where a branch assigns it: the other branch's model is one too."""
    if (
        use is not None
        and tree.loop_of(use) is not None
        and tree.loop_of(use) is tree.loop_of(assigned)
    ):
        return f"{name} is assigned anew at every pass, on line {assigned.lineno}"
    shared = set(tree.parents(use)) if use is not None else set()
    statement = assigned
    for outer in tree.parents(assigned):
        if outer in shared or not isinstance(outer, ast.stmt) or isinstance(outer, Function):
            break
        if isinstance(outer, ast.If) and "__name__" in ast.unparse(outer.test):
            break
        statement = outer
    wrapped = statement is assigned and _wraps(assigned)
    return MadeAt(line=statement.lineno, name=f"{name}.module" if wrapped else name)


def _wraps(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and dotted_name(value.func).rpartition(".")[2] in WRAPPERS


def _assigns(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = []
        for target in node.targets:
            targets += target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        return any(dotted_name(target) == name for target in targets)
    return (
        isinstance(node, ast.AnnAssign)
        and node.value is not None
        and dotted_name(node.target) == name
    )


def _parameters(function: Scope) -> list[str]:
    assert isinstance(function, Function)
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [one.arg for one in every]


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
