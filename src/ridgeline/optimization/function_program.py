"""A step function as fixes and the harness see it. Its loader and optimizer exist already, so that
a fix which would act when they are made acts on a copy of the loader and on the optimizer
itself."""

import contextlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_map_only

from ridgeline.errors import UsageError
from ridgeline.fixes.live_objects import LiveProgram, alter_optimizer, torch_class_of
from ridgeline.fixes.program import Made, Program
from ridgeline.fixes.step_graph import Run, StepFunction
from ridgeline.harness.capture import live
from ridgeline.harness.capture.session import Session
from ridgeline.harness.capture.step_counts import NOTHING, batch_amount
from ridgeline.harness.race.feeds import end_workers
from ridgeline.harness.trials.function_edits import found_at
from ridgeline.harness.trials.session import TrialSession
from ridgeline.harness.usercode.forked_work import DirectWork
from ridgeline.optimization.function_state import SavedState, everything_restored
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import FunctionEdit, Plan

_FORMS = {
    True: "write step(model, optimizer, batch), or step(batch) that closes over both",
    False: "write step(model, batch), or step(batch); one that trains needs optimizer=",
}
"""What to write, by whether the step trains."""


class StepSubject:
    """Holds what is optimized: a step function with its model, its loader and, if it trains, its
    optimizer."""

    def __init__(self, torch: Any, step: Any, model: Any, optimizer: Any, loader: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"model is a {_name(model)}, not an nn.Module")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"optimizer is a {_name(optimizer)}, not one of torch.optim")
        self.step = step
        self.trains = optimizer is not None
        self.takes = _takes(step, self.trains)
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.has_loader = isinstance(loader, torch.utils.data.DataLoader)
        self.device = _device(torch, model)
        _check_loader(loader)

    def call(self, batch: Any) -> Any:
        if self.takes == 1:
            return self.step(batch)
        if self.takes == 2:
            return self.step(self.model, batch)
        return self.step(self.model, self.optimizer, batch)

    @property
    def name(self) -> str:
        return str(getattr(self.step, "__qualname__", None) or _name(self.step))


def _takes(step: Callable[..., Any], trains: bool) -> int:
    forms = _FORMS[trains]
    if not callable(step):
        raise UsageError(f"step is a {_name(step)}, not a function", forms)
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        raise UsageError("what step takes cannot be seen", forms) from None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in by_place and p.default is p.empty]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) not in (1, 3 if trains else 2) or named:
        names = ", ".join(p.name for p in (*needed, *named)) or "nothing"
        raise UsageError(f"step takes {names}", forms)
    return len(needed)


def _device(torch: Any, model: Any) -> str:
    for parameter in model.parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError("the model has lazy layers: call it once with a batch first")
        if parameter.is_meta:
            raise UsageError("the model's parameters are on the meta device: nothing can run")
        return str(parameter.device.type)
    raise UsageError("the model has no parameters")


def _check_loader(loader: Any) -> None:
    try:
        begun = iter(loader) is loader if not hasattr(loader, "dataset") else False
    except TypeError:
        raise UsageError(f"loader is a {_name(loader)}, which has no batches to give") from None
    if begun:
        raise UsageError(
            f"loader is a {_name(loader)}, which can be gone through once",
            "give a DataLoader, a list of batches, or what begins anew each time",
        )
    if hasattr(loader, "__len__") and not hasattr(loader, "dataset") and len(loader) == 0:
        raise UsageError("the loader has no batches", "give one with at least one batch")


def _name(value: Any) -> str:
    return type(value).__name__


class Batches:
    """The batches of a loader, again and again without end. `close` ends its workers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise UsageError("the loader has no batches", "give one with at least one batch")

    def close(self) -> None:
        for one in (self._iterator, getattr(self._loader, "_iterator", None)):
            end_workers(one)
        self._iterator = None


@contextlib.contextmanager
def process_lent(
    torch: Any, state: SavedState, edits: Iterable[FunctionEdit], compiled: Path, *, compiles: bool
) -> Iterator[None]:
    """Inside this context the caller's process is ours: fixes may be put on, and steps taken. At
    its end everything they changed is put back. What they compile is kept in `compiled`."""
    if compiles:
        for name in ("torch._dynamo.config", "torch._inductor.config"):
            import_module(name)  # before their settings are saved
    with everything_restored(torch, state) as process, warnings.catch_warnings():
        # The number of workers is one that we try, not the user's.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
        for edit in edits:
            process.save_code(found_at(edit))
        yield


def end_session(session: Session) -> None:
    """Let the process be nobody's session again."""
    session.farewell("finished", "")
    live.session = live.listener = None
    if session.progress.compiling.seen:
        # Its traces went through functions that are put back now.
        import_module("torch._dynamo").reset()


_RECORDED = object()


