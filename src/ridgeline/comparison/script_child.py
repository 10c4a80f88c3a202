"""Runs a script as Python would, and records its steps and losses.

Run as `python -m ridgeline.comparison.script_child RESULT SEED STEPS script.py arguments…`. Hooks
go in when the script imports torch, and not before. They record and never wait for the device:
steps are marked with events there.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from time import perf_counter_ns, process_time_ns, thread_time_ns
from types import ModuleType
from typing import Any

import msgspec

from ridgeline.equality.scripts import ScriptRecord
from ridgeline.measure.clock import sleeps_so_far

MAX_RECORDED_STEPS = 20_000
MAX_RECORDED_LOSSES = 1_000


class _LastStepTaken(BaseException):
    """The number of steps that was asked for has been taken."""


class _Recorder:
    """Records what the hooks see."""

    def __init__(self, seed: int, steps: int) -> None:
        self._seed = seed
        self._most = steps or sys.maxsize
        self._marks: list[tuple[int, int, int, int | None]] = []
        self._events: list[Any] = []
        self._losses: list[Any] = []
        self._optimizers: list[Any] = []
        self._taken = 0
        self._depth = 0

    def install(self, torch: Any) -> None:
        torch.manual_seed(self._seed)
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(self._before)
        optimizer.register_optimizer_step_post_hook(self._after)
        original: Callable[..., Any] = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_loss(torch, tensors)
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = backward

    def _note_loss(self, torch: Any, tensors: Any) -> None:
        first = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        scalar = isinstance(first, torch.Tensor) and first.numel() == 1
        if scalar and len(self._losses) < MAX_RECORDED_LOSSES:
            self._losses.append(first.detach().clone())

    def _before(self, optimizer: Any, *rest: Any) -> None:
        self._depth += 1  # an optimizer that steps another inside its own step counts once

    def _after(self, optimizer: Any, *rest: Any) -> None:
        self._depth -= 1
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
        # With several optimizers (a GAN) a step is over when the first one comes round again.
        if self._depth or optimizer is not self._optimizers[0]:
            return
        self._taken += 1
        if len(self._marks) < MAX_RECORDED_STEPS:
            now = (perf_counter_ns(), process_time_ns(), thread_time_ns(), sleeps_so_far())
            self._marks.append(now)
            torch = sys.modules["torch"]
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                self._events.append(event)
        if self._taken >= self._most:
            raise _LastStepTaken

    def record(self) -> ScriptRecord:
        marks = self._marks
        steps = [float(b[0] - a[0]) for a, b in itertools.pairwise(marks)]
        on_device = bool(marks) and len(self._events) == len(marks)
        peak = 0
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        if on_device:
            events = self._events
            steps = [1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
        parameters = self._parameters(torch)
        return ScriptRecord(
            step_ns=tuple(steps),
            step_cpu_ns=tuple(float(b[1] - a[1]) for a, b in itertools.pairwise(marks)),
            step_thread_ns=tuple(float(b[2] - a[2]) for a, b in itertools.pairwise(marks)),
            step_sleeps=tuple(
                b[3] - a[3]
                for a, b in itertools.pairwise(marks)
                if a[3] is not None and b[3] is not None
            ),
            steps=self._taken,
            losses=tuple(float(loss) for loss in self._losses),
            parameter_norms=tuple(norm for norm, _ in parameters),
            parameter_sizes=tuple(size for _, size in parameters),
            device_peak_bytes=peak,
            clock="device events" if on_device else "wall",
        )

    def _parameters(self, torch: Any) -> Sequence[tuple[float, int]]:
        """Return the norm and the size of each parameter that is optimized."""
        found = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"][:MAX_RECORDED_LOSSES]:
                    with contextlib.suppress(RuntimeError):  # sharded or freed: nothing to say
                        norm = float(torch.linalg.vector_norm(parameter.detach().double()))
                        found.append((norm, parameter.numel()))
        return found[:MAX_RECORDED_LOSSES]


class _AfterTorch(MetaPathFinder):
    """Calls back once torch has been imported."""

    def __init__(self, ready: Callable[[Any], None]) -> None:
        self._ready = ready

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            loader.exec_module = execute  # type: ignore[method-assign]
            self._ready(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        assert isinstance(loader, Loader)
        return spec


def main() -> None:
    result, seed, steps, script, *arguments = sys.argv[1:]
    recorder = _Recorder(int(seed), int(steps))
    sys.meta_path.insert(0, _AfterTorch(recorder.install))
    import random

    random.seed(int(seed))
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        with contextlib.suppress(_LastStepTaken):
            runpy.run_path(script, run_name="__main__")
    finally:
        data = msgspec.json.encode(recorder.record())
        with open(result, "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
