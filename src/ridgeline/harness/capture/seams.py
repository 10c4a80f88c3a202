"""The seams by which a run listens: functions of torch and of multiprocessing that are compiled
again with our calls in them, and two hooks that torch offers.

A wrapper would add a frame: to every traceback the user reads, to the recursion depth, and to
`warnings.warn(stacklevel=2)`. So `instrumented` compiles a function's own source again, with its
own file name, lines and columns, and our calls around its body. torch.compile traces the body
alone: the first branch is folded away there, and no guard on our state is made.

Each function is put back only while it is still ours: a program that patches the same function
later keeps its patch. In a program that compiled something the seams stay on with their gate
closed, because taking off what Dynamo traced through makes it compile again.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ridgeline.harness.capture import live
from ridgeline.harness.capture.progress import Gate
from ridgeline.harness.capture.session import Session
from ridgeline.harness.capture.text_generation import show_compiled_decoding
from ridgeline.records.run import Settings, Status
from ridgeline.records.run_directory import RunDirectory

_ours: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
"""The original function for each function of ours: a second block may find the seams of the first
still on."""


_profiler_knows = False
"""Whether the profiler has learned to recognise calls of modules by our code object. A later
profile by the program would then name no modules without it, so that seam stays on, with its gate
closed."""


class Seams:
    _see_call: Callable[[Any, Any], Any] | None = None
    """Sees what outermost modules return, and returns it; None if nothing asks for that."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._put: list[tuple[Any, str, Any, Any]] = []
        self._handles: list[Any] = []

    def put_on(self) -> None:
        torch, session = self._torch, self._session
        loader = importlib.import_module("torch.utils.data.dataloader")
        scaler = importlib.import_module("torch.amp.grad_scaler")
        profiler = importlib.import_module("torch.autograd.profiler")
        optimizer = importlib.import_module("torch.optim.optimizer")
        self._around(
            torch.nn.Module, "__call__", session.call_begins, session.call_ends,
            ("self", "args", "kwargs"), self._see_call,
        )  # fmt: skip
        self._around(
            loader._BaseDataLoaderIter, "__next__", session.input_begins, session.input_ends,
            ("self",), session.input_seen,
        )  # fmt: skip
        self._around(
            torch.autograd, "backward", session.backward_begins, session.backward_ends,
            ("tensors",),
        )  # fmt: skip
        self._around(
            scaler.GradScaler, "step", session.scaler_begins, session.scaler_ends,
            ("self", "optimizer"),
        )  # fmt: skip
        self._around(
            scaler.GradScaler, "scale", session.scale_begins, _nothing, ("self", "outputs"),
            session.scale_seen,
        )  # fmt: skip
        self._around(
            profiler.profile, "_prepare_trace", session.profiler_begins, _nothing, ("self",)
        )
        process = importlib.import_module("multiprocessing.process")
        # A run can do without the lines at which loaders and processes were made.
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            self._around(loader.DataLoader, "__init__", _itself, session.loader_made, ("self",))
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            self._around(process.BaseProcess, "start", session.child_starts, _nothing, ("self",))
        self._wrap_zero_grad(optimizer.Optimizer)
        show_compiled_decoding(
            lambda: session.gate.closed, session.call_begins, session.call_ends, self._see_call
        )
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(session.optimizer_begins),
            optimizer.register_optimizer_step_post_hook(session.optimizer_ends),
        ]
        session.progress.detach = self.take_off

    def take_off(self, compiled: bool, traced: bool, goes_on: bool) -> None:
        """Take the hooks off. `compiled` says that something was compiled, which must not be
        compiled again; `traced`, that a trace names modules, which must not be lost. `goes_on` says
        that the program goes on after the windows, perhaps inside a step of an optimizer."""
        global _profiler_knows
        _profiler_knows = _profiler_knows or traced
        before, after = self._handles
        before.remove()
        if goes_on:
            self._leave_counter(after, compiled)
        else:
            after.remove()
        if compiled:
            return
        for owner, name, ours, theirs in reversed(self._put):
            stays = name == "__call__" and _profiler_knows
            if owner.__dict__.get(name) is ours and not stays:
                setattr(owner, name, theirs)

    def _leave_counter(self, handle: Any, compiled: bool) -> None:
        """Replace our hook by one that counts the anchor optimizer's steps (0.1 µs each), so that
        the report can tell how many steps were taken and how many of them were watched.

        The hook is replaced, not removed, because torch may be iterating over its hooks at this
        moment. Removing one then raises in a program that has a hook of its own behind ours."""
        hooks, progress = handle.hooks_dict_ref(), self._session.progress
        if hooks is None or handle.id not in hooks:
            return
        anchor = progress.stepping.anchor.optimizer_id
        # Nothing is counted for compiled code, which is left alone, nor for an optimizer that calls
        # the step of its parent class, because hooks see two steps there.
        counts = progress.stepping.mode == "optimizer" and not self._session.has_nested_optimizers

        def count(optimizer: Any, *rest: Any) -> None:
            if id(optimizer) == anchor:
                progress.steps_alone += 1

        progress.counts_alone = counts and not compiled
        hooks[handle.id] = count if progress.counts_alone else _no_hook

    def _around(
        self,
        owner: Any,
        name: str,
        enter: Callable[..., Any],
        leave: Callable[[Any], None],
        passing: Sequence[str],
        see: Callable[..., Any] | None = None,
    ) -> None:
        theirs = _ours.get(owner.__dict__[name], owner.__dict__[name])
        if not isinstance(theirs, FunctionType):
            raise TypeError(f"{name} is not a plain function in this version of torch")
        ours = instrumented(
            theirs,
            self._torch.compiler.is_dynamo_compiling,
            self._session.gate,
            enter,
            leave,
            passing=passing,
            see=see,
        )
        setattr(owner, name, ours)
        _ours[ours] = theirs
        self._put.append((owner, name, ours, theirs))

    def _wrap_zero_grad(self, owner: Any) -> None:
        """Put a wrapper around zero_grad. It is decorated, so its source alone is not the
        function."""
        theirs = _ours.get(owner.__dict__["zero_grad"], owner.__dict__["zero_grad"])
        session = self._session
        gate, begins, ends = session.gate, session.zero_grad_begins, session.zero_grad_ends

        @functools.wraps(theirs)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            if gate.closed:
                return theirs(self, *args, **kwargs)
            token = begins(self)
            try:
                return theirs(self, *args, **kwargs)
            finally:
                ends(token)

        owner.zero_grad = zero_grad
        _ours[zero_grad] = theirs
        self._put.append((owner, "zero_grad", zero_grad, theirs))