class FunctionSession(TrialSession):
    """The session of a trial of a step function: a step ends where the function returns. While a
    step is captured as a graph, which runs later, nothing is read: calls, backwards and updates are
    remembered, and read once the graph has run."""

    def __init__(self, torch: Any, directory: Path, plan: Plan, program: Program) -> None:
        super().__init__(torch, directory, plan, program, rank=0, world=1)
        self._stop_after = 0
        self._stepping.mode = "said"
        self._recording = False
        self._calls: list[tuple[Any, Any, Any]] = []
        self._backwards: list[Any] = []
        self._updates: list[tuple[Any, list[tuple[Any, Any]]]] = []

    def _work(self, directory: Path) -> DirectWork:
        """Work directly: all trials are in this process, and find the same memory."""
        return DirectWork()

    def step_over(self, batch: Any, returned: Any) -> None:
        """Note that the function has returned. A step that does not train is judged by what it
        returns."""
        if returned is not None:
            self._guarded(self.watch.returned, returned)
        trained = self.progress.counts.trained
        if not trained.amount.samples:  # a step that was replayed calls no module
            trained.batch(batch_amount(self._torch, batch))
        self._batch = NOTHING
        self.user_ended_step()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        self._calls, self._backwards, self._updates = [], [], []
        self._recording = True
        self.watch.no_dropout = None  # what is replayed calls nothing
        self.watch.later.counted = False
        try:
            yield
        finally:
            self._recording = self.gate.closed = False

    def replayed(self) -> None:
        """Read what was remembered, now that it has run."""
        if self.watch.over:
            return
        for module, args, kwargs in self._calls:
            self._guarded(self.watch.call, module, args, kwargs)
        for tensors in self._backwards:
            self._guarded(self.watch.backward, tensors)
        for optimizer, grads in self._updates:
            now = [(parameter, parameter.grad) for parameter, _ in grads]
            for parameter, grad in grads:  # as they were when it stepped
                parameter.grad = grad
            self._guarded(self.watch.update, optimizer)
            for parameter, grad in now:
                parameter.grad = grad

    def forget(self) -> None:
        self._calls, self._backwards, self._updates = [], [], []

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if not self._recording:
            return super().call_begins(module, args, kwargs)
        if (self._torch.is_grad_enabled() and module.training) or not self.plan.trains:
            self._calls.append((module, self._detached(args), self._detached(kwargs)))
        self.gate.closed = True
        return _RECORDED

    def call_ends(self, token: Any) -> None:
        if token is _RECORDED:
            self.gate.closed = False
        else:
            super().call_ends(token)

    def backward_begins(self, tensors: Any) -> Any:
        if not self._recording:
            return super().backward_begins(tensors)
        first = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
        self._backwards.append(first.detach() if hasattr(first, "detach") else first)
        self.gate.closed = True
        return _RECORDED

    def backward_ends(self, token: Any) -> None:
        if token is _RECORDED:
            self.gate.closed = False
        else:
            super().backward_ends(token)

    def _detached(self, inputs: Any) -> Any:
        """Return the inputs without the graph behind them, which would stay alive with them."""
        return tree_map_only(self._torch.Tensor, lambda tensor: tensor.detach(), inputs)

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if not self._recording:
            super().optimizer_begins(optimizer, *rest)
            return
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self._updates.append((optimizer, [(p, p.grad) for p in every if p.grad is not None]))

    def optimizer_ends(self, optimizer: Any, *rest: Any) -> None:
        if not self._recording:
            super().optimizer_ends(optimizer, *rest)


Prepare = Callable[[Made], Reason | None]
"""Alters the arguments of an optimizer for a captured step, or returns why it cannot."""


class FunctionProgram(LiveProgram):
    def __init__(self, torch: Any, subject: StepSubject) -> None:
        super().__init__(torch)
        self.device = subject.device
        self._subject = subject
        self._on_function: list[tuple[str, Prepare, Callable[[StepFunction], Run]]]
        self._on_function = []

    def on_step_function(
        self, fix: str, prepare: Prepare, take: Callable[[StepFunction], Run]
    ) -> None:
        """`prepare` is called with the optimizer after all other fixes, and returns why the fix
        cannot be applied; `take` returns what is to be called for each batch instead of the
        step."""
        self._on_function.append((fix, prepare, take))

    def alter_optimizer(self) -> None:
        optimizer = self._subject.optimizer
        if torch_class_of(self.torch, optimizer) is None:
            every = [*(c for c, _ in self._on_optimizer), *(c for c, _, _ in self._on_function)]
            reason = because(Skip.DOES_NOT_TRAIN)
            if self._subject.trains:
                name = type(optimizer).__name__
                reason = because(Skip.OPTIMIZER_NOT_TORCHS, optimizer=name)
            for fix in every:
                self.found_nothing(fix, reason)
            self._on_function.clear()
            return
        made = self.alter_made_optimizer(optimizer)
        for one in list(self._on_function):
            fix, prepare, _ = one
            before = dict(made.arguments)
            obstacle = prepare(made)
            if obstacle is not None:
                self.found_nothing(fix, obstacle)
                self._on_function.remove(one)
            else:
                alter_optimizer(self.torch, optimizer, before, made.arguments)

    def altered_loader(self) -> Any:
        loader = self._subject.loader
        if self._subject.has_loader:
            return self.loader_like(loader)
        for fix, _ in self._on_loader:
            self.found_nothing(fix, because(Skip.NOT_A_LOADER, loader=type(loader).__name__))
        return loader

    def step_function(
        self, fixes: tuple[str, ...], session: FunctionSession, state: SavedState
    ) -> Run:
        step = _Step(self._subject, fixes, session, state)
        run: Run = step.run
        for _, _, take in self._on_function:
            run = take(step)
        return run


class _Step:
    def __init__(
        self,
        subject: StepSubject,
        fixes: tuple[str, ...],
        session: FunctionSession,
        state: SavedState,
    ) -> None:
        self.model = subject.model
        self.optimizer = subject.optimizer
        self.fixes = fixes
        self._subject = subject
        self._session = session
        self._state = state

    def run(self, batch: Any) -> Any:
        return self._subject.call(batch)

    def recorded(self) -> AbstractContextManager[None]:
        return self._session.recorded()

    def replayed(self) -> None:
        self._session.replayed()

    def bindings(self) -> Mapping[str, Any]:
        return self._state.bindings()
