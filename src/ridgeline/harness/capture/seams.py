"""Where a run listens: eight functions of torch's, one of multiprocessing's, and two hooks that
torch offers.

Each is put back only while it is still ours: a program that patches the same function later keeps
its patch. In a program that compiled something the seams stay on with their gate closed, because
taking off what Dynamo traced through makes it compile again.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ridgeline.harness.capture import live
from ridgeline.harness.capture.instrument import instrumented
from ridgeline.harness.capture.session import Session
from ridgeline.records.run import Settings, Status
from ridgeline.records.run_directory import RunDirectory

_ours: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
"""What is ours, and what it stands for: a second block may find the first one's still on."""


_profiler_knows = False
"""The profiler, once used, knows calls of modules by our code object: without it a later profile of
the program's own would name no modules. Then that seam stays on for good, with its gate closed."""


class Seams:
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
            ("self", "args", "kwargs"),
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
        # Where loaders and processes were made only helps to explain: a run can do without it.
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            self._around(loader.DataLoader, "__init__", _itself, session.loader_made, ("self",))
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            self._around(process.BaseProcess, "start", session.child_starts, _nothing, ("self",))
        self._wrap_zero_grad(optimizer.Optimizer)
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
        anchor = progress.stepping.anchor.who
        # Nothing is counted for compiled code, which is left alone, nor for an optimizer that calls
        # the step of its parent class, because hooks see two steps there.
        counts = progress.stepping.mode == "optimizer" and not self._session.optimizers_nest

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
            raise TypeError(f"{name} is no plain function here")
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
        """A decorated function, whose source is not all it does: wrapped as it is."""
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
    path = Path(directory)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    asked = settings or RunDirectory(path).run().settings
    session = Session(torch, path, asked, rank, world)
    Seams(torch, session).put_on()
    live.follow_forks()
    live.session = live.listener = session
    return session


def end(session: Session, ended: Status, why: str) -> None:
    """Of a block: the seams come off, and the process goes on."""
    session.farewell(ended, why)
    progress = session.progress
    progress.detach(progress.compiling.seen, progress.recording.tracing.names_modules, False)
    live.session = live.listener = None
