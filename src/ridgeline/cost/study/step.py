"""One call of a model as its user would make it: a forward, or a whole training step."""

from collections.abc import Callable
from typing import Any

import torch

from ridgeline.cost.counting.optimizers import EIGHT_BIT, OPTIMIZERS, state_tensors
from ridgeline.cost.counting.passes import backward_from
from ridgeline.cost.counting.traffic import stored_bytes
from ridgeline.cost.counting.values import held
from ridgeline.errors import TargetError


class Step:
    """Callable; `before` puts gradients back to None, outside the clock of a memory run."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        training: bool,
        optimizer: str,
    ) -> None:
        self._model = model.train(training)
        self._args, self._kwargs = args, kwargs
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        if training and trained and optimizer and optimizer not in EIGHT_BIT:
            self.optimizer = OPTIMIZERS[optimizer](trained)
        self._checked = False
        self._call: Callable[[], object] = self._train if training else self._infer

    def __call__(self) -> object:
        output = self._call()
        if not self._checked:
            self._checked = True
            if any(type(t).__name__ == "FakeTensor" or t.is_meta for t in held(output)):
                raise TargetError(
                    "the model keeps tensors from being counted in a place outside its modules (a "
                    "global or a cached function), so a real run is not real",
                    "--no-time counts it without timing; keeping them on the module cures it",
                )
        return output

    def forget_gradients(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def state_bytes(self) -> int:
        if self.optimizer is None:
            return 0
        return stored_bytes(*state_tensors(self.optimizer))

    def _infer(self) -> object:
        with torch.no_grad():
            return self._model(*self._args, **self._kwargs)

    def _train(self) -> object:
        self.forget_gradients()
        output = self._model(*self._args, **self._kwargs)
        backward_from(output)
        if self.optimizer is not None:
            self.optimizer.step()
        return output
