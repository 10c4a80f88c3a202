"""Finds in the live program what holds memory that grows from step to step: a list, a dict, a
closure, a graph, and the name under which the program reaches it.

Nothing is looked at while memory stands still. When the readings at the ends of steps rise, the
lengths of all containers that the program's own code reaches are noted once, and compared once some
steps later. A container that gained an entry in most of these steps is named, with the bytes of the
tensors in it. The way begins at the variables of the functions that run, at the variables of the
program's modules, and at its models. Both looks have a limit of time and of objects, keep no
reference, and run no code of the program: types are compared exactly, and attributes are read from
the interpreter's own tables. All objects of the process are not listed, because that alone takes
20 ms once torch is imported.
"""

import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from inspect import CO_OPTIMIZED
from itertools import islice, pairwise
from time import thread_time
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, Literal

from ridgeline.harness.capture.places import is_user_file
from ridgeline.records.memory import MemoryKind
from ridgeline.records.run import StepMemory
from ridgeline.records.step_memory import HeldTensors, LiveTensors, Stock

MIN_RISING_READINGS = 6
READINGS_BETWEEN_CHECKS = 4
MIN_RISE_BYTES_PER_STEP = 8 * 1024
"""Growth a step from which the program is looked at. Our own records of a step take 1 to 2 KiB."""
MIN_STEPS_BETWEEN_LOOKS = 8
MAX_LOOK_S = 0.05
"""Limit of a look, in time of the processor. A small program takes 2 to 5 ms."""
MAX_FIRST_LOOKS = 3
"""How often a first look is begun again whose time was over before it saw anything."""
MAX_OBJECTS = 30_000
"""Objects that are visited, the nearest first: 1 µs each."""
MIN_GAIN_SHARE = 0.5
"""A container counts as growing if it gained an entry in at least this share of the steps."""
MAX_HOLDERS = 5
MAX_ENTRIES_VISITED = 64
"""A longer container has its first and its last entries visited, half as many of each."""
MAX_ENTRIES_MEASURED = 8
"""Entries of a container whose tensors are measured: the last ones."""
MAX_DEPTH = 3
MAX_REACHED_OBJECTS = 200
MAX_NODES = 20_000
"""Nodes of a graph that are counted: 1 µs each."""
MAX_FRAMES = 32
_OURS = "ridgeline."
_OBJECTS_BETWEEN_CLOCKS = 512
_DICTS = (dict, OrderedDict, defaultdict)
_SIZED = (*_DICTS, list, set, deque)
_PLAIN = frozenset((
    int, float, str, bytes, bool, complex, type(None), range, slice, bytearray, ModuleType,
    CodeType, FrameType, BuiltinFunctionType,
))  # fmt: skip
"""Types that are not followed: they hold nothing, or all of a library."""
_FOLLOWED = (*_SIZED, tuple)
_LRU_CACHE = type(lru_cache(len))
Grown = Literal["tensors", "graph", "objects"]
Owner = Literal["local", "global", "attribute", "closure", ""]


