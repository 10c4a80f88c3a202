"""Records what a candidate's fixes changed in the running program, so that it can be taken off and
put on again.

A fix is applied once, by its own hooks. What it changed is found by comparing the model, the
optimizers, torch's settings and torch's functions before and after each hook, so that no fix has to
know how it is undone. Tensors keep their values: a layout is changed back by laying out the values
that the tensor has by then.
"""

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from ridgeline.harness.race.process_state import Setting, hook_tables, owners, settings

_MISSING = object()
_TABLES = (
    "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip
"""Tables of a module whose entries are compared, not the tables themselves."""
_PROGRAMS_OWN = frozenset({"training"})
"""Attributes of a module that the program changes while it runs."""
_OPTIMIZER_CONTENTS = frozenset({"state", "param_groups", "defaults"})

Entry = tuple[Any, Any, Any, Any]
"""A table, a key, and the values that the key has without and with the fixes."""


class LiveChanges:
    """The changes of one candidate."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._entries: list[Entry] = []
        self._class_entries: list[Entry] = []
        self._settings: list[tuple[Setting, Any, Any]] = []
        self._code: list[tuple[FunctionType, Any, Any]] = []
        self._layouts: list[tuple[Any, Any, Any]] = []
        """Tensors with their strides without and with the fixes."""
        self._casts: list[tuple[Any, Any, Any]] = []
        """Parameters with their data without and with the fixes, which differ in type."""
        self._optimizers: list[Any] = []
        self.is_on = True

    def record(
        self,
        do: Callable[[], None],
        *,
        modules: Sequence[Any] = (),
        optimizers: Sequence[Any] = (),
        functions: Sequence[FunctionType] = (),
    ) -> None:
        """Call `do`, and note what it changed in these objects and in the process."""
        before, laid_out = _Picture(self._torch, modules, optimizers, functions), len(self._layouts)
        try:
            do()
        finally:
            self._note(before, _Picture(self._torch, modules, optimizers, functions))
            self._optimizers += [one for one in optimizers if one not in self._optimizers]
            with self._torch.no_grad():
                self._lay_out(self._layouts[laid_out:], after=True)

    def _note(self, before: "_Picture", after: "_Picture") -> None:
        self._entries += _differences(before.tables, after.tables)
        self._class_entries += _differences(before.classes, after.classes)
        for setting, was, now in zip(before.settings, before.values, after.values, strict=True):
            if was is not _MISSING and now is not _MISSING and was != now:
                self._settings.append((setting, was, now))
        for function, code in before.code.items():
            if function.__code__ is not code:
                self._code.append((function, code, function.__code__))
        for number, (tensor, data) in before.tensors.items():
            if number not in after.tensors:
                continue
            now = after.tensors[number][1]
            if now.dtype != data.dtype:
                self._casts.append((tensor, data, now))
            elif now.stride() != data.stride():
                self._layouts.append((tensor, data.stride(), now.stride()))

    def put_on(self) -> None:
        if not self.is_on:
            self.is_on = True
            self._switch(after=True)

    def take_off(self) -> None:
        if self.is_on:
            self.is_on = False
            self._switch(after=False)

    def _switch(self, *, after: bool) -> None:
        order = iter if after else reversed
        for table, key, was, now in order(self._entries):
            _set(table, key, now if after else was)
        for owner, name, was, now in order(self._class_entries):
            _set_attribute(owner, name, now if after else was)
        for setting, was, now in self._settings:
            setting.write(now if after else was)
        for function, was, now in order(self._code):
            function.__code__ = now if after else was
        for tensor, was, now in self._casts:
            tensor.data = now if after else was
        with self._torch.no_grad():
            for optimizer in self._optimizers:
                move_step_counts(self._torch, optimizer)
            self._lay_out(self._layouts, after=after)

    def _lay_out(self, layouts: Sequence[tuple[Any, Any, Any]], *, after: bool) -> None:
        """Lay out tensors, their gradients and their moments as the fixes do, or as before."""
        for tensor, was, now in layouts:
            _lay_out(self._torch, tensor, now if after else was)
        for optimizer in self._optimizers if layouts else ():
            _lay_out_state(self._torch, optimizer)


class _Picture:
    """The state of everything that a fix may change."""

    def __init__(
        self, torch: Any, modules: Sequence[Any], optimizers: Sequence[Any],
        functions: Sequence[FunctionType],
    ) -> None:  # fmt: skip
        self.tables: list[tuple[Any, dict[Any, Any]]] = []
        self.tensors: dict[int, tuple[Any, Any]] = {}
        """Parameters and buffers by their id, each with its data."""
        every = {id(one): one for module in modules for one in module.modules()}
        for module in every.values():
            self._module(module)
        for optimizer in optimizers:
            own = vars(optimizer)
            self.tables.append((own, _without(own, _OPTIMIZER_CONTENTS)))
            self.tables.append((optimizer.defaults, dict(optimizer.defaults)))
            self.tables += [(g, _without(g, {"params"})) for g in optimizer.param_groups]
        self.tables += [(hooks, dict(hooks)) for hooks in hook_tables()]
        self.classes = [(owner, _functions_of(owner)) for owner in owners()]
        self.settings = list(settings(torch))
        self.values = [_read(one) for one in self.settings]
        self.code = {function: function.__code__ for function in functions}

    def _module(self, module: Any) -> None:
        held = vars(module)
        self.tables.append((held, _without(held, _PROGRAMS_OWN.union(_TABLES))))
        self.tables += [(held[name], dict(held[name])) for name in _TABLES if held.get(name)]
        for name in ("_parameters", "_buffers"):
            for tensor in held.get(name, {}).values():
                if tensor is not None:
                    self.tensors[id(tensor)] = tensor, tensor.data


def _without(table: dict[Any, Any], names: Any) -> dict[Any, Any]:
    return {key: value for key, value in table.items() if key not in names}


def _functions_of(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if callable(value)}


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except (RuntimeError, AttributeError):  # older and newer ways to set TF32, mixed
        return _MISSING


def _differences(
    before: Sequence[tuple[Any, dict[Any, Any]]], after: Sequence[tuple[Any, dict[Any, Any]]]
) -> Iterator[Entry]:
    then = {id(table): held for table, held in before}
    for table, now in after:
        was = then.get(id(table))
        if was is None:  # a table of a module that the fix has made
            continue
        for key in {**was, **now}:
            old, new = was.get(key, _MISSING), now.get(key, _MISSING)
            if old is not new:
                yield table, key, old, new


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _MISSING:
        table.pop(key, None)
    elif table.get(key, _MISSING) is not value:
        table[key] = value


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    if value is not _MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _lay_out(torch: Any, tensor: Any, strides: Any) -> None:
    """Give a tensor and its gradient these strides; both keep their values."""
    for one in (tensor, tensor.grad if tensor.is_leaf else None):
        if one is not None and one.stride() != strides:
            one.data = _with_strides(torch, one.data, strides)


def _with_strides(torch: Any, values: Any, strides: Any) -> Any:
    laid_out = torch.empty_strided(values.shape, strides, dtype=values.dtype, device=values.device)
    return laid_out.copy_(values)


def _lay_out_state(torch: Any, optimizer: Any) -> None:
    """Lay out moments as their parameters are: torch updates tensors of other strides one by
    one."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if alike and value.dim() > 1 and value.stride() != parameter.stride():
                state[name] = _with_strides(torch, value, parameter.stride())


def move_step_counts(torch: Any, optimizer: Any) -> None:
    """Move each step count to where the group's kernel reads it: a fused or capturable update from
    the device, any other from the host, which would otherwise wait for the device each time."""
    for group in optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            count = state.get("step") if state else None
            if isinstance(count, torch.Tensor):
                device = parameter.device if on_device else torch.device("cpu")
                if count.device != device:
                    state["step"] = count.to(device)
