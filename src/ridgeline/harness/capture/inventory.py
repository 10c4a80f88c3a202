"""Takes stock of the program: its modules, optimizers, loaders and child processes, and whether it
clears its gradients.

Gradients that are not cleared between two steps of an optimizer add up for ever. One small
parameter of each optimizer is followed. When the first backward after a step begins, the gradient
of that parameter must be None, filled with zeros, or another tensor. This shows whatever cleared it
(`zero_grad`, `p.grad = None`, `p.grad.zero_()`). Two cases need care. Gradients that are
accumulated on purpose are still cleared after the optimizer's step. Two optimizers that take turns
each clear their own gradients before their own turn. So a step counts as not cleared only if no
backward before the optimizer's next step found the gradient cleared.
"""

import weakref
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns
from typing import Any, Literal

from msgspec import Struct

from ridgeline.harness.capture.places import is_user_file, user_functions, user_line
from ridgeline.records.run import ChildrenSeen, LoaderSeen, ModuleSeen, OptimizerSeen

MAX_STEPS = 16
"""Steps of each optimizer that are followed. All of them come before the first step that is only
timed."""
MAX_OPTIMIZERS = 8
MAX_PARAMETERS = 64
"""Number of parameters among which the smallest is chosen."""
MAX_DEVICE_READINGS = 4
"""How often a gradient's values are read from a device, for each optimizer: each reading makes the
host wait. Afterwards only the gradient's version counter is compared. Four are enough to see a
gradient filled with zeros by way of `grad.data`, which the counter does not show, before the fourth
backward of a step."""


class _Followed(Struct):
    parameter: Any
    """A weak reference to the followed parameter; None while its gradient is not known."""
    pointer: int
    """Address of the gradient at the end of the optimizer's last step."""
    version: int
    """Version counter of the gradient at that moment, or at the end of a later backward: if it has
    changed since, the program itself wrote the gradient."""
    looks: int = 0
    """Number of backwards since that step."""
    cleared: bool = False
    """Whether one of these backwards found the gradient None, zero or replaced."""
    checked: int = 0
    """Steps for which the answer is known."""
    kept: int = 0
    """How many of them began with the gradients of the step before."""
    device_readings: int = 0


class GradientClearing:
    """Checks whether the gradients of each optimizer are cleared between its steps."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._followed: dict[int, _Followed] = {}

    def seen(self, optimizer: int) -> tuple[int, int]:
        """Return how many steps of an optimizer, given by its id, were checked, and how many of
        these steps began with the gradients of the step before."""
        followed = self._followed.get(optimizer)
        return (followed.checked, followed.kept) if followed is not None else (0, 0)

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer's step has ended, with its gradients still in place."""
        followed = self._followed.get(id(optimizer))
        if followed is None and len(self._followed) >= MAX_OPTIMIZERS:
            return
        if followed is not None:
            if followed.checked >= MAX_STEPS:
                return
            if followed.looks:
                followed.checked += 1
                followed.kept += not followed.cleared
        reference = followed.parameter if followed is not None else None
        parameter = reference() if reference is not None else None
        if not self._is_plain(getattr(parameter, "grad", None)):
            parameter = self._smallest(optimizer)
        if parameter is None:
            if followed is not None:
                followed.looks = 0
            return
        grad = parameter.grad
        if followed is None:
            followed = self._followed[id(optimizer)] = _Followed(None, 0, 0)
        followed.parameter, followed.looks, followed.cleared = weakref.ref(parameter), 0, False
        followed.pointer, followed.version = grad.data_ptr(), grad._version

    def pass_over(self) -> None:
        """Note that a step has ended which could not be checked: nothing is known until the next
        step has ended."""
        for followed in self._followed.values():
            followed.parameter, followed.looks = None, 0

    def backward_begins(self) -> None:
        for followed in self._followed.values():
            if (
                followed.checked < MAX_STEPS
                and not followed.cleared
                and followed.parameter is not None
            ):
                parameter = followed.parameter()
                followed.cleared = parameter is None or self._is_clean(followed, parameter.grad)
                followed.looks += 1

    def backward_ended(self) -> None:
        """Note what a backward has written, so that it is not taken for the program's own clearing
        when the next backward of an accumulated step begins."""
        for followed in self._followed.values():
            if followed.looks and not followed.cleared and followed.parameter is not None:
                grad: Any = getattr(followed.parameter(), "grad", None)
                if self._is_plain(grad):
                    followed.version = grad._version

    def _is_clean(self, followed: _Followed, grad: Any) -> bool:
        if not self._is_plain(grad) or grad.data_ptr() != followed.pointer:
            return True
        written = grad._version != followed.version
        if written and (not followed.looks or not self._is_cheap_to_read(grad)):
            return True  # not by a backward: in doubt the program cleared it
        if not self._is_cheap_to_read(grad):
            if followed.device_readings >= MAX_DEVICE_READINGS:
                return False
            if self._torch.cuda.is_current_stream_capturing():
                return True
            followed.device_readings += 1
        return not bool(grad.any())

    def _is_cheap_to_read(self, grad: Any) -> bool:
        return bool(grad.is_cpu)

    def _is_plain(self, grad: Any) -> bool:
        """Return whether `grad` is a dense tensor of torch's own class, on a device whose memory
        has addresses."""
        torch = self._torch
        return (
            type(grad) is torch.Tensor
            and grad.layout is torch.strided
            and grad.device.type in ("cpu", "cuda")
        )

    def _smallest(self, optimizer: Any) -> Any:
        """Return a parameter whose gradient is cheap to read and, on a CPU, not zero already; None
        if there is none."""
        plain = []
        with suppress(AttributeError, KeyError, TypeError):
            for group in optimizer.param_groups:
                plain += [p for p in group["params"] if self._is_plain(p.grad) and p.grad.numel()]
                if len(plain) >= MAX_PARAMETERS:
                    break
        plain.sort(key=lambda p: p.grad.numel())
        return next((p for p in plain[:4] if not p.grad.is_cpu or bool(p.grad.any())), None)