class HoldersWatch:
    """Watches the readings of memory, and looks for holders if they rise."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._readings: list[tuple[int, int]] = []
        self._read = 0
        self._first: _Look | None = None
        self._looks_left = MAX_FIRST_LOOKS
        self._over = False
        self.found: tuple[HeldTensors, ...] = ()

    def read(self, step: int, memory: StepMemory | None) -> None:
        """Note the memory in use at the end of a step, of the device if there is one."""
        if self._over or memory is None:
            return
        self._readings.append((step, memory.allocated_bytes or memory.host_bytes))
        self._read += 1
        if len(self._readings) > 4 * MIN_RISING_READINGS:
            del self._readings[::2]

    @property
    def is_due(self) -> bool:
        """Whether enough readings have come since the last time that growth was looked for."""
        return not self._over and self._read >= READINGS_BETWEEN_CHECKS

    def forget(self) -> None:
        """Forget the readings: a trace has left its own events in memory."""
        self._readings.clear()

    def look(self, step: int, models: Iterable[Any]) -> bool:
        """Look for holders if memory has risen. Return whether time was spent on it."""
        if self._over:
            return False
        self._read = 0
        if self._first is None:
            if not self._is_rising():
                return False
            first = _Look(self._torch, step, models)
            self._first = first if first.lengths else None
            self._looks_left -= 1
            self._over = self._first is None and not self._looks_left
            return True
        if step - self._first.step < MIN_STEPS_BETWEEN_LOOKS:
            return False
        self._over = True
        if len(self._readings) >= MIN_RISING_READINGS and not self._is_rising():
            return False
        self.found = _Look(self._torch, step, models, self._first).grown
        return True

    def _is_rising(self) -> bool:
        """Return whether the level that memory never falls below again rises over each third of the
        readings."""
        if len(self._readings) < MIN_RISING_READINGS:
            return False
        marks: list[int] = []
        lowest = self._readings[-1][1]
        for _, level in reversed(self._readings):
            lowest = min(lowest, level)
            marks.append(lowest)
        marks.reverse()
        third = len(marks) // 3
        parts = [marks[0], marks[third], marks[2 * third], marks[-1]]
        steps = max(self._readings[-1][0] - self._readings[0][0], 1)
        rises = all(after > before for before, after in pairwise(parts))
        return rises and (parts[-1] - parts[0]) / steps >= MIN_RISE_BYTES_PER_STEP


class Name:
    """The name under which the program reaches an object."""

    __slots__ = ("file", "line", "name", "owner", "owner_name")

    def __init__(
        self, name: str = "", owner: Owner = "", owner_name: str = "", file: str = "", line: int = 0
    ) -> None:
        self.name, self.owner, self.owner_name = name, owner, owner_name
        self.file, self.line = file, line

    def entry(self, key: Any = None) -> "Name":
        """Return the name of an entry of the object."""
        text = f"[{key!r}]" if type(key) is str and len(key) < 40 else "[…]"
        name = self.name if self.name.endswith("[…]") else f"{self.name}{text}"
        return Name(name, self.owner, self.owner_name, self.file, self.line)


def reached(
    models: Iterable[Any], frames: Sequence[FrameType], max_entries: int = MAX_ENTRIES_VISITED
) -> Iterator[tuple[Any, Name]]:
    """Yield the objects that the program's own code reaches, each once, the nearest first: from the
    variables of these functions, of the program's modules, and from its models."""
    waiting: deque[tuple[Any, Name]] = deque()
    for frame in frames:
        code = frame.f_code
        for variable, value in _variables(frame):
            known = Name(variable, "local", code.co_qualname, code.co_filename, frame.f_lineno)
            waiting.append((value, known))
    own = {id(frame.f_globals): (frame.f_globals, frame.f_code.co_filename) for frame in frames}
    for table, file in own.values():
        waiting.extend(_globals(table, file))
    waiting.extend((model, Name()) for model in models)
    seen: set[int] = set()
    others: Iterator[tuple[Any, Name]] = _other_globals(own)
    while True:
        if not waiting:
            waiting.extend(islice(others, 1))
        if not waiting:
            return
        item, name = waiting.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item, name
        waiting.extend(_inside(item, name, max_entries))


def _globals(table: dict[str, Any], file: str) -> Iterator[tuple[Any, Name]]:
    """Yield the variables of a module."""
    module = str(table.get("__name__", ""))
    for variable, value in list(table.items()):
        if type(value) not in _PLAIN and not variable.startswith("__"):
            yield value, Name(variable, "global", module, file)


def _other_globals(own: Container[int]) -> Iterator[tuple[Any, Name]]:
    """Yield the variables of the user's other modules. To find out which modules are the user's
    takes 20 ms for the first time, so that the nearer objects come before."""
    for module in list(sys.modules.values()):
        table, file = _attributes(module), _file_of(module)
        if table is not None and id(table) not in own and file and is_user_file(file):
            yield from _globals(table, file)


