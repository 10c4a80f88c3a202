"""A step function as fixes and the harness see it. Its loader and optimizer exist already, so that
a fix which would act when they are made acts on a copy of the loader and on the optimizer
itself."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_map_only

from ridgeline.errors import UsageError
from ridgeline.fixes.program import OPTIMIZERS, Made, OnMade, Outcome, Program
from ridgeline.fixes.step_graph import Run, StepFunction
from ridgeline.harness.capture.step_counts import NOTHING, batch_amount
from ridgeline.harness.trials.session import TrialSession
from ridgeline.harness.usercode.forked_work import DirectWork
from ridgeline.optimization.function_state import SavedState
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Plan

_FORMS = {
    True: "write step(model, optimizer, batch), or step(batch) that closes over both",
    False: "write step(model, batch), or step(batch); one that trains needs optimizer=",
}
"""What to write, by whether the step trains."""


class StepSubject:
    """What is optimized: a step function with its model, its loader and, if it trains, its
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


SETTINGS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "worker_init_fn",
    "collate_fn", "timeout", "drop_last", "generator",
)  # fmt: skip
"""Arguments of a DataLoader that it keeps under their own names."""
_DEFAULT_PREFETCH = 2
"""Batches that a worker makes ahead by default. The constructor sets it, and a copy does not."""


def loader_arguments(torch: Any, loader: Any) -> dict[str, Any]:
    """Return the arguments that a loader was made with, as far as they decide anything."""
    arguments = {name: getattr(loader, name, None) for name in SETTINGS}
    arguments["multiprocessing_context"] = getattr(loader, "multiprocessing_context", None)
    arguments["dataset"], arguments["batch_size"] = loader.dataset, loader.batch_size
    data = torch.utils.data
    if type(loader.sampler) not in (data.RandomSampler, data.SequentialSampler):
        arguments["sampler"] = loader.sampler
    if loader.batch_size is None:
        arguments["batch_sampler"] = loader.batch_sampler
    return arguments


def with_settings(loader: Any, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """Return a copy of the loader with the settings that differ between `before` and `after`. The
    user's own loader is never iterated, so that its workers and its position stay its own."""
    other = copy.copy(loader)
    held = other.__dict__  # the attributes themselves refuse to be set
    held["_iterator"] = None
    for name, value in after.items():
        if value is not before.get(name):
            if name not in (*SETTINGS, "batch_size"):
                raise ValueError(f"{name} of a loader that is made already")
            held[name] = value
    if after.get("batch_size") != before.get("batch_size"):
        batches = type(loader.batch_sampler)
        held["batch_sampler"] = batches(loader.sampler, after["batch_size"], loader.drop_last)
    if not held["num_workers"]:
        held["prefetch_factor"], held["persistent_workers"] = None, False
    elif held["prefetch_factor"] is None:
        held["prefetch_factor"] = _DEFAULT_PREFETCH
    return other


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
            end = getattr(one, "_shutdown_workers", None)
            if end is not None:
                end()
        self._iterator = None


_CONTENTS = ("state", "param_groups", "defaults")


def torch_class_of(torch: Any, optimizer: Any) -> Any:
    """Return torch's own class that an optimizer is derived from; None if there is none."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in OPTIMIZERS and getattr(torch.optim, kind.__name__, None) is kind:
            return kind
    return None


def optimizer_arguments(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of the first group, which are those of all if all were given the
    same."""
    group = optimizer.param_groups[0]
    arguments = {name: group.get(name, value) for name, value in optimizer.defaults.items()}
    return arguments | {"params": [p for g in optimizer.param_groups for p in g["params"]]}


def alter_optimizer(
    torch: Any, optimizer: Any, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Set up an optimizer that exists as its constructor would have made it with the arguments
    `after`; schedulers and closures know this object. This raises what the constructor raises."""
    changed = {name: value for name, value in after.items() if value is not before.get(name)}
    if not changed:
        return
    kind = torch_class_of(torch, optimizer)
    takes = inspect.signature(kind.__init__).parameters
    made = kind(**{name: value for name, value in after.items() if name in takes})
    for name, value in vars(made).items():
        # The constructor also notes other things, such as that a scaler may leave scaling to it.
        if name not in _CONTENTS and not name.startswith(("_optimizer_", "_zero_grad")):
            vars(optimizer)[name] = value
    # Its first steps run before one is captured: torch need not warn of it.
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
    optimizer.defaults.update(changed)
    for group in optimizer.param_groups:
        for name, value in changed.items():
            if group.get(name) == before.get(name):
                group[name] = value
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"] if on_device else ():
            _step_on_device(torch, optimizer.state.get(parameter, {}), parameter)


def _step_on_device(torch: Any, state: dict[str, Any], parameter: Any) -> None:
    """Move the step count to the device: the kernel that updates cannot read the host's."""
    if "step" in state:
        state["step"] = torch.as_tensor(
            state["step"], dtype=torch.float32, device=parameter.device
        ).clone()


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
        if (self._torch.is_grad_enabled() and module.training) or not self._plan.trains:
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


class FunctionProgram(Program):
    def __init__(self, torch: Any, subject: StepSubject) -> None:
        super().__init__(torch)
        self.device = subject.device
        self._subject = subject
        self._on_function: list[tuple[str, Prepare, Callable[[StepFunction], Run]]]
        self._on_function = []

    def on_loader(self, fix: str, do: OnMade) -> None:
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_LOADER))

    def on_optimizer(self, fix: str, do: OnMade) -> None:
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_KNOWN_OPTIMIZER))

    def on_step_function(
        self, fix: str, prepare: Prepare, take: Callable[[StepFunction], Run]
    ) -> None:
        """`prepare` is called with the optimizer after all other fixes, and returns why the fix
        cannot be applied; `take` returns what is to be called for each batch instead of the
        step."""
        self._on_function.append((fix, prepare, take))

    def alter_optimizer(self) -> None:
        optimizer = self._subject.optimizer
        kind = torch_class_of(self.torch, optimizer)
        if kind is None:
            every = [*(c for c, _ in self._on_optimizer), *(c for c, _, _ in self._on_function)]
            reason = because(Skip.DOES_NOT_TRAIN)
            if self._subject.trains:
                name = type(optimizer).__name__
                reason = because(Skip.OPTIMIZER_NOT_TORCHS, optimizer=name)
            for fix in every:
                self.found_nothing(fix, reason)
            self._on_function.clear()
            return
        made = Made(kind.__name__, optimizer_arguments(optimizer), "")
        for fix, do in self._on_optimizer:
            self._try(fix, functools.partial(self._altered, do), made, "")
        for one in list(self._on_function):
            fix, prepare, _ = one
            before = dict(made.arguments)
            obstacle = prepare(made)
            if obstacle is not None:
                self.found_nothing(fix, obstacle)
                self._on_function.remove(one)
            else:
                alter_optimizer(self.torch, optimizer, before, made.arguments)

    def _altered(self, do: OnMade, made: Made) -> Outcome:
        before = dict(made.arguments)
        outcome = do(made)
        alter_optimizer(self.torch, self._subject.optimizer, before, made.arguments)
        return outcome

    def altered_loader(self) -> Any:
        loader = self._subject.loader
        if not self._subject.has_loader:
            for fix, _ in self._on_loader:
                self.found_nothing(fix, because(Skip.NOT_A_LOADER, loader=type(loader).__name__))
            return loader
        given = loader_arguments(self.torch, loader)
        made = Made("DataLoader", dict(given), "")
        for fix, do in self._on_loader:
            self._try(fix, do, made, "")
        return with_settings(loader, given, made.arguments)

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
