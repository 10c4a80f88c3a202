"""Runs inside a whole training: seeds it before its first draw, and keeps its first and last
losses.

`harness/capture/boot` calls `begin` once the program has imported torch. Nothing here waits for the
device before the program ends.
"""

import atexit
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.harness.capture import launch

SEED = "RIDGELINE_SEED"
"""The variable that tells every process of a training its seed."""
LOSSES = "losses-rank*.msgpack"
"""Not JSON, which has no nan: a loss that broke would come back as one that was not seen."""
MAX_LAST_LOSSES = 100
FIRST_LOSSES = 3
"""Losses that show whether the seed has an effect. The first alone does not: with a last layer of
zeros it is the same for every seed."""
_UNSCALED = "_ridgeline_unscaled"


class Losses(Struct, frozen=True, kw_only=True):
    """The losses of one process of a training."""

    first: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    count: int = 0


def begin(torch: Any, directory: str) -> None:
    try:
        if launch.is_launcher(sys.orig_argv):
            launch.begin_in_children(Path(directory), __name__)
            return
        launch.seed_generators(torch, int(os.environ[SEED]))
        _LossRecorder(torch, Path(directory)).install()
    except Exception as error:  # the program would train to its end, for nothing
        print(f"ridgeline: no training: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


class _LossRecorder:
    """Keeps the scalars that backward is called on."""

    def __init__(self, torch: Any, home: Path) -> None:
        self._torch = torch
        self._home = home
        self._pid = os.getpid()
        self._exit = os._exit
        self._first: list[Any] = []
        self._last: deque[Any] = deque(maxlen=MAX_LAST_LOSSES)
        self._count = 0

    def install(self) -> None:
        torch = self._torch
        original: Callable[..., Any] = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # an error of ours must not end the training
                self._note(tensors)
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        self._follow_scaler(torch.amp.GradScaler)
        atexit.register(self._write_quietly)
        os._exit = self._program_exits  # type: ignore[assignment]

    def _follow_scaler(self, scaler: Any) -> None:
        """Attach the loss to what a gradient scaler makes of it: backward is called on that."""
        original = scaler.scale

        def scale(owner: Any, outputs: Any) -> Any:
            scaled = original(owner, outputs)
            if isinstance(outputs, self._torch.Tensor) and scaled is not outputs:
                setattr(scaled, _UNSCALED, outputs.detach())
            return scaled

        scaler.scale = scale

    def _note(self, tensors: Any) -> None:
        torch = self._torch
        loss = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        loss = getattr(loss, _UNSCALED, loss)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if loss.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # replays of the graph would not come here
        kept = loss.detach().clone()
        self._count += 1
        if len(self._first) < FIRST_LOSSES:
            self._first.append(kept)
        self._last.append(kept)

    def _write(self) -> None:
        if os.getpid() != self._pid:  # a fork that ends by itself
            return
        losses = Losses(
            first=tuple(float(loss) for loss in self._first),
            last=tuple(float(loss) for loss in self._last),
            count=self._count,
        )
        rank = int(os.environ.get("RANK", "0") or 0)
        path = self._home / LOSSES.replace("*", str(rank))
        temporary = path.with_suffix(".part")
        temporary.write_bytes(msgspec.msgpack.encode(losses))
        temporary.replace(path)

    def _program_exits(self, status: int) -> None:
        """Write the losses if the program calls os._exit, which runs no exit handler."""
        self._write_quietly()
        self._exit(status)

    def _write_quietly(self) -> None:
        """Write the losses. A device that has failed cannot tell them, and the training then counts
        as one without losses."""
        with contextlib.suppress(Exception):
            self._write()