def _inside(
    item: Any, name: Name, max_entries: int = MAX_ENTRIES_VISITED
) -> Iterator[tuple[Any, Name]]:
    """Yield what an object holds, without numbers and texts."""
    kind = type(item)
    if kind in _DICTS:
        for key, value in _ends(item.items(), len(item), max_entries):
            if type(value) not in _PLAIN:
                yield value, name.entry(key)
    elif kind in _FOLLOWED:
        for value in _ends(item, len(item), max_entries):
            if type(value) not in _PLAIN:
                yield value, name.entry()
    elif kind is FunctionType:
        names = item.__code__.co_freevars
        for free, cell in zip(names, item.__closure__ or (), strict=False):
            code = item.__code__
            known = Name(free, "closure", code.co_qualname, code.co_filename, code.co_firstlineno)
            yield cell, known
        defaults = (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
        yield from ((value, name) for value in defaults if type(value) not in _PLAIN)
    elif kind is CellType:
        try:
            yield item.cell_contents, name
        except ValueError:  # a variable without a value yet
            return
    elif kind is MethodType:
        yield item.__self__, name
        yield item.__func__, name
    elif kind is _LRU_CACHE:
        # The cache's own dict is reached through the collector alone.
        cached = getattr(item, "__wrapped__", None)
        where = f"{getattr(cached, '__name__', '')} (lru_cache)"
        for held in gc.get_referents(item):
            if type(held) is dict and held is not _attributes(item):
                yield held, Name(where, name.owner, name.owner_name, name.file, name.line)
    elif kind is partial:
        yield item.func, name
        yield from ((value, name) for value in (*item.args, *item.keywords.values()))
    elif kind is type or issubclass(kind, type):
        if is_user_file(_file_of(sys.modules.get(_module_of(item))) or "<"):
            for key, value in list(type.__getattribute__(item, "__dict__").items()):
                if type(value) not in _PLAIN:
                    yield value, Name(key, "attribute", item.__qualname__)
    elif (table := _attributes(item)) is not None and not _module_of(kind).startswith(_OURS):
        for key, value in list(table.items()):
            if type(value) not in _PLAIN:
                yield value, Name(str(key), "attribute", kind.__qualname__)


def _ends(entries: Any, count: int, most: int) -> list[Any]:
    """Return the entries of a container, of a long one those at both ends."""
    if count <= most:
        return list(entries)
    found = list(islice(iter(entries), most // 2))
    with suppress(TypeError):  # a set has no order
        found += islice(reversed(entries), most // 2)
    return found


def _last(entries: Any) -> list[Any]:
    """Return the last entries; of a set, which has no order, any."""
    with suppress(TypeError):
        entries = reversed(entries)
    return list(islice(iter(entries), MAX_ENTRIES_MEASURED))


def _module_of(kind: type) -> str:
    name = type.__getattribute__(kind, "__module__")
    return name if type(name) is str else ""


def _file_of(module: Any) -> str:
    file = (_attributes(module) or {}).get("__file__")
    return file if type(file) is str else ""


def _attributes(item: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, without the program's own `__getattribute__`."""
    try:
        table = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return None
    return table if type(table) is dict else None


class _Look:
    """The lengths of containers and the sizes of graphs at one moment, and what has grown since an
    earlier look."""

    def __init__(
        self, torch: Any, step: int, models: Iterable[Any], earlier: "_Look | None" = None
    ) -> None:
        self.step = step
        self.complete = False
        """Whether everything within `MAX_OBJECTS` was visited in time."""
        self.lengths: dict[int, int] = {}
        self.deepest = 0
        self.grown: tuple[HeldTensors, ...] = ()
        self._torch = torch
        frames = user_frames(sys._getframe(1))
        end = thread_time() + MAX_LOOK_S
        plain = (torch.Tensor, torch.nn.Parameter)
        grown: list[tuple[Any, Name, float]] = []
        graph: tuple[Any, Name] | None = None
        with torch._C.DisableTorchFunction():
            for number, (item, name) in enumerate(reached(models, frames)):
                if number >= MAX_OBJECTS:
                    self.complete = True
                    break
                if number % _OBJECTS_BETWEEN_CLOCKS == 0 and thread_time() > end:
                    break
                kind = type(item)
                if kind in _SIZED:
                    length = self.lengths[id(item)] = len(item)
                    # A container that the first look did not see was made since: one of this step.
                    if earlier is not None and id(item) in earlier.lengths:
                        gain = (length - earlier.lengths[id(item)]) / (step - earlier.step)
                        if gain >= MIN_GAIN_SHARE:
                            grown.append((item, name, gain))
                elif kind in plain and item.grad_fn is not None:
                    nodes = _graph_nodes(item)
                    if nodes > self.deepest:
                        self.deepest, graph = nodes, (item, name)
            else:
                self.complete = True
            if earlier is not None:
                self.grown = tuple(self._largest(grown, graph, earlier))

    def _largest(
        self, grown: list[tuple[Any, Name, float]], graph: Any, earlier: "_Look"
    ) -> Iterator[HeldTensors]:
        """Yield what has grown; what holds most tensors first."""
        steps = self.step - earlier.step
        held = [self._described(item, name, gain, steps) for item, name, gain in grown]
        nodes = (self.deepest - earlier.deepest) / steps
        if graph is not None and nodes >= 1.0 and earlier.complete:
            held.append(_held("tensor", graph[1], nodes, steps, "graph"))
        order: dict[Grown, int] = {"graph": 0, "tensors": 0, "objects": 1}
        held.sort(key=lambda one: (order[one.kind], -one.bytes_per_step, -one.per_step))
        yield from held[:MAX_HOLDERS]

    def _described(self, item: Any, name: Name, gain: float, steps: int) -> HeldTensors:
        seen: dict[int, int] = {}
        entries = _last(item.values() if type(item) in _DICTS else item)
        with_graph = sum(reached_bytes(self._torch, entry, seen) for entry in entries) > 0
        kind: Grown = "graph" if with_graph else "tensors" if seen else "objects"
        each = sum(seen.values()) / max(len(entries), 1)
        return _held(type(item).__name__, name, gain, steps, kind, len(item), each)


def _held(
    holder: str, name: Name, gain: float, steps: int, kind: Grown, entries: int = 0, each: float = 0
) -> HeldTensors:
    return HeldTensors(
        holder=holder, name=name.name, owner=name.owner, owner_name=name.owner_name,
        file=name.file, line=name.line, per_step=round(gain, 3), entries=entries,
        bytes=int(each * entries), bytes_per_step=round(each * gain, 1), kind=kind, steps=steps,
    )  # fmt: skip


def _graph_nodes(tensor: Any) -> int:
    """Return the number of nodes of the graph behind a tensor, up to `MAX_NODES`."""
    seen: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(below for below, _ in node.next_functions)
    return len(seen)


def reached_bytes(torch: Any, root: Any, seen: dict[int, int]) -> bool:
    """Add the storages of tensors and arrays that an object reaches in a few steps, by address.
    Return whether one of the tensors has a graph. What a graph has saved is not counted: to read it
    would run hooks of the program."""
    numpy = sys.modules.get("numpy")
    array = numpy.ndarray if numpy is not None else None
    plain = (torch.Tensor, torch.nn.Parameter)
    with_graph = False
    waiting, visited = [(root, 0)], 0
    while waiting and visited < MAX_REACHED_OBJECTS:
        item, depth = waiting.pop()
        visited += 1
        kind = type(item)
        if kind in plain:
            if item.layout is torch.strided and item.device.type in ("cpu", "cuda"):
                storage = item.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
                with_graph |= item.grad_fn is not None
        elif kind is array:
            seen[id(item)] = item.nbytes
        elif depth < MAX_DEPTH:
            waiting.extend((one, depth + 1) for one, _ in _inside(item, Name()))
    return with_graph


MAX_FAILURE_LOOK_S = 0.5
MAX_ENTRIES_AT_FAILURE = 20_000
MIN_HELD_SHARE = 0.05
"""A holder of a smaller share of the tensors is not named when memory runs out."""


def live_at_failure(
    torch: Any, models: list[Any], known: Iterable[Stock], error: BaseException
) -> tuple[tuple[LiveTensors, ...], tuple[HeldTensors, ...]]:
    """Return the tensors that the program's objects hold now that it has ended by `error`, by kind,
    and what holds most of them. What graphs have saved and no variable holds is not among them."""
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    kinds = {address: stock.kind for stock in known for address in stock.addresses}
    plain = (torch.Tensor, torch.nn.Parameter)
    sums: dict[tuple[str, MemoryKind], list[int]] = {}
    by_name: dict[str, tuple[Name, dict[int, int]]] = {}
    seen: set[int] = set()
    end = thread_time() + MAX_FAILURE_LOOK_S
    walk = reached(models, frames[::-1], MAX_ENTRIES_AT_FAILURE)
    with torch._C.DisableTorchFunction():
        for number, (item, name) in enumerate(walk):
            if number % _OBJECTS_BETWEEN_CLOCKS == 0 and thread_time() > end:
                break
            if type(item) not in plain or item.layout is not torch.strided:
                continue
            storage = item.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if not address or address in seen:
                continue
            seen.add(address)
            kind = kinds.get(address) or _kind_of(torch, item)
            entry = sums.setdefault((str(item.device), kind), [0, 0])
            entry[0] += size
            entry[1] += 1
            if address not in kinds and type(item) is not torch.nn.Parameter:
                held = by_name.setdefault(f"{name.owner_name} {name.name}", (name, {}))
                held[1][address] = size
    live = [
        LiveTensors(kind=kind, device=device, bytes=size, tensors=count)
        for (device, kind), (size, count) in sums.items()
    ]
    live.sort(key=lambda one: -one.bytes)
    least = MIN_HELD_SHARE * sum(one.bytes for one in live)
    holders = [
        HeldTensors(
            holder="container" if len(blocks) > 1 else "tensor",
            name=name.name.removesuffix("[…]"), owner=name.owner, owner_name=name.owner_name,
            file=name.file, line=name.line, entries=len(blocks), bytes=sum(blocks.values()),
        )
        for name, blocks in by_name.values()
        if sum(blocks.values()) >= least
    ]  # fmt: skip
    return tuple(live), tuple(sorted(holders, key=lambda one: -one.bytes)[:MAX_HOLDERS])


def _kind_of(torch: Any, tensor: Any) -> MemoryKind:
    if type(tensor) is torch.nn.Parameter:
        return MemoryKind.PARAMETER
    return MemoryKind.ACTIVATION if tensor.grad_fn is not None else MemoryKind.UNKNOWN


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a function. Before Python 3.13 asking for them leaves a copy in the
    frame, which would keep them alive: the copy is emptied, unless the program has it as well."""
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return []  # a module or a class: its variables are in a dict of its own
    table = frame.f_locals
    found = [(name, value) for name, value in table.items() if type(value) not in _PLAIN]
    if type(table) is dict and sys.getrefcount(table) <= 3:  # the frame, `table`, the argument
        table.clear()
    return found


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's own functions that led to a frame, innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < MAX_FRAMES:
        if is_user_file(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found
