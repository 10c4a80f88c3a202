"""Parameters and buffers of the models that a program calls: how far they are from where they
began."""

from collections.abc import Iterator
from typing import Any

from ridgeline.harness.trials import prints
from ridgeline.harness.trials.aside import Here, Shelf
from ridgeline.records.trial import TensorPrint

MOST_TENSORS = 2_000


class Tensors:
    """One for the trial."""

    def __init__(self, torch: Any, aside: Here) -> None:
        self._torch = torch
        self._aside = aside
        self._models: dict[int, Any] = {}
        self._known = 0
        self._start = Shelf()
        self.names: dict[int, str] = {}
        """By the tensor's id."""

    def meet(self, model: Any) -> None:
        """It is about to be called, perhaps not for the first time."""
        if id(model) in self._models:
            return
        self._models[id(model)] = model
        prefix = prints.prefix(len(self._models))
        found = [(prefix + name, one) for name, one in prints.named(model)]
        found = found[: max(MOST_TENSORS - self._known, 0)]
        self._known += len(found)
        for name, tensor in found:
            self.names.setdefault(id(tensor), name)

        def look() -> None:
            self._start.put({name: prints.sampled(self._torch, one) for name, one in found})

        self._aside.ask(look)

    def printed(self) -> tuple[TensorPrint, ...]:
        return self._aside.ask(lambda: tuple(self._prints()))

    @property
    def models(self) -> tuple[Any, ...]:
        """In the order they were met."""
        return tuple(self._models.values())

    def moved(self) -> bool:
        """Any parameter."""
        return self._aside.ask(self._moved)

    def clear(self) -> None:
        self._models.clear()
        self._start.clear()
        self.names.clear()

    def _moved(self) -> bool:
        torch, began = self._torch, self._began()
        for number, model in enumerate(self._models.values(), 1):
            for name, parameter in prints.named_parameters(model, number):
                start = began.get(name)
                if start is not None and not torch.equal(prints.sampled(torch, parameter), start):
                    return True
        return False

    def _prints(self) -> Iterator[TensorPrint]:
        began = self._began()
        for number, model in enumerate(self._models.values(), 1):
            buffers = {name for name, _ in model.named_buffers()}
            for name, tensor in prints.named(model):
                full = prints.prefix(number) + name
                start, buffer = began.get(full), name in buffers
                if start is not None:
                    yield prints.printed(self._torch, full, tensor, start, buffer=buffer)

    def _began(self) -> dict[str, Any]:
        return {name: one for each in self._start.all() for name, one in each.items()}
