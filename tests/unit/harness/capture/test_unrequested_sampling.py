"""A plain run samples too: workers always, the program itself where it makes its own batches."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ridgeline.harness.capture import stack_sampling
from ridgeline.harness.capture.inventory import Loaders
from ridgeline.harness.capture.recording import Journal, Recording
from ridgeline.records.run import Settings

MS = 1_000_000


def recording(folder: Path, **settings: Any) -> Recording:
    made = Recording(torch, Journal(folder, 0), Settings(**settings), lambda: (0, "", None), 1)
    made.step(0, 900 * MS, 1000 * MS)  # the first step does not count
    return made


def samples(made: Recording) -> bool:
    running = made._sampler is not None
    made.stop_sampling()
    return running


def test_a_long_wait_for_a_loader_without_workers_starts_sampling(tmp_path: Path) -> None:
    made = recording(tmp_path)
    made.step(1, 30 * MS, 100 * MS)
    before = sys.getswitchinterval()
    made.sample(makes_batches=True)
    assert sys.getswitchinterval() == before  # nobody asked
    assert samples(made)


def test_a_short_wait_or_a_wait_for_workers_does_not_start_sampling(tmp_path: Path) -> None:
    made = recording(tmp_path)
    made.sample(makes_batches=True)
    assert not samples(made)
    made.step(1, 10 * MS, 100 * MS)
    made.sample(makes_batches=True)
    assert not samples(made)
    made.step(2, 90 * MS, 100 * MS)
    made.sample(makes_batches=False)
    assert not samples(made)


def test_requested_sampling_always_starts(tmp_path: Path) -> None:
    made = recording(tmp_path, python=True)
    before = sys.getswitchinterval()
    made.sample(makes_batches=False)
    assert sys.getswitchinterval() < before
    assert samples(made)


def test_sampling_that_was_not_requested_is_shorter_and_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[bytes] = []
    one = stack_sampling.Sampler(lines.append, "worker", requested=False)
    assert (
        one._max_sampling_ns == stack_sampling.MAX_UNREQUESTED_NS < stack_sampling.MAX_SAMPLING_NS
    )
    assert (
        one._max_file_bytes == stack_sampling.MAX_UNREQUESTED_BYTES < stack_sampling.MAX_FILE_BYTES
    )
    monkeypatch.setattr(stack_sampling, "MAX_UNREQUESTED_FILES", 1)
    (tmp_path / "python-1.jsonl").touch()
    loop = stack_sampling.WorkerLoop(lambda: None, str(tmp_path), requested=False)
    assert stack_sampling._start_sampler(loop, (), {}) is None


@pytest.mark.parametrize("workers_kept", [False, True])
def test_epochs_are_counted_with_the_steps_they_began_in(workers_kept: bool) -> None:
    seen, step = Loaders(), 0
    loader = DataLoader(
        TensorDataset(torch.zeros(6, 1)), 2, num_workers=int(workers_kept),
        persistent_workers=workers_kept,
    )  # fmt: skip
    for _ in range(3):
        batches = iter(loader)
        for _ in batches:
            seen.handed_out(batches, step)
            step += 1
    (told,) = seen.all()
    assert (told.batches, told.epochs, told.begun) == (9, 3, (0, 3, 6))
    assert seen.batches_made_here is not workers_kept
