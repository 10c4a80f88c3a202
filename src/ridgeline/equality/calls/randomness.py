"""Random numbers: the same for every variant while it is checked, and the user's own afterwards."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

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
