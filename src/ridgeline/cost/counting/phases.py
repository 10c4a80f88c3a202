"""Forward, recompute or backward.

Until our own backward begins everything is forward, a gradient that the model takes inside its
forward included. From then on work that belongs to a forward run again is recomputation: inside
torch.utils.checkpoint (either kind, nested too), a module called again, or anything with gradients
switched on, which a backward that makes no graph of its own never has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import checkpoint

from ridgeline.records.cost import Phase


class PhaseTracker:
    def __init__(self) -> None:
        self.in_backward = False
        self._recomputing = 0

    def phase(self, modules_running: int) -> Phase:
        """The phase of the operator being dispatched; the optimizer is accounted apart."""
        if not self.in_backward:
            return "forward"
        if torch._C._current_graph_task_id() == -1:
            return "backward"  # the gradient it starts from
        again = self._recomputing or modules_running or torch.is_grad_enabled()
        return "recompute" if again or _in_reentrant_checkpoint() else "backward"

    @contextmanager
    def backward(self) -> Iterator[None]:
        self.in_backward = True
        try:
            with self._checkpoints_noticed():
                yield
        finally:
            self.in_backward = False

    @contextmanager
    def _checkpoints_noticed(self) -> Iterator[None]:
        """A nested checkpoint runs its own forward without gradients inside the outer one's
        recomputation: only the hook that wraps the whole recomputation tells."""
        tracker, original = self, getattr(checkpoint, "_recomputation_hook", None)
        if original is None:
            yield
            return

        class Noticed(original):  # type: ignore[misc, valid-type]
            def __enter__(self) -> Any:
                tracker._recomputing += 1
                return super().__enter__()

            def __exit__(self, *error: Any) -> Any:
                tracker._recomputing -= 1
                return super().__exit__(*error)

        checkpoint._recomputation_hook = Noticed  # type: ignore[misc]
        try:
            yield
        finally:
            checkpoint._recomputation_hook = original  # type: ignore[misc]


def _in_reentrant_checkpoint() -> bool:
    """Directly inside its backward there is only the forward run again; the backward of that has
    nodes of its own."""
    node = torch._C._current_autograd_node()
    return node is not None and "CheckpointFunction" in node.name()
