"""A run whose steps are timed, whose first steps are watched, and in which changes are put on: the
session of a trial."""

from pathlib import Path
from typing import Any

from ridgeline.capture.session import Session
from ridgeline.capture.stepping import End
from ridgeline.changes.program import Program
from ridgeline.records.run import Settings
from ridgeline.records.trial import Plan
from ridgeline.trials.watch import Watch


class TrialSession(Session):
    def __init__(
        self, torch: Any, directory: Path, plan: Plan, program: Program, rank: int, world: int
    ) -> None:
        settings = Settings(full=True, trace_steps=0, stop_after=plan.steps, steps=plan.steps)
        super().__init__(torch, directory, settings, rank, world)
        self.program = program
        self.watch = Watch(torch, plan.watch)
        self._plan = plan
        self._jitter = plan.jitter
        self.progress.needs_all = True  # every arm pays the same
        self._end_step = self.progress.end_step
        self.progress.end_step = self._step_ended  # type: ignore[method-assign]

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if not self.progress.off and self._jit_traces() is None:
            trains = self._torch.is_grad_enabled() and module.training
            if trains or not self._plan.trains:
                if self._jitter and next(module.parameters(), None) is not None:
                    self._guarded(self._moved, module)
                self._guarded(self.watch.call, module, args, kwargs)
                self.program.call_begins(module, args, kwargs)
        return super().call_begins(module, args, kwargs)

    def backward_begins(self, tensors: Any) -> Any:
        self._guarded(self.watch.backward, tensors)
        return super().backward_begins(tensors)

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if self._optimizer_depth == 0:
            self._guarded(self.watch.update, optimizer)
        super().optimizer_begins(optimizer, *rest)

    def scaler_ends(self, token: Any) -> None:
        if token is not None:
            _, counts, before, index = token
            if self.progress.index == index and counts.optimizer_steps == before:
                self.watch.skipped()
        super().scaler_ends(token)

    def _step_ended(self, end: End) -> None:
        if end in (End.MERGE, End.DROP):
            self.watch.begin_again()
        self._end_step(end)
        if end is not End.EARLIER:
            was = self.watch.over
            closed, self.gate.closed = self.gate.closed, True  # its own calls are not the program's
            try:
                self._guarded(self.watch.step_ended)
            finally:
                self.gate.closed = closed
            if self.watch.over and not was:
                self.progress.timeline.restart(self.progress.clock())
            self.program.step_ended()

    def _moved(self, module: Any) -> None:
        """Each parameter's elements by that part of themselves, up or down; the program's own
        random numbers are left alone."""
        torch, size, self._jitter = self._torch, self._jitter, 0.0
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point():
                    up = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + size * up.to(parameter.device, parameter.dtype))

    def _guarded(self, do: Any, *given: Any) -> None:
        try:
            do(*given)
        except Exception as error:
            self.watch.problems.append(f"{type(error).__name__}: {error}"[:200])
