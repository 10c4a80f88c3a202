"""Finds where a model stands in its source: the statement that makes it, the expression that is
called at a line, the statement after which that name is the model for good, and the lines from the
call to the backward.

Models are followed by names alone: what is called through an index or a call of its own is not
followed. Each function of the second part answers with a record, or with the reason why not. The
last part finds calls of cross-entropy, by the function's name or through a CrossEntropyLoss of the
same file, and makes the edits that put another function in their place.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.edit import Edit, Keyword, Replace, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.file import (
    Function,
    Scope,
    SourceFile,
    SourceFiles,
    assigns,
    calls_in,
    dotted_name,
    keyword_value,
    last_name,
    parameters,
    parsed,
    targets_of,
)

Others = Sequence[tuple[str, str]]
"""Files of the program, by path, with their texts."""
_MOVING = ("to", "cuda")
GENERATE = "generate"
"""The method of transformers that writes text."""
_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel")
_NO_BACKWARD = because(Obstacle.NO_BACKWARD)
_MAX_CALLERS = 4
"""Functions that a model is followed back through."""

_FUNCTION = "cross_entropy"
_CLASS = "CrossEntropyLoss"


class ModelMade(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    name: str
    """model"""
    text: str
    """The statement as written: model = Net().to(device)"""


class Called(Struct, frozen=True, kw_only=True):
    name: str
    """model, self.model"""
    first: int
    """The first line of the statement that the model is called in."""
    last: int
    given: tuple[str, ...] = ()
    """The names that the model is called with, in their order, which may be assigned anew there; ""
    for what is no such name."""


class MadeAt(Struct, frozen=True, kw_only=True):
    line: int
    """The first line of the statement after which the model stands."""
    name: str
    """The model there, without DDP around it: model.module."""
    file: str = ""
    """The file, if the model is made in another one."""


def model_made(sources: SourceFiles, called_at: str) -> ModelMade | None:
    """Return the last statement that assigns the model called at `file:line` or moves it to the
    device, best one that moves it."""
    file, _, number = called_at.rpartition(":")
    source = sources.get(file) if file else None
    if source is None or not number.isdigit():
        return None
    calls = [c for c in source.calls_on_line(int(number)) if isinstance(c.func, ast.Name)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset), reverse=True)
    for call in calls:  # the innermost first: the model in `loss(model(x), y)`
        name = last_name(call)
        made = [n for n in source.nodes if isinstance(n, ast.stmt)
                and (assigns(n, name) or _is_move(n, name))]  # fmt: skip
        if made:
            best = max([n for n in made if _moves(n)] or made, key=lambda node: node.lineno)
            return ModelMade(
                file=file, line=best.lineno, function=source.function_name(best.lineno), name=name,
                text=source.segment(best),
            )  # fmt: skip
    return None


def with_memory_format(made: ModelMade, memory_format: str) -> str:
    """Return the statement with the memory format in its move, or with one more that sets it."""
    moved = made.text.rstrip()
    if moved.endswith(")") and ".to(" in moved and not moved.endswith(".to()"):
        return f"{moved[:-1]}, memory_format=torch.{memory_format})"
    return f"{moved}\n{made.name} = {made.name}.to(memory_format=torch.{memory_format})"


def _is_move(node: ast.stmt, name: str) -> bool:
    """Return whether a statement is model.to(…) or model.cuda(…)."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and dotted_name(call.func) in [f"{name}.{m}" for m in _MOVING]


def _moves(node: ast.AST) -> bool:
    return any(isinstance(c.func, ast.Attribute) and c.func.attr in _MOVING for c in calls_in(node))


def called(text: str, line: int, kind: str = "") -> Called | Reason:
    """Return the call of the model on a line. `kind` is the model's class, if it is known: of
    several names called on the line, the one that is made from it."""
    found = call_of(text, line, kind)
    if isinstance(found, Reason):
        return found
    source, call = found
    statement = source.statement_of(call)
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)]
    own = _names_of(source.scope_of(call))
    return Called(
        name=_model_name(call),
        first=statement.lineno,
        last=statement.end_lineno or statement.lineno,
        given=tuple(one.id if isinstance(one, ast.Name) and one.id in own else "" for one in given),
    )


