"""Parameters and buffers of the models that a program calls: how far they are from where they
began."""

from collections.abc import Iterator
from typing import Any

from ridgeline.records.trial import TensorPrint
from ridgeline.trials import prints
from ridgeline.trials.aside import Here, Shelf

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
        prefix = _prefix(len(self._models))
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
            for name, parameter in model.named_parameters():
                start = began.get(_prefix(number) + name.replace("_orig_mod.", ""))
                if start is not None and not torch.equal(prints.sampled(torch, parameter), start):
                    return True
        return False

    def _prints(self) -> Iterator[TensorPrint]:
        began = self._began()
        for number, model in enumerate(self._models.values(), 1):
            buffers = {name for name, _ in model.named_buffers()}
            for name, tensor in prints.named(model):
                start = began.get(_prefix(number) + name)
                if start is not None:
                    yield prints.printed(
                        self._torch, _prefix(number) + name, tensor, start, buffer=name in buffers
                    )

    def _began(self) -> dict[str, Any]:
        return {name: one for each in self._start.all() for name, one in each.items()}


def _prefix(number: int) -> str:
    """Of the names of a model's tensors, by when it was met."""
    return f"{number}." if number > 1 else ""
