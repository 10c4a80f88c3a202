"""Runs inside a program that is compared with another: seeds it before its first draw, and records
its losses and, if the plan asks for them, its steps.

`harness/capture/boot` calls `begin` once the program has imported torch. Nothing here waits for the
device before the program ends: steps are marked with events there.
"""

import contextlib
import importlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.equality.scripts import MAX_RECORDED_LOSSES, ProgramRecord
from ridgeline.harness.capture import launch
from ridgeline.harness.capture.program_exit import LastWords
from ridgeline.harness.usercode.child_process import Ended, visible_device
from ridgeline.measure.clock import sleeps_so_far
from ridgeline.records.run import Target

RECORDS = "record-rank*.msgpack"
"""Not JSON, which has no nan: a loss that broke would come back as one that was not seen."""
MAX_RECORDED_STEPS = 20_000
MAX_LAST_LOSSES = 100
_UNSCALED = "_ridgeline_unscaled"


class RecordPlan(Struct, frozen=True, kw_only=True):
    """Says what is recorded of a program."""

    seed: int
    steps: bool = False
    """Whether each optimizer step is timed, and the parameters are recorded at the end."""
    max_steps: int = 0
    """The program is ended after this many optimizer steps; 0: it ends by itself."""


def run_recorded(
    target: Target,
    home: Path,
    plan: RecordPlan,
    *,
    compiled: Path,
    limit_s: float,
    device: str | None = None,
    keep_output: Path | None = None,
) -> tuple[Ended, list[ProgramRecord]]:
    """Run a program to its end. Return how it ended, and the records of its processes."""
    for file in home.glob(RECORDS):
        file.unlink()
    # The boot of the program waits for a watcher that holds this lock; there is none here.
    (home / ".watch-rank0.lock").touch()
    program = launch.FreshProgram(
        target, home, __name__, plan, seed=plan.seed, compiled=compiled
    )  # fmt: skip
    ended = program.run(limit_s, variables=visible_device(device), keep_output=keep_output)
    files = sorted(home.glob(RECORDS))
    return ended, [msgspec.msgpack.decode(f.read_bytes(), type=ProgramRecord) for f in files]


def begin(torch: Any, directory: str) -> None:
    launch.begin_or_exit(lambda: _begin(torch, Path(directory)))


def _begin(torch: Any, home: Path) -> None:
    if launch.is_launcher(sys.orig_argv):
        launch.begin_in_children(home, __name__)
        return
    plan = msgspec.json.decode((home / launch.PLAN).read_bytes(), type=RecordPlan)
    launch.seed_generators(torch, plan.seed)
    _Recorder(torch, home, plan).install()


class _Recorder:
    """Keeps the scalars that backward is called on, and marks the ends of optimizer steps."""

    def __init__(self, torch: Any, home: Path, plan: RecordPlan) -> None:
        self._torch = torch
        self._home = home
        self._plan = plan
        self._end = LastWords(self._write)
        self._losses: list[Any] = []
        self._last_losses: deque[Any] = deque(maxlen=MAX_LAST_LOSSES)
        self._loss_count = 0
        self._marks: list[tuple[int, int, int, int | None]] = []
        self._events: list[Any] = []
        self._optimizers: list[Any] = []
        self._taken = 0
        self._depth = 0

    def install(self) -> None:
        torch = self._torch
        original: Callable[..., Any] = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # an error of ours must not end the program
                self._note_loss(tensors)
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        self._follow_scaler(torch.amp.GradScaler)
        if self._plan.steps:
            optimizer = importlib.import_module("torch.optim.optimizer")
            optimizer.register_optimizer_step_pre_hook(self._step_begins)
            optimizer.register_optimizer_step_post_hook(self._step_ends)
        self._end.install()

    def _follow_scaler(self, scaler: Any) -> None:
        """Attach the loss to what a gradient scaler makes of it: backward is called on that."""
        original = scaler.scale

        def scale(owner: Any, outputs: Any) -> Any:
            scaled = original(owner, outputs)
            if isinstance(outputs, self._torch.Tensor) and scaled is not outputs:
                setattr(scaled, _UNSCALED, outputs.detach())
            return scaled

        scaler.scale = scale

    def _note_loss(self, tensors: Any) -> None:
        torch = self._torch
        loss = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        loss = getattr(loss, _UNSCALED, loss)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if loss.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # replays of the graph would not come here
        kept = loss.detach().clone()
        self._loss_count += 1
        if len(self._losses) < MAX_RECORDED_LOSSES:
            self._losses.append(kept)
        self._last_losses.append(kept)

    def _step_begins(self, optimizer: Any, *rest: Any) -> None:
        self._depth += 1  # an optimizer that steps another inside its own step counts once

    def _step_ends(self, optimizer: Any, *rest: Any) -> None:
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
            cuda = self._torch.cuda
            if cuda.is_available() and cuda.is_initialized():
                event = cuda.Event(enable_timing=True)
                event.record()
                self._events.append(event)
        if self._taken == self._plan.max_steps:
            self._end.at_once()

    def _write(self) -> None:
        """Write the record. A device that has failed cannot tell the losses, and the program then
        counts as one without any."""
        rank = int(os.environ.get("RANK", "0") or 0)
        path = self._home / RECORDS.replace("*", str(rank))
        temporary = path.with_suffix(".part")
        with contextlib.suppress(Exception):
            temporary.write_bytes(msgspec.msgpack.encode(self._record()))
            temporary.replace(path)

    def _record(self) -> ProgramRecord:
        marks, events, cuda = self._marks, self._events, self._torch.cuda
        steps = [float(b[0] - a[0]) for a, b in itertools.pairwise(marks)]
        on_device = bool(marks) and len(events) == len(marks)
        peak = 0
        if self._plan.steps and cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()
            peak = cuda.max_memory_allocated()
        if on_device:
            steps = [1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
        parameters = self._parameters()
        return ProgramRecord(
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
            last_losses=tuple(float(loss) for loss in self._last_losses),
            loss_count=self._loss_count,
            parameter_norms=tuple(norm for norm, _ in parameters),
            parameter_sizes=tuple(size for _, size in parameters),
            device_peak_bytes=peak,
            clock="device events" if on_device else "wall",
        )

    def _parameters(self) -> Sequence[tuple[float, int]]:
        """Return the norm and the size of each parameter that is optimized."""
        torch = self._torch
        parameters = [
            parameter
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        found = []
        for parameter in parameters[:MAX_RECORDED_LOSSES]:
            with contextlib.suppress(RuntimeError):  # sharded or freed: nothing to say
                norm = float(torch.linalg.vector_norm(parameter.detach().double()))
                found.append((norm, parameter.numel()))
        return found