def _model_name(call: ast.Call) -> str:
    """Return the name of the model in `model(x)` and in `model.generate(x)`, which calls it for
    each token."""
    return dotted_name(call.func).removesuffix(f".{GENERATE}")


def _names_of(scope: Scope) -> set[str]:
    """Return the names that may be assigned anew in a scope: in a function its own, not those
    around it, which an assignment would hide."""
    stored = _stored(scope)
    if not isinstance(scope, Function):
        return stored
    far = {name for n in ast.walk(scope) if isinstance(n, ast.Global) for name in n.names}
    inner = [n for n in ast.walk(scope) if isinstance(n, Function) and n is not scope]
    return (stored - {name for one in inner for name in _stored(one)}) | {*parameters(scope)} | far


def _stored(scope: ast.AST) -> set[str]:
    names = (n for n in ast.walk(scope) if isinstance(n, ast.Name))
    return {name.id for name in names if not isinstance(name.ctx, ast.Load)}


def call_of(text: str, line: int, kind: str = "") -> tuple[SourceFile, ast.Call] | Reason:
    """Return the file and the model's call among the calls on a line: run-time frames name lines,
    not columns."""
    try:
        source = SourceFile("", text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return because(Obstacle.NOT_PYTHON, error=str(error))
    every = source.calls_on_line(line)
    exact = [c for c in every if c.lineno == line] or every
    if any(dotted_name(c.func) == "self" for c in exact):
        return because(Obstacle.MODEL_CALLS_ITSELF, line=line)
    found = []
    for call in exact:
        name = _model_name(call)
        if name and (values := _values(source, name, call)):
            text = " ".join(values)
            ours = bool(kind) and f"{kind}(" in text
            loss = "loss" in text.lower() or "criterion" in name.lower()
            named = name.rpartition(".")[2].lower() in ("model", "net", "network")
            found.append(((ours, not loss, named, call.col_offset), call))
    if not found:
        return because(Obstacle.NO_NAMED_CALL, line=line)
    return source, max(found, key=lambda one: one[0])[1]


def made(text: str, line: int, kind: str = "", others: Others = ()) -> MadeAt | Reason:
    """Return where the model called on a line is made. `others` are files that it may have been
    handed over from."""
    found = call_of(text, line, kind)
    if isinstance(found, Reason):
        return found
    source, call = found
    name = _model_name(call)
    where = _find_made(source, name, call, _MAX_CALLERS)
    if isinstance(where, MadeAt) or not others:
        return where
    return _made_in_others(source, name, call, others) or where


def to_backward(text: str, line: int, kind: str = "") -> tuple[int, int] | Reason:
    """Return the first and last line of the statements from the call to before the backward, or to
    the end of the block that returns the loss."""
    found = _onward(text, line, kind)
    if isinstance(found, Reason):
        return found
    rest, runs = found
    if not rest:
        return because(Obstacle.ONE_STATEMENT)
    if runs is None and not isinstance(rest[-1], ast.Return):
        return _NO_BACKWARD
    return rest[0].lineno, rest[-1].end_lineno or rest[-1].lineno


def backward(text: str, line: int, kind: str = "") -> tuple[int, int] | Reason:
    """Return the first and last line of the statement that runs the backward of what the model
    returned."""
    found = _onward(text, line, kind)
    if isinstance(found, Reason):
        return found
    runs = found[1]
    return _NO_BACKWARD if runs is None else (runs.lineno, runs.end_lineno or runs.lineno)


def _onward(text: str, line: int, kind: str) -> tuple[list[ast.stmt], ast.stmt | None] | Reason:
    """Return the statements of the block from the call on, and the one that runs the backward,
    which may follow the `with` that the call is in."""
    found = call_of(text, line, kind)
    if isinstance(found, Reason):
        return found
    source, call = found
    start = source.statement_of(call)
    if isinstance(start, ast.If | ast.For | ast.While | ast.With):
        return because(Obstacle.CALL_IN_HEADER, line=start.lineno)
    block = source.block_of(start)
    rest = block[block.index(start) :]
    for index, statement in enumerate(rest):
        if _runs_backward(statement):
            return rest[:index], statement
    around = next(source.parents(start))
    while isinstance(around, ast.With):
        block = source.block_of(around)
        for statement in block[block.index(around) + 1 :]:
            if _runs_backward(statement):
                return rest, statement
        around = next(source.parents(around))
    return rest, None


def _runs_backward(statement: ast.stmt) -> bool:
    return any(last_name(call).endswith("backward") for call in calls_in(statement))


def _values(source: SourceFile, name: str, call: ast.Call) -> list[str]:
    """Return what is assigned to a name anywhere it may come from; for a parameter, its own
    name."""
    found = []
    for node in source.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _assigns(node, name):
            found.append(ast.unparse(node.value) if node.value is not None else "")
    scopes = (scope for scope in source.parents(call) if isinstance(scope, Function))
    return found + [name for scope in scopes if name in parameters(scope)]


def _find_made(source: SourceFile, name: str, use: ast.AST, callers: int) -> MadeAt | Reason:
    if name.startswith("self."):
        return _made_of_class(source, name, use)
    for scope in source.parents(use):
        if not isinstance(scope, Function | ast.Module):
            continue
        own = source.scope_of(use) is scope
        before = source.statement_of(use).lineno if own else 10**9
        found = [s for s in source.statements_in(scope) if _assigns(s, name) and s.lineno < before]
        if found:
            return _settled(source, found[-1], use if own else None, name)
        if isinstance(scope, Function) and name in parameters(scope):
            where = _from_callers(source, scope, _handed(source, scope), name, callers)
            return where or because(Obstacle.MADE_IN_OTHER_FILE, name=name, function=scope.name)
    return because(Obstacle.NOT_ASSIGNED_BEFORE, name=name, line=getattr(use, "lineno", 0))


def _made_of_class(source: SourceFile, name: str, use: ast.AST) -> MadeAt | Reason:
    own = source.class_of(use)
    if own is None:
        return because(Obstacle.OUTSIDE_A_CLASS, name=name)
    names = {dotted_name(base) for base in own.bases}
    bases = [n for n in source.nodes if isinstance(n, ast.ClassDef) and n.name in names]
    for kind in (own, *bases):
        methods = [n for n in kind.body if isinstance(n, Function)]
        for method in sorted(methods, key=lambda method: method.name != "__init__"):
            found = [s for s in source.statements_in(method) if _assigns(s, name)]
            if found:
                same = source.scope_of(use) is method
                return _settled(source, found[-1], use if same else None, name)
    return because(Obstacle.NOT_ASSIGNED_IN_CLASS, name=name)


def _made_in_others(
    source: SourceFile, name: str, use: ast.AST, others: Others
) -> MadeAt | Reason | None:
    """Return where a function of this file gets its model from the one file that calls it; None if
    that is not how it gets it."""
    function = source.function_of(use)
    if function is None or name not in parameters(function):
        return None
    found: list[MadeAt] = []
    for file, text in others:
        other = parsed(text) if function.name in text and text != source.text else None
        if other is None:
            continue
        where = _from_callers(other, function, _handed(source, function), name, _MAX_CALLERS)
        if isinstance(where, MadeAt):
            found.append(replace(where, file=file))
        elif where:
            return where
    return found[0] if len(found) == 1 else None


def _handed(source: SourceFile, function: Function) -> list[str]:
    """Return a function's parameters as callers give them: a method's without self."""
    method = isinstance(source.scope_of(function), ast.ClassDef)
    return parameters(function)[1 if method else 0 :]


def _from_callers(
    source: SourceFile, function: Function, handed: list[str], name: str, callers: int
) -> MadeAt | Reason | None:
    """Return where the callers of a function make what they give for `name`; None if nothing in
    this file calls it."""
    answers: list[MadeAt | Reason] = []
    for call in source.calls:
        if last_name(call) != function.name or source.scope_of(call) is function:
            continue
        position = handed.index(name) if name in handed else len(call.args)
        given = call.args[position] if position < len(call.args) else None
        given = keyword_value(call, name) or given
        theirs = dotted_name(given) if given is not None else ""
        if not theirs:
            return because(Obstacle.HANDED_WITHOUT_NAME, line=call.lineno, name=name)
        far = because(Obstacle.FAR_AWAY)
        answers.append(_find_made(source, theirs, call, callers - 1) if callers else far)
    if any(one != answers[0] for one in answers):
        return because(Obstacle.FROM_SEVERAL_PLACES, function=function.name, name=name)
    return answers[0] if answers else None


def _settled(
    source: SourceFile, assigned: ast.stmt, use: ast.AST | None, name: str
) -> MadeAt | Reason:
    """Return the place after a statement that assigns the model; after the whole `if` if a branch
    assigns it, since the other branch's model is one too."""
    loop = source.loop_of(use) if use is not None else None
    if loop is not None and loop is source.loop_of(assigned):
        return because(Obstacle.ASSIGNED_EVERY_PASS, name=name, line=assigned.lineno)
    shared = set(source.parents(use)) if use is not None else set()
    statement = assigned
    for outer in source.parents(assigned):
        if outer in shared or not isinstance(outer, ast.stmt) or isinstance(outer, Function):
            break
        if isinstance(outer, ast.If) and "__name__" in ast.unparse(outer.test):
            break
        statement = outer
    whole = f"{name}.module" if statement is assigned and _is_wrapped(assigned) else name
    return MadeAt(line=statement.lineno, name=whole)


def _is_wrapped(assigned: ast.stmt) -> bool:
    """Return whether a statement assigns a model in DDP or DataParallel, moved or not."""
    value = getattr(assigned, "value", None)
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _MOVING
    ):
        value = value.func.value
    return isinstance(value, ast.Call) and last_name(value) in _WRAPPERS