MAX_KNOWN = 64
_MAX_RECORDED_STARTS = 256
_MAX_LOADER_LINES = 256
_MAX_FRAMES = 4
_WRAPPERS = ("_orig_mod", "module")
_OPTIONS = ("foreach", "fused", "capturable", "differentiable", "lr")


class Root(Struct):
    """An outermost module, and how it was called."""

    name: str
    wrappers: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    dtypes: tuple[str, ...]
    device: str
    cuda_index: int | None
    kind: type
    calls: int = 0
    quiet_calls: int = 0
    place: str = ""
    inputs: tuple[str, ...] = ()
    evaluation_place: str = ""
    generates: bool = False

    @property
    def loss(self) -> bool:
        return not self.parameters


class Roots:
    """The outermost modules of the program."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._known: dict[int, Root] = {}
        self._alive: dict[int, Any] = {}
        """Weak references to the modules, by id."""

    def alive(self) -> list[Any]:
        """Return the modules that still exist."""
        return [module for ref in self._alive.values() if (module := ref()) is not None]

    def of(self, module: Any) -> Root:
        root = self._known.get(id(module))
        if root is None or root.kind is not type(module):  # the id was reused
            with self._torch._C.DisableTorchFunction():  # parameters may have a class of their own
                root = self._describe_module(module)
            if len(self._known) < MAX_KNOWN:
                self._known[id(module)] = root
                self._alive[id(module)] = weakref.ref(module)
        return root

    def all(self, trains: bool) -> tuple[ModuleSeen, ...]:
        """Return what is known of all modules. In a program that never trains, calls in eval mode
        or without gradients are its work and no evaluation."""
        return tuple(
            ModuleSeen(
                name=root.name,
                wrappers=root.wrappers,
                calls=root.calls if trains else root.calls + root.quiet_calls,
                evaluation_calls=root.quiet_calls if trains else 0,
                parameters=root.parameters,
                parameter_bytes=root.parameter_bytes,
                dtypes=root.dtypes,
                device=root.device,
                place=root.place,
                loss=root.loss,
                inputs=root.inputs,
                evaluation_place=root.evaluation_place if trains else "",
                generates=root.generates,
            )
            for root in self._known.values()
        )

    def count_quiet_as_training(self) -> None:
        """Count the calls that did not look like training as training."""
        for root in self._known.values():
            root.calls, root.quiet_calls = root.calls + root.quiet_calls, 0

    def _describe_module(self, module: Any) -> Root:
        wrappers = []
        inner = module
        for _ in range(8):
            below = next(
                (
                    child
                    for name in _WRAPPERS
                    if _is_wrapper_name(type(inner).__name__)
                    and (child := inner.__dict__.get("_modules", {}).get(name)) is not None
                ),
                None,
            )
            if below is None:
                break
            wrappers.append(type(inner).__name__)
            inner = below
        kind = type(inner)
        if any(base.__name__ == "FSDPModule" for base in kind.__mro__):  # made by fully_shard
            wrappers.append("FSDPModule")
            kind = kind.__bases__[-1]
        parameters = tensors_of(inner, "_parameters")
        first = parameters[0] if parameters else None
        device = str(first.device) if first is not None else ""
        return Root(
            name=kind.__name__,
            wrappers=tuple(wrappers),
            parameters=sum(map(_elements, parameters)),
            parameter_bytes=sum(_elements(p) * p.element_size() for p in parameters),
            dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
            device=device,
            cuda_index=first.device.index if first is not None and first.is_cuda else None,
            kind=type(module),
            place=user_line(),
            generates=any(base.__name__ == "GenerationMixin" for base in kind.__mro__),
        )

    def describe(self, root: Root, args: Any, kwargs: Any) -> None:
        tensors = [*args, *kwargs.values()]
        with self._torch._C.DisableTorchFunction():
            root.inputs = tuple(
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
                for t in tensors[:8]
                if isinstance(t, self._torch.Tensor)
            )


class Optimizers:
    def __init__(self, clearing: GradientClearing) -> None:
        self._clearing = clearing
        self._known: dict[int, tuple[str, str, dict[str, str]]] = {}
        self._steps: dict[int, int] = {}
        self._alive: dict[int, Any] = {}
        """Weak references to the optimizers, by id."""

    def alive(self) -> list[Any]:
        """Return the optimizers that still exist."""
        return [optimizer for ref in self._alive.values() if (optimizer := ref()) is not None]

    def stepped(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key not in self._known and len(self._known) < MAX_KNOWN:
            self._known[key] = (type(optimizer).__name__, user_line(), _options(optimizer))
            with suppress(TypeError):  # a class without weak references
                self._alive[key] = weakref.ref(optimizer)
        if key in self._known:
            self._steps[key] = self._steps.get(key, 0) + 1

    def all(self, anchor: int | None) -> tuple[OptimizerSeen, ...]:
        return tuple(
            OptimizerSeen(
                name=name,
                steps=self._steps.get(key, 0),
                anchor=key == anchor,
                place=place,
                options=options,
                gradients_checked=self._clearing.seen(key)[0],
                gradients_kept=self._clearing.seen(key)[1],
            )
            for key, (name, place, options) in self._known.items()
        )


class Loaders:
    def __init__(self) -> None:
        self._known: dict[int, LoaderSeen] = {}
        self._batches: dict[int, int] = {}
        self._begun: dict[int, list[int]] = {}
        self._wait_began: tuple[int, int] | None = None
        self._waited: dict[int, tuple[int, int]] = {}
        """For each loader, the nanoseconds of waiting for batches, and how many of them the waiting
        thread spent on a processor."""
        self._made: dict[int, tuple[str, ...]] = {}
        self._unused: list[int] = []
        """The loaders of batches that no model has been called with yet."""
        self._trained: dict[int, int] = {}

    def made(self, loader: Any) -> None:
        """Note where a DataLoader was made. Its constructor may have raised."""
        try:
            key = id(loader.dataset) ^ id(loader._index_sampler)
        except AttributeError:
            return
        if key in self._made or len(self._made) < _MAX_LOADER_LINES:
            self._made[key] = user_functions(_MAX_FRAMES)

    @property
    def lines_made(self) -> tuple[str, ...]:
        """The innermost lines of the user's own code at which loaders were made."""
        return tuple(dict.fromkeys(frames[0] for frames in self._made.values() if frames))

    def used(self, training: bool) -> None:
        """Note that a model is called with the batches handed out since the call before."""
        if training:
            for key in self._unused:
                self._trained[key] = self._trained.get(key, 0) + 1
        self._unused.clear()

    def wait_begins(self) -> None:
        """Note that the thread that trains begins to wait for a batch."""
        self._wait_began = perf_counter_ns(), thread_time_ns()

    def handed_out(self, iterator: Any, step: int = 0) -> None:
        # One DataLoader makes an iterator an epoch; its dataset and sampler stay the same.
        key = id(getattr(iterator, "_dataset", None)) ^ id(
            getattr(iterator, "_index_sampler", None)
        )
        if key not in self._known and len(self._known) < MAX_KNOWN:
            self._known[key] = _loader(iterator)
        if key in self._known:
            self._batches[key] = self._batches.get(key, 0) + 1
            self._note_wait(key)
            if len(self._unused) < MAX_KNOWN:
                self._unused.append(key)
            # With persistent workers the iterator is kept, and counts from 0 again in each epoch.
            if getattr(iterator, "_num_yielded", 0) == 1:
                self._begun.setdefault(key, []).append(step)

    def _note_wait(self, key: int) -> None:
        began, self._wait_began = self._wait_began, None
        if began is not None:
            waited, worked = self._waited.get(key, (0, 0))
            waited += perf_counter_ns() - began[0]
            worked += thread_time_ns() - began[1]
            self._waited[key] = waited, worked

    @property
    def batches_made_here(self) -> bool:
        """Whether batches are made by the process that trains: some loader has no workers."""
        return any(
            not loader.workers and self._batches.get(key) for key, loader in self._known.items()
        )

    def all(self) -> tuple[LoaderSeen, ...]:
        from msgspec.structs import replace

        return tuple(
            replace(
                loader,
                batches=self._batches.get(key, 0),
                epochs=len(self._begun.get(key, ())),
                begun=tuple(self._begun.get(key, ())[:_MAX_RECORDED_STARTS]),
                worked=_worked_share(*self._waited.get(key, (0, 0))),
                training_batches=self._trained.get(key, 0),
                made=self._made.get(key, ()),
            )
            for key, loader in self._known.items()
        )


