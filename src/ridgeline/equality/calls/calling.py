"""Single calls of a workload: seeded, waited for, and timed."""

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
from ridgeline.equality.calls.outputs import Outputs, Room, outputs_of
from ridgeline.harness.usercode.workload import Workload

_PLUMBING = ("torch", "tqdm", "multiprocessing", "concurrent")
Synchronize = Callable[[], None]


def wait_for_devices() -> None:
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


class Caller:
    """Calls a workload, each time from a given seed."""

    def __init__(self, workload: Workload, seed: int, synchronize: Synchronize) -> None:
        self.workload = workload
        self.seed = seed
        self.synchronize = synchronize

    def copied(self, value: Any) -> Outputs:
        """What a call returned, as evidence; by the same measure for every call. A check of the
        file's own sees whole outputs or nothing, so more is kept for one."""
        times = 4 if self.workload.declared.check is not None else 1
        return outputs_of(value, Room(times * outputs.ALL_ELEMENTS, times * outputs.WHOLE_ELEMENTS))

    def __call__(self, turn: int = 0) -> tuple[Any, float]:
        """What call number `turn` returns, and how long it took."""
        seed_all(self.seed + turn)
        self.synchronize()
        start = perf_counter_ns()
        value = self.workload()
        self.synchronize()
        return value, float(perf_counter_ns() - start)


@contextmanager
def as_written() -> Iterator[None]:
    """Compiled code runs as the program it was compiled from. Where nothing has loaded the compiler
    nothing is compiled, and loading it takes 3 s."""
    with eager() if "torch._dynamo" in sys.modules else nullcontext():
        yield


@contextmanager
def graphs_noticed() -> Iterator[list[str]]:
    """CUDA graphs that are captured or replayed meanwhile: no operator inside one is dispatched,
    and it goes on using the memory it was captured with."""
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
def threads_left() -> Iterator[list[str]]:
    """Threads that were started meanwhile and still live: what they do is on nobody's clock.
    Torch's own (compile workers, pinned memory) and those of queues serve every program alike."""
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
    """Every generator a program draws from unless it made its own. A CUDA device that nobody has
    started yet gets its seed when somebody does."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def drawn() -> str:
    """Where the generators stand: two programs that began alike and stand alike have drawn the
    same numbers."""
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
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside, the user's next numbers are the ones they would have been."""
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
            # Nobody had drawn from it: torch.manual_seed would have given it the same seed.
            torch.cuda.manual_seed_all(torch.initial_seed())
