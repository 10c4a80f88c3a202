"""A candidate as layers on the running program: fixes of the model and of the process, fixes of the
optimizers, and the loader that feeds it. Candidates that have a layer in common share it, so that a
model is compiled once for all of them."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ridgeline.fixes.fix import find_fix
from ridgeline.fixes.live_objects import LiveProgram, torch_class_of
from ridgeline.harness.race.live_changes import LiveChanges
from ridgeline.harness.trials.function_edits import found_at
from ridgeline.harness.trials.session import apply_fixes
from ridgeline.records.trial import Asked, FunctionEdit, Plan

Part = tuple[str, tuple[Asked, ...]]
"""The part of the program that a layer changes (model, optimizer, loader), and its fixes."""


class Layer:
    """Fixes that are put on and taken off together."""

    def __init__(
        self, torch: Any, fixes: tuple[Asked, ...], functions: tuple[FunctionEdit, ...]
    ) -> None:
        self.program = LiveProgram(torch)
        self.fixes = fixes
        self._torch = torch
        self._changes = LiveChanges(torch)
        self._applied = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        rewrites = any(one.fix == "sdpa" for one in fixes)
        self._edits = functions if rewrites else ()
        self.loader_like = self.program.loader_like
        self.program.recorded = self._record_before_generate

    def put_on(self, optimizers: Sequence[Any]) -> None:
        """Put the fixes on; the first time, apply them. Fixes of the model follow at its call."""
        self.program.is_on = True
        self._changes.put_on()
        if not self._applied:
            self._applied = True
            plan = Plan(fixes=self.fixes, functions=self._edits)
            self._changes.record(partial(apply_fixes, self.program, plan), optimizers=optimizers)
        for optimizer in optimizers:
            known = optimizer in self._optimizers
            if not known and torch_class_of(self._torch, optimizer) is not None:
                self._optimizers.add(optimizer)
                alter = partial(self.program.alter_made_optimizer, optimizer)
                self._changes.record(lambda do=alter: do(), optimizers=[optimizer])  # type: ignore[misc]

    def take_off(self) -> None:
        self.program.is_on = False
        self._changes.take_off()

    def _record_before_generate(self, do: Callable[[], None], model: Any) -> None:
        self._changes.record(do, modules=[model])

    def call_begins(self, module: Any, args: Any, kwargs: Any, optimizers: Sequence[Any]) -> None:
        """Apply the fixes of the model to one that this layer has not met."""
        if self.program.waits_for(module):
            functions = [one for edit in self._edits for one in found_at(edit)]
            self._changes.record(
                partial(self.program.call_begins, module, args, kwargs),
                modules=[module], optimizers=optimizers, functions=functions,
            )  # fmt: skip


def parts_of(fixes: Sequence[Asked]) -> list[Part]:
    """Return the parts that these fixes change, each with its fixes in the order in which they are
    applied."""
    parts: dict[str, list[Asked]] = {}
    for one in fixes:
        group = find_fix(one.fix).fix.group
        parts.setdefault(group if group in ("loader", "optimizer") else "model", []).append(one)
    return [
        (part, tuple(parts[part])) for part in ("model", "optimizer", "loader") if part in parts
    ]


class Layers:
    """All layers that were made so far, and those that are on."""

    def __init__(self, torch: Any, functions: tuple[FunctionEdit, ...]) -> None:
        self._torch = torch
        self._functions = functions
        self._made: dict[bytes, Layer] = {}
        self.on: list[Layer] = []
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def meet(self, optimizer: Any) -> None:
        """Note an optimizer that is about to step."""
        self._optimizers.add(optimizer)

    def use(self, fixes: Sequence[Asked]) -> Any:
        """Put these fixes on, and all others off. Return what makes their loader, or None."""
        wanted = [self._layer(part, asked) for part, asked in parts_of(fixes)]
        for layer in reversed(self.on):
            if layer not in wanted:
                layer.take_off()
        for layer in wanted:
            layer.put_on(list(self._optimizers))
        self.on = wanted
        feeds = [layer for layer in wanted if any(_feeds(one) for one in layer.fixes)]
        return feeds[0].loader_like if feeds else None

    def of(self, fixes: Sequence[Asked]) -> list[Layer]:
        return [self._layer(part, asked) for part, asked in parts_of(fixes)]

    def _layer(self, part: str, fixes: tuple[Asked, ...]) -> Layer:
        key = msgspec.json.encode((part, fixes), order="sorted")
        if key not in self._made:
            self._made[key] = Layer(self._torch, fixes, self._functions)
        return self._made[key]

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        for layer in self.on:
            layer.call_begins(module, args, kwargs, list(self._optimizers))

    def step_ended(self) -> None:
        for layer in self.on:
            layer.program.step_ended()


def _feeds(one: Asked) -> bool:
    return find_fix(one.fix).fix.group == "loader"
