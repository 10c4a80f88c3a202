"""Times steps in the same way in the plain programs and in their hand-tuned twins."""

import json
import statistics
import time

import torch

TIMED_BLOCKS = 5
"""The timed steps are cut into this many blocks, and the median of them counts: one hiccup of the
machine does not move it. The device is waited for at the ends of blocks only."""


class StepTimer:
    """Prints milliseconds a step once `steps` steps have ended, if `enabled`; else does nothing.

    The first half of the steps is warm-up (compilation, autotuning, caches, worker start).
    """

    def __init__(self, steps: int, enabled: bool) -> None:
        block_steps = max(1, steps // 2 // TIMED_BLOCKS)
        marks = range(0, (TIMED_BLOCKS + 1) * block_steps, block_steps)
        self.marks = {steps - mark for mark in marks if mark <= steps} if enabled else set()
        self.block_steps = block_steps
        self.last = steps
        self.done = 0
        self.times_s: list[float] = []

    def tick(self) -> None:
        """Call at the end of every step."""
        self.done += 1
        if self.done not in self.marks:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times_s.append(time.perf_counter())
        if self.done == self.last:
            self._print()

    def _print(self) -> None:
        blocks = [
            (end - begin) / self.block_steps * 1e3
            for begin, end in zip(self.times_s, self.times_s[1:], strict=False)
        ]
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        result = {
            "ms_per_step": statistics.median(blocks),
            "block_ms": [round(block, 3) for block in blocks],
            "timed_steps": self.block_steps * len(blocks),
            "peak_bytes": peak,
        }
        print("timing " + json.dumps(result), flush=True)