class Children:
    """Processes that the program starts with a function of its own."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def started(self, process: Any) -> None:
        """Count a process of `multiprocessing` that is about to start, if it runs a function of the
        user's. Workers of a loader or a pool run a library's function and do not count."""
        target, given = process._target, process._args
        if target is None:  # a subclass with a `run` of its own
            target = type(process).run
        if getattr(target, "__module__", "") == "torch.multiprocessing.spawn" and given:
            target = given[0]
        target = getattr(target, "func", target)  # functools.partial
        code = getattr(target, "__code__", None)
        if code is None or not is_user_file(code.co_filename):
            return
        key = (code.co_name, f"{code.co_filename}:{code.co_firstlineno}")
        if key in self._known or len(self._known) < MAX_KNOWN:
            self._known[key] = self._known.get(key, 0) + 1

    def all(self) -> tuple[ChildrenSeen, ...]:
        return tuple(
            ChildrenSeen(function=function, place=place, processes=count)
            for (function, place), count in self._known.items()
        )


def _worked_share(waited_ns: int, worked_ns: int) -> float | None:
    return min(worked_ns / waited_ns, 1.0) if waited_ns else None


def tensors_of(module: Any, field: Literal["_parameters", "_buffers"]) -> list[Any]:
    """Return what `module.parameters()` or `module.buffers()` would, without calling methods that
    the user may have replaced and without hashing modules."""
    tensors: dict[int, Any] = {}
    visited, left = set(), [module]
    while left:
        current = left.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        if "_c" in current.__dict__:  # TorchScript keeps its parameters in C++
            found = current.parameters() if field == "_parameters" else current.buffers()
            tensors |= {id(t): t for t in found}
            continue
        fields = current.__dict__
        tensors |= {id(t): t for t in fields.get(field, {}).values() if t is not None}
        left += reversed(fields.get("_modules", {}).values())
    return list(tensors.values())


def _elements(parameter: Any) -> int:
    """Return the number of elements; 0 if it is not known yet (a lazy module) or only a symbol."""
    try:
        count = parameter.numel()
    except (RuntimeError, ValueError):
        return 0
    return count if type(count) is int else 0


def _length(sampler: Any, dataset: Any) -> int | None:
    """Return the number of batches of a loader; None if only a class of the user's own could tell,
    because its __len__ may do anything."""
    if not type(sampler).__module__.startswith("torch.utils.data"):
        return None
    inner = getattr(sampler, "sampler", sampler)
    if not type(inner).__module__.startswith("torch.utils.data"):
        return None
    if type(dataset).__module__.startswith("torch.utils.data") or type(dataset) in (list, tuple):
        return len(sampler)
    return None


def _is_wrapper_name(name: str) -> bool:
    return name == "OptimizedModule" or "Parallel" in name or name.startswith("FSDP")


def _options(optimizer: Any) -> dict[str, str]:
    groups = getattr(optimizer, "param_groups", None)
    first = groups[0] if isinstance(groups, list) and groups else {}
    return {
        name: str(first[name])[:40]
        for name in _OPTIONS
        if name in first and isinstance(first[name], bool | int | float | type(None))
    }


def _loader(iterator: Any) -> LoaderSeen:
    sampler = getattr(iterator, "_index_sampler", None)
    batch = getattr(sampler, "batch_size", None)
    return LoaderSeen(
        dataset=type(getattr(iterator, "_dataset", None)).__name__,
        stream=getattr(iterator, "_dataset_kind", 0) == 1,  # torch's number for it
        workers=int(getattr(iterator, "_num_workers", 0) or 0),
        batch_size=batch if isinstance(batch, int) else None,
        pin_memory=bool(getattr(iterator, "_pin_memory", False)),
        persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
        prefetch_factor=getattr(iterator, "_prefetch_factor", None),
        length=_length(sampler, getattr(iterator, "_dataset", None)),
        place=user_line(),
    )
