"""Which module is at work: by the calls under way in forward, and in backward by the autograd node,
whose sequence number tells in which module its forward ran.

Backward hooks would tell too, but they wrap outputs, which breaks in-place operators and views.
"""

from bisect import bisect_right
from types import TracebackType
from typing import Any

import torch
from torch.nn.modules import module as torch_module

_ACCUMULATE_GRAD = 2**64 - 1


def display_path(path: str) -> str:
    """torch.compile and checkpoint wrappers add a level that nobody wrote."""
    parts = [p for p in path.split(".") if p not in ("_orig_mod", "_checkpoint_wrapped_module")]
    return ".".join(parts)


class ModuleTracker:
    """While entered, `path` is the qualified name of the innermost module running."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        self.paths: dict[int, str] = {}
        self.types: dict[str, str] = {}
        for name, module in root.named_modules():
            path = display_path(name)
            # keyed by id: a user's module may define a __hash__ or __eq__ that fails
            self.paths[id(module)] = path
            if type(module).__name__ not in ("OptimizedModule", "CheckpointWrapper"):
                self.types[path] = type(module).__name__
        self.calls: dict[str, int] = {}
        self._stack: list[str] = []
        self._handles: list[Any] = []
        self._starts: list[int] = []
        self._owners: list[str] = []

    def __enter__(self) -> "ModuleTracker":
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._enter_module),
            torch_module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def forward_ended(self) -> None:
        """The model has returned: whatever wrapper left its call open is closed."""
        self._stack.clear()

    @property
    def depth(self) -> int:
        return len(self._stack)

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else ""

    def path_in_backward(self) -> str:
        """The module whose forward made the autograd node that is running."""
        if self._stack:  # a module called again inside backward: recomputation
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        if number == _ACCUMULATE_GRAD:
            return ""
        position = bisect_right(self._starts, number) - 1
        return self._owners[position] if position >= 0 else ""

    def _mark(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self.path)

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        path = self.paths.get(id(module))
        if path is None:  # made on the fly, or not part of the model
            path = self.path
        elif not (self._stack and self._stack[-1] == path):
            self.calls[path] = self.calls.get(path, 0) + 1
        self._stack.append(path)
        self._mark()

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
            self._mark()
