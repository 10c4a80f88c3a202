"""Puts a call at the beginning and the end of one of torch's own Python functions, unseen.

A wrapper would add a frame: to every traceback the user reads, to the recursion depth, to
`warnings.warn(stacklevel=2)`. So the function's own source is compiled again, with its own file
name, lines and columns, and our calls around its body. What torch.compile traces is the body alone:
the first branch is folded away there, and no guard on our state is made.
"""

import ast
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

_FACTORY = """
def factory(_r_compiling, _r_gate, _r_enter, _r_leave, _r_see):
    def _r_function():
        if _r_compiling() or _r_gate.closed:
            pass
        _r_token = _r_enter()
        try:
            pass
        finally:
            _r_leave(_r_token)
    return _r_function
"""


_made: dict[tuple[CodeType, bool], CodeType] = {}
"""By the function's own code, and whether what it returns is seen."""


class Gate:
    """Closed: nothing is to be noted, and every seam runs its body at once."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False


def instrumented(
    function: FunctionType,
    compiling: Callable[[], bool],
    gate: Gate,
    enter: Callable[..., Any],
    leave: Callable[[Any], None],
    *,
    passing: Sequence[str],
    see: Callable[..., Any] | None = None,
) -> FunctionType:
    """`function` with `token = enter(*passing)` before and `leave(token)` after its body; `see`
    gets each value returned, with the first of `passing`, and gives it back. Raises ValueError
    where the source cannot be had."""
    # One code object for a function, however often it is put on: the profiler knows module calls
    # by the code object that nn.Module.__call__ had when it was first used.
    key = (function.__code__, see is not None)  # what sees calls `see`, and None is no function
    code = _made.get(key)
    if code is None:
        code = _made[key] = _code_of(function, passing, see is not None)
    values = {
        "_r_compiling": compiling,
        "_r_gate": gate,
        "_r_enter": enter,
        "_r_leave": leave,
        "_r_see": see,
    }
    made = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(_cell(values[name]) for name in code.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__ = function.__doc__
    made.__module__ = function.__module__
    made.__qualname__ = function.__qualname__
    made.__annotations__ = function.__annotations__
    made.__dict__.update(function.__dict__)
    return made


def _code_of(function: FunctionType, passing: Sequence[str], sees: bool) -> CodeType:
    if function.__closure__:
        raise ValueError(f"{function.__qualname__} closes over variables")
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise ValueError(f"no source of {function.__qualname__}: {error}") from error
    # A header of one line keeps every column right, however deep the function is indented.
    tree = ast.parse("if 1:\n" + "".join(lines) if lines[0][:1].isspace() else "".join(lines))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    ast.increment_lineno(tree, first - (2 if lines[0][:1].isspace() else 1))
    found.decorator_list = []
    return _compile(found, function.__code__, passing, sees)


def _compile(
    found: ast.FunctionDef, original: CodeType, passing: Sequence[str], sees: bool
) -> CodeType:
    body = found.body
    text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    doc, work = (body[:1], body[1:]) if text else ([], body)
    module = ast.parse(_FACTORY)
    factory = module.body[0]
    assert isinstance(factory, ast.FunctionDef)
    shell = factory.body[0]
    assert isinstance(shell, ast.FunctionDef)
    check, token, attempt = shell.body
    for node in (check, token, attempt):
        _place(node, found.lineno)
    assert isinstance(check, ast.If)
    assert isinstance(token, ast.Assign)
    assert isinstance(attempt, ast.Try)
    # Where the body does not return at its end, it must not run on into ours.
    ending = ast.Return(value=None, lineno=found.lineno, col_offset=0)
    check.body = [*work, ending]
    assert isinstance(token.value, ast.Call)
    token.value.args = [_name(name, found.lineno) for name in passing]
    attempt.body = _seen(work, passing[0], found.lineno) if sees else list(work)
    found.body = [*doc, check, token, attempt]
    found.returns = None
    _plain_arguments(found.args)
    found.name = shell.name  # a function may name itself: that is the global, not this one
    factory.body[0] = found
    ast.fix_missing_locations(module)
    outer = compile(
        module, original.co_filename, "exec", dont_inherit=True, flags=_future(original)
    )
    made = _inner(_inner(outer, "factory"), shell.name)
    return made.replace(
        co_name=original.co_name,
        co_qualname=original.co_qualname,
        co_firstlineno=original.co_firstlineno,
    )


def _plain_arguments(arguments: ast.arguments) -> None:
    """Defaults and annotations are carried over as objects; their expressions are not run again."""
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [d and ast.Constant(None) for d in arguments.kw_defaults]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*every, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None


class _Returns(ast.NodeTransformer):
    """return X → return see(first, X), in this function and not in those inside it."""

    def __init__(self, first: str, line: int) -> None:
        self._first = first
        self._line = line

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is None:
            return node
        call = ast.Call(
            _name("_r_see", self._line), [_name(self._first, self._line), node.value], []
        )
        return ast.copy_location(ast.Return(ast.copy_location(call, node)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node


def _seen(work: Sequence[ast.stmt], first: str, line: int) -> list[ast.stmt]:
    from copy import deepcopy

    return [_Returns(first, line).visit(deepcopy(node)) for node in work]


def _place(node: ast.AST, line: int) -> None:
    for child in ast.walk(node):
        if hasattr(child, "lineno"):
            child.lineno = child.end_lineno = line  # type: ignore[attr-defined]


def _name(name: str, line: int) -> ast.Name:
    return ast.Name(name, ast.Load(), lineno=line, col_offset=0)


def _inner(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _future(code: CodeType) -> int:
    import __future__

    every = (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    mask = 0
    for flag in every:
        mask |= flag
    return code.co_flags & mask


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]
