"""Which line allocated what is alive on the device: recorded while the program settles.

Python stacks only, in a bounded ring, from the moment CUDA starts until the first timed step: those
steps are not timed, and most programs that do not fit fail in them. When the device runs out of
memory, at any time, what is alive is written down before the exception reaches the program.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.harness.capture.places import here, own, there
from ridgeline.records.run import OutOfMemory

RING = 100_000
MOST_ALIVE = 20
MOST_SNAPSHOTS = 2

Where = Callable[[], tuple[int, str, int | None]]
"""The step and the phase the program is in, and the thread that trains: a backward runs out of
memory in a thread of autograd's, where no line is the user's."""


class MemoryHistory:
    def __init__(
        self,
        torch: Any,
        target: Path,
        where: Where,
        told: Callable[[OutOfMemory], None],
        fault: Callable[[str, BaseException], None],
    ) -> None:
        self._torch = torch
        self._target = target
        self._where = where
        self._told = told
        self._fault = fault
        self._recording = False
        self._snapshots = 0

    def watch(self) -> None:
        """From CUDA's start on; at once where it has started. Never starts it."""
        if self._torch.version.cuda:
            self._torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        try:
            self._torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
            enabled = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
            if enabled is None or not enabled():  # else the program records its own
                self._torch.cuda.memory._record_memory_history(
                    "all", context="alloc", stacks="python", max_entries=RING
                )
                self._recording = True
        except Exception as error:  # an allocator without history
            self._recording = False
            self._fault("memory history", error)

    def stop(self) -> Path | None:
        """Ends the recording; the snapshot's file."""
        if not self._recording:
            return None
        self._recording = False
        try:
            return self._write(self._target)
        finally:
            self._torch.cuda.memory._record_memory_history(None)

    def _write(self, target: Path) -> Path:
        partial = target.parent / f".{target.name}.part"
        try:
            with open(partial, "wb") as file:
                pickle.dump(self._torch.cuda.memory._snapshot(), file)
            os.chmod(partial, 0o600)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    def _out_of_memory(self, device: int, asked: int, held: int, free: int) -> None:
        if self._snapshots >= MOST_SNAPSHOTS:
            return
        self._snapshots += 1
        try:
            self._told(self._describe(device, asked, free))
        except Exception as error:  # out of memory is bad enough
            self._fault("out of memory", error)

    def _describe(self, device: int, asked: int, free: int) -> OutOfMemory:
        step, phase, thread = self._where()
        memory = self._torch.cuda.memory
        snapshot = memory._snapshot()
        target = self._target.with_name(self._target.name.replace("memory-", "oom-"))
        try:
            with open(target, "wb") as file:
                os.chmod(target, 0o600)
                pickle.dump(snapshot, file)
        except OSError:
            target.unlink(missing_ok=True)
        return OutOfMemory(
            asked_bytes=asked,
            free_bytes=free,
            total_bytes=int(self._torch.cuda.get_device_properties(device).total_memory),
            allocated_bytes=int(self._torch.cuda.memory_allocated(device)),
            reserved_bytes=int(self._torch.cuda.memory_reserved(device)),
            step=step,
            phase=phase,
            place=here() or there(thread),
            alive=alive(snapshot),
            snapshot=target.name if target.exists() else "",
        )


def alive(snapshot: Any) -> tuple[tuple[str, int, int], ...]:
    """(file:line, bytes, blocks) of what is allocated, largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") != "active_allocated":
                continue
            place = _place(block.get("frames") or ())
            size, blocks = sums.get(place, (0, 0))
            sums[place] = (size + int(block.get("requested_size") or block["size"]), blocks + 1)
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return tuple((place, size, blocks) for place, (size, blocks) in ordered[:MOST_ALIVE])


def _place(frames: Any) -> str:
    for frame in frames:  # innermost first
        file = str(frame.get("filename", ""))
        if file and not file.startswith("??") and own(file):
            return f"{file}:{frame.get('line', 0)}"
    return ""
