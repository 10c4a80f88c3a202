"""Everything a forward may write to on a model's modules, put back afterwards.

A model that keeps a table in a plain attribute (rotary angles, a cache, a running state) would go
on with tensors without data after it was counted on some.
"""

from typing import Any

import torch

DEEPEST = 3


class Snapshot:
    """Attributes of every module, and the contents of containers and plain objects among them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # its attributes live in C++
                self._keep_attributes(module, 0)

    def restore(self) -> None:
        for owner, attributes in self._owners:
            owner.__dict__.clear()
            owner.__dict__.update(attributes)
        for container, contents in self._containers:
            if isinstance(container, list):
                container[:] = contents
            else:
                container.clear()
                container.update(contents)

    def _keep_attributes(self, owner: Any, depth: int) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        attributes = dict(owner.__dict__)
        # FSDP moves parameters in and out of this dict by itself; stand-ins put theirs back
        self._seen.add(id(attributes.get("_parameters")))
        self._owners.append((owner, attributes))
        for value in attributes.values():
            self._keep(value, depth + 1)

    def _keep(self, value: Any, depth: int) -> None:
        if depth > DEEPEST or id(value) in self._seen:
            return
        if type(value) in (list, dict, set) or isinstance(value, dict):
            self._seen.add(id(value))
            self._containers.append((value, value.copy()))
            for item in value.values() if isinstance(value, dict) else value:
                self._keep(item, depth + 1)
        elif _is_plain_object(value):
            self._keep_attributes(value, depth)


def _is_plain_object(value: Any) -> bool:
    if isinstance(value, torch.Tensor | torch.nn.Module | type) or callable(value):
        return False
    module = type(value).__module__
    return hasattr(value, "__dict__") and not module.startswith(("torch.", "builtins", "numpy"))
