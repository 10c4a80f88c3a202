"""The session of a trial of a step function: a step ends where the function returns. While a step
is recorded for later (captured as a graph, which only then runs) nothing is read: what would have
been is remembered, and read once it has run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_map_only

from ridgeline.fixes.program import Program
from ridgeline.harness.capture.batches import NOTHING, amount
from ridgeline.harness.trials.aside import Here
from ridgeline.harness.trials.session import TrialSession
from ridgeline.records.trial import Plan

_RECORDED = object()


class FunctionSession(TrialSession):
    def __init__(self, torch: Any, directory: Path, plan: Plan, program: Program) -> None:
        super().__init__(torch, directory, plan, program, rank=0, world=1)
        self._stop_after = 0
        self._stepping.mode = "said"
        self._recording = False
        self._calls: list[tuple[Any, Any, Any]] = []
        self._backwards: list[Any] = []
        self._updates: list[tuple[Any, list[tuple[Any, Any]]]] = []

    def _aside(self, directory: Path) -> Here:
        """All trials are in this process, and find the same memory."""
        return Here()

    def step_over(self, batch: Any, returned: Any) -> None:
        """The function has; of one that does not train, what it computes is what it returns."""
        if returned is not None:
            self._guarded(self.watch.returned, returned)
        trained = self.progress.counts.trained
        if not trained.amount.samples:  # a step that was replayed calls no module
            trained.batch(amount(self._torch, batch))
        self._batch = NOTHING
        self.said_step()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        self._calls, self._backwards, self._updates = [], [], []
        self._recording = True
        self.watch.dropout = None  # what is replayed calls nothing
        self.watch.later.counted = False
        try:
            yield
        finally:
            self._recording = self.gate.closed = False

    def replayed(self) -> None:
        """What was recorded has run."""
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
            self._calls.append((module, self._values(args), self._values(kwargs)))
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

    def _values(self, given: Any) -> Any:
        """Without the graph behind them, which would stay alive with them."""
        return tree_map_only(self._torch.Tensor, lambda tensor: tensor.detach(), given)

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if not self._recording:
            super().optimizer_begins(optimizer, *rest)
            return
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self._updates.append((optimizer, [(p, p.grad) for p in every if p.grad is not None]))

    def optimizer_ends(self, optimizer: Any, *rest: Any) -> None:
        if not self._recording:
            super().optimizer_ends(optimizer, *rest)
