"""Makes single calls of a workload: seeded, synchronized and timed."""

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from ridgeline.cost.counting.passes import eager
from ridgeline.equality.calls import outputs
from ridgeline.equality.calls.outputs import ElementBudget, Outputs, outputs_of
from ridgeline.harness.usercode.workload import Workload

_PLUMBING = ("torch", "tqdm", "multiprocessing", "concurrent")
Synchronize = Callable[[], None]


def wait_for_devices() -> None:
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


class Caller:
    """Calls a workload, from a given seed each time."""

    def __init__(self, workload: Workload, seed: int, synchronize: Synchronize) -> None:
        self.workload = workload
        self.seed = seed
        self.synchronize = synchronize

    def copy_outputs(self, value: Any) -> Outputs:
        """Return a copy of what a call returned. More is kept if the user's file has its own check,
        which needs whole outputs."""
        times = 4 if self.workload.declared.check is not None else 1
        return outputs_of(
            value,
            ElementBudget(times * outputs.MAX_CALL_ELEMENTS, times * outputs.MAX_WHOLE_ELEMENTS),
        )

    def __call__(self, turn: int = 0) -> tuple[Any, float]:
        """Return the result of call number `turn`, and its duration."""
        seed_all(self.seed + turn)
        self.synchronize()
        start = perf_counter_ns()
        value = self.workload()
        self.synchronize()
        return value, float(perf_counter_ns() - start)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled code uncompiled. If nothing has loaded the compiler nothing is compiled; loading
    it would take 3 s."""
    with eager() if "torch._dynamo" in sys.modules else nullcontext():
        yield


@contextmanager
def watch_graphs() -> Iterator[list[str]]:
    """Record captures and replays of CUDA graphs: no operator inside a graph is dispatched, and it
    goes on using the memory it was captured with."""
    seen: list[str] = []
    graph: Any = torch.cuda.CUDAGraph
    originals = {name: getattr(graph, name) for name in ("capture_begin", "replay")}

    def noticing(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return originals[name](self, *args, **kwargs)

        return method

    own = {name: name in vars(graph) for name in originals}
    for name in originals:
        setattr(graph, name, noticing(name))
    try:
        yield seen
    finally:
        for name, method in originals.items():
            if own[name]:
                setattr(graph, name, method)
            else:
                delattr(graph, name)


@contextmanager
def watch_threads() -> Iterator[list[str]]:
    """Record threads that were started meanwhile and still run: their work is not timed. Threads of
    torch (compile workers, pinned memory) and of queues do not count."""
    before = {id(thread) for thread in threading.enumerate()}
    left: list[str] = []
    yield left
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None) or type(thread)
        home = getattr(target, "__module__", "") or ""
        ours = thread.name.startswith("ridgeline")
        if id(thread) not in before and not ours and not home.startswith(_PLUMBING):
            left.append(thread.name)


_NUMPY_SEEDS = 2**32


def seed_all(seed: int) -> None:
    """Seed all global random number generators. A CUDA device that is not initialized yet gets its
    seed when it is."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def generator_fingerprint() -> str:
    """Return a hash of the generators' states: two programs with equal states before and after have
    drawn the same numbers."""
    marks = hashlib.sha256()
    marks.update(torch.get_rng_state().numpy().tobytes())
    marks.update(repr(random.getstate()).encode())
    _, keys, *place = np.random.get_state()
    marks.update(np.asarray(keys).tobytes() + repr(place).encode())
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            marks.update(state.numpy().tobytes())
    return marks.hexdigest()


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the random number generators afterwards, so that the user's next numbers do not
    change."""
    state, legacy, default = random.getstate(), np.random.get_state(), torch.get_rng_state()
    started = torch.cuda.is_initialized()
    devices: list[Any] = torch.cuda.get_rng_state_all() if started else []
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)
        torch.set_rng_state(default)
        if started:
            torch.cuda.set_rng_state_all(devices)
        elif torch.cuda.is_available():
            # It was not used before: torch.manual_seed would have given it the same seed.
            torch.cuda.manual_seed_all(torch.initial_seed())
