"""A step function as changes see it: loader and optimizer exist already, so that what would be
done to them when they are made is done to a copy of the loader and to the optimizer itself."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ridgeline.fixes.program import Made, Program
from ridgeline.fixes.step_function import Run, StepFunction
from ridgeline.optimization import function_loader, function_optimizer
from ridgeline.optimization.function_session import FunctionSession
from ridgeline.optimization.function_state import Kept
from ridgeline.optimization.function_subject import Subject


class FunctionProgram(Program):
    def __init__(self, torch: Any, subject: Subject) -> None:
        super().__init__(torch)
        self.device = subject.device
        self._subject = subject
        self._on_function: list[tuple[str, Callable[[Made], str], Callable[[StepFunction], Run]]]
        self._on_function = []

    def on_loader(self, change: str, do: Callable[[Made], str]) -> None:
        self._on_loader.append((change, do))
        self._not.setdefault(change, "the program made no DataLoader")

    def on_optimizer(self, change: str, do: Callable[[Made], str]) -> None:
        self._on_optimizer.append((change, do))
        self._not.setdefault(change, "the program made none of torch's own optimizers")

    def on_step_function(
        self, change: str, prepare: Callable[[Made], str], take: Callable[[StepFunction], Run]
    ) -> None:
        """`prepare` is asked of the optimizer after all other changes, and says why it cannot be;
        `take` gives what is to be called for each batch instead."""
        self._on_function.append((change, prepare, take))

    def alter_optimizer(self) -> None:
        optimizer = self._subject.optimizer
        kind = function_optimizer.kind_of(self.torch, optimizer)
        if kind is None:
            every = [*(c for c, _ in self._on_optimizer), *(c for c, _, _ in self._on_function)]
            own = f"{type(optimizer).__name__} is none of torch's own"
            for change in every:
                self.found_nothing(change, own if self._subject.trains else "nothing is trained")
            self._on_function.clear()
            return
        made = Made(kind.__name__, function_optimizer.arguments(optimizer), "")
        for change, do in self._on_optimizer:
            self._try(change, functools.partial(self._altered, do), made, "")
        for one in list(self._on_function):
            change, prepare, _ = one
            before = dict(made.arguments)
            why = prepare(made)
            if why:
                self.found_nothing(change, why)
                self._on_function.remove(one)
            else:
                function_optimizer.alter(self.torch, optimizer, before, made.arguments)

    def _altered(self, do: Callable[[Made], str], made: Made) -> str:
        before = dict(made.arguments)
        said = do(made)
        function_optimizer.alter(self.torch, self._subject.optimizer, before, made.arguments)
        return said

    def altered_loader(self) -> Any:
        loader = self._subject.loader
        if not self._subject.has_loader:
            for change, _ in self._on_loader:
                self.found_nothing(change, f"the loader is a {type(loader).__name__}")
            return loader
        given = function_loader.arguments(self.torch, loader)
        made = Made("DataLoader", dict(given), "")
        for change, do in self._on_loader:
            self._try(change, do, made, "")
        return function_loader.with_settings(loader, given, made.arguments)

    def step_function(self, changes: tuple[str, ...], session: FunctionSession, kept: Kept) -> Run:
        step = _Step(self._subject, changes, session, kept)
        run: Run = step.run
        for _, _, take in self._on_function:
            run = take(step)
        return run


class _Step:
    def __init__(
        self, subject: Subject, changes: tuple[str, ...], session: FunctionSession, kept: Kept
    ) -> None:
        self.model = subject.model
        self.optimizer = subject.optimizer
        self.changes = changes
        self._subject = subject
        self._session = session
        self._kept = kept

    def run(self, batch: Any) -> Any:
        return self._subject.call(batch)

    def recorded(self) -> AbstractContextManager[None]:
        return self._session.recorded()

    def replayed(self) -> None:
        self._session.replayed()

    def bindings(self) -> Mapping[str, Any]:
        return self._kept.bindings()