def _assigns(node: ast.stmt, name: str) -> bool:
    """Return whether a statement assigns to a dotted name, also as an item of a tuple."""
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return False
    for target in targets_of(node):
        items = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        if any(dotted_name(item) == name for item in items):
            return True
    return False


def loss_edits(
    file: str, text: str, line: int, name: str, code: str, why: str, settings: Mapping[str, str]
) -> tuple[Edit, ...]:
    """Return the edits that call `name`, which `code` defines and which takes what cross_entropy
    does, in its place; none if no cross_entropy is called by its name on that line. Only the call's
    name and keywords are edited: its arguments may be edited by others."""
    source = parsed(text)
    found = _loss_call(source, line) if source is not None else None
    if found is None:
        return ()
    call, own_settings = found
    was = dotted_name(call.func)
    positional = ("input", "target") if own_settings is not None else ()
    own = {one: f"{was}.{one}" for one in own_settings or ()}
    return (
        Top(file=file, where="after imports", text=code, why=why),
        Replace(file=file, line=line, before=was, after=name, why=why),
        *(
            Keyword(
                file=file, line=line, call=last_name(call), name=key, value=value, why=why,
                positional=positional,
            )
            for key, value in {**own, **settings}.items()
        ),
    )  # fmt: skip


def given_to_loss(source: SourceFile) -> Iterator[ast.AST]:
    """Yield every node of the logits that a cross-entropy is given."""
    objects = _loss_objects(source)
    for call in source.calls:
        if dotted_name(call.func) in objects or last_name(call) == _FUNCTION:
            logits = keyword_value(call, "input")
            for node in (*call.args[:1], *([logits] if logits is not None else [])):
                yield from ast.walk(node)


def _loss_objects(source: SourceFile) -> dict[str, list[str]]:
    """Return the names of CrossEntropyLoss objects, with the keywords they are made with."""
    found: dict[str, list[str]] = {}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value
            if last_name(made) == _CLASS:
                weight = ["weight"] if made.args else []
                keywords = [keyword.arg for keyword in made.keywords if keyword.arg]
                found.update({dotted_name(target): [*weight, *keywords] for target in node.targets})
    return found


def _loss_call(source: SourceFile, line: int) -> tuple[ast.Call, list[str] | None] | None:
    """Return the call of the function, with None; or that of a CrossEntropyLoss of this file, with
    the settings it was made with."""
    objects = _loss_objects(source)
    for call in source.calls_on_line(line):
        name = dotted_name(call.func)
        if last_name(call) == _FUNCTION and len(call.args) < 4:
            return call, None
        if name in objects and len(call.args) == 2 and not call.keywords:
            return call, objects[name]
    return None
