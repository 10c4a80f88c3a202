"""A model's tensors replaced, for a while, by ones without data: fake (same device, so the same
kernels are chosen) or meta. The user's own tensors come back untouched."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ridgeline.cost.counting.operands import storage_key
from ridgeline.errors import DataDependentError
from ridgeline.records.cost import Backend


class Weightless:
    """Turns tensors into their stand-ins, each original into one and the same."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True) if backend == "fake" else None
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._data: dict[tuple[Any, ...], torch.Tensor] = {}

    def tensor(self, original: torch.Tensor) -> torch.Tensor:
        known = self._made.get(id(original))
        if known is not None:
            return known[1]
        stand_in = self._shared(original)
        if isinstance(original, torch.nn.Parameter):
            stand_in = torch.nn.Parameter(stand_in, requires_grad=original.requires_grad)
        elif original.requires_grad and original.is_leaf:
            stand_in.requires_grad_(True)
        self._made[id(original)] = (original, stand_in)
        return stand_in

    def _shared(self, original: torch.Tensor) -> torch.Tensor:
        """Tensors that share their data (tied through `.data`) share it afterwards too."""
        if original.layout is not torch.strided or not original.numel():
            return self._make(original)
        key = (storage_key(original), original.storage_offset(), *original.shape, original.dtype)
        if key not in self._data:
            self._data[key] = self._make(original)
        return self._data[key].detach()

    def _make(self, original: torch.Tensor) -> torch.Tensor:
        if original.layout is not torch.strided:
            raise DataDependentError("a sparse tensor without data has no elements to count")
        if self.fake_mode is None:
            if original.is_meta:
                return original.detach()
            return torch.empty_like(original, device="meta", requires_grad=False)
        with self.fake_mode:
            return torch.empty_like(original.detach(), requires_grad=False)

    @contextmanager
    def in_place_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Swap parameters and buffers of every submodule; swap back whatever happens."""
        saved: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for module in model.modules():
                groups: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
                for slots in groups:
                    for name, tensor in list(slots.items()):
                        if tensor is None:
                            continue
                        saved.append((slots, name, tensor))
                        slots[name] = self.tensor(tensor)
            yield
        finally:
            for slots, name, tensor in saved:
                slots[name] = tensor

    @contextmanager
    def active(self) -> Iterator[None]:
        """Where new tensors carry no data either."""
        with ExitStack() as stack:
            if self.fake_mode is not None:
                stack.enter_context(self.fake_mode)
            else:
                stack.enter_context(torch.device("meta"))
            yield
