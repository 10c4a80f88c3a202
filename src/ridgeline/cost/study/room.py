"""How much memory is free, and a watch that ends the program with a sentence before the kernel ends
it without one."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from ridgeline.machine import processor

LEAST_FREE_BYTES = 256 * 2**20
LOOK_EVERY_S = 0.05
"""Fresh pages come at about 2 GB/s, so 100 MB may go between two looks."""


def free_bytes(device: torch.device) -> int:
    """What a run on this device could still take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return processor.free_bytes()


@contextmanager
def watched(doing: str, hint: str, exit_code: int) -> Iterator[None]:
    """While entered, end the process with a sentence when the host's memory is all but gone: a
    caught exception cannot help there, because Linux hands out pages it does not have."""
    done = threading.Event()

    def watch() -> None:
        host = torch.device("cpu")
        while not done.wait(LOOK_EVERY_S):
            if free_bytes(host) < LEAST_FREE_BYTES:
                resident = psutil.Process().memory_info().rss / 2**30
                sys.stderr.write(
                    f"ridgeline: {doing} does not fit: {resident:.1f} GiB taken and no memory "
                    f"left.\n  {hint}\n"
                )
                sys.stderr.flush()
                os._exit(exit_code)

    thread = threading.Thread(target=watch, name="ridgeline-memory-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