def _nothing(token: Any) -> None:
    pass


def _itself(made: Any) -> Any:
    return made


def _no_hook(optimizer: Any, *rest: Any) -> None:
    pass


def begin(torch: Any, directory: str, settings: Settings | None = None) -> Session:
    """Begin to record this process as the run in `directory`."""
    path = Path(directory)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    settings = settings or RunDirectory(path).run().settings
    session = Session(torch, path, settings, rank, world)
    Seams(torch, session).put_on()
    live.follow_forks()
    live.session = live.listener = session
    return session


def end(session: Session, ended: Status, why: str) -> None:
    """End the recording of a block: the seams come off, and the process goes on."""
    session.farewell(ended, why)
    progress = session.progress
    progress.detach(progress.compiling.seen, progress.recording.tracing.names_modules, False)
    live.session = live.listener = None


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
"""Our code for a function, by the function's own code and by whether its results are observed."""


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
    """Return `function` with `token = enter(*passing)` before and `leave(token)` after its body.
    `see(first, value)`, if given, is called with each value that the function returns and must
    return it; `first` is the first of `passing`. Raise ValueError if the source is not available.
    """
    # A function gets the same code object every time, because the profiler recognises module calls
    # by the code object that nn.Module.__call__ had when the profiler was first used.
    key = (function.__code__, see is not None)
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
    definition = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    ast.increment_lineno(tree, first - (2 if lines[0][:1].isspace() else 1))
    definition.decorator_list = []
    return _compile(definition, function.__code__, passing, sees)


def _compile(
    definition: ast.FunctionDef, original: CodeType, passing: Sequence[str], sees: bool
) -> CodeType:
    body = definition.body
    text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    doc, work = (body[:1], body[1:]) if text else ([], body)
    module = ast.parse(_FACTORY)
    factory = module.body[0]
    assert isinstance(factory, ast.FunctionDef)
    shell = factory.body[0]
    assert isinstance(shell, ast.FunctionDef)
    check, token, attempt = shell.body
    for node in (check, token, attempt):
        _place(node, definition.lineno)
    assert isinstance(check, ast.If)
    assert isinstance(token, ast.Assign)
    assert isinstance(attempt, ast.Try)
    # If the body does not return at its end, execution must not continue in our part.
    ending = ast.Return(value=None, lineno=definition.lineno, col_offset=0)
    check.body = [*work, ending]
    assert isinstance(token.value, ast.Call)
    token.value.args = [_name(name, definition.lineno) for name in passing]
    attempt.body = _seen(work, passing[0], definition.lineno) if sees else list(work)
    definition.body = [*doc, check, token, attempt]
    definition.returns = None
    _plain_arguments(definition.args)
    definition.name = shell.name  # inside the function, its own name still means the global
    factory.body[0] = definition
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
    """Remove the expressions of defaults and annotations, which must not run a second time: the
    values are copied from the original function."""
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [d and ast.Constant(None) for d in arguments.kw_defaults]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*every, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None


class _Returns(ast.NodeTransformer):
    """Replaces `return X` by `return see(first, X)`, in this function but not in nested ones."""

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
