"""DataLoader workers that sample themselves: the slow line is found, the data are the same."""

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torchs

import ridgeline
from ridgeline.diagnosis.python_view import python_view
from ridgeline.harness.capture import stack_sampling
from ridgeline.records.run import PythonView
from ridgeline.records.run_directory import RunDirectory
from tests.unit.harness.capture import slow_dataset

ORIGINAL = torchs._worker_loop


@pytest.fixture(autouse=True)
def _taken_out_again() -> Iterator[None]:
    yield
    stack_sampling.uninstall()
    assert torchs._worker_loop is ORIGINAL


def line_of(mark: str) -> int:
    lines = Path(slow_dataset.__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def viewed(
    directory: Path, dataset: Any, count: int = 2, epochs: int = 1, **options: Any
) -> PythonView:
    stack_sampling.install(directory)
    loader = DataLoader(dataset, batch_size=4, num_workers=count, **options)
    for _ in range(epochs):
        for _ in loader:
            pass
    del loader
    stack_sampling.uninstall()
    return python_view([s for s in RunDirectory(directory).sampled() if s.process == "worker"])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_slow_line_of_a_transform_is_named_first(method: str, tmp_path: Path) -> None:
    """Spawn with one worker: each imports torch anew."""
    count = 2 if method == "fork" else 1
    view = viewed(tmp_path, slow_dataset.Slow(), count, multiprocessing_context=method)
    first = view.lines[0]
    assert (first.file, first.line) == (slow_dataset.__file__, line_of("BURNS"))
    assert (first.function, first.process) == ("transform", "worker")
    assert first.source.startswith("return sum(i * i")
    assert first.share > 0.5
    assert view.workers == count
    assert view.functions[0].line == line_of("SLEEPS") - 1


def test_a_stream_and_workers_that_persist_are_sampled_too(tmp_path: Path) -> None:
    view = viewed(tmp_path, slow_dataset.SlowStream(), epochs=2, persistent_workers=True)
    assert view.lines[0].line == line_of("BURNS")
    assert len(list(tmp_path.glob("python-*.jsonl"))) == 2


def test_seeded_augmentation_draws_the_same(tmp_path: Path) -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(5)
        loader = DataLoader(slow_dataset.Drawn(), batch_size=4, shuffle=True, num_workers=2)
        return [*loader, *loader, torch.rand(3)]

    alone = drawn()
    stack_sampling.install(tmp_path)
    beside = drawn()
    assert list(tmp_path.glob("python-*.jsonl"))
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_a_worker_loop_that_the_program_put_in_place_stays_and_ours_stops_sampling(
    tmp_path: Path,
) -> None:
    stack_sampling.install(tmp_path)
    ours = torchs._worker_loop

    def theirs(*args: object) -> object:
        return ours(*args)

    torchs._worker_loop = theirs
    try:
        stack_sampling.uninstall()
        assert torchs._worker_loop is theirs
        assert list(DataLoader(range(4), num_workers=1)) == [0, 1, 2, 3]  # type: ignore[arg-type]
        assert not list(tmp_path.glob("python-*.jsonl"))
    finally:
        torchs._worker_loop = ORIGINAL


def test_a_worker_that_cannot_import_us_gets_torchs_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_sampling.install(tmp_path)
    monkeypatch.setattr(stack_sampling, "_worker_can_import_us", lambda: False)
    sent = pickle.dumps(torchs._worker_loop)
    assert b"ridgeline" not in sent
    stack_sampling.uninstall()
    assert pickle.loads(sent) is ORIGINAL


def test_a_folder_full_of_files_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampling, "MAX_FILES", 1)
    (tmp_path / "python-1.jsonl").touch()
    view = viewed(tmp_path, slow_dataset.SlowStream())
    assert view.worker_samples == 0


def test_a_dataset_that_fails_shows_its_own_traceback(tmp_path: Path) -> None:
    stack_sampling.install(tmp_path)
    loader = DataLoader([1, None], batch_size=2, num_workers=1)  # type: ignore[arg-type,list-item]
    with pytest.raises(RuntimeError, match="infer dtype") as raised:
        next(iter(loader))
    assert str(Path(ridgeline.__file__).parent) not in str(raised.value)


def test_a_killed_worker_leaves_what_it_had_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampling, "FLUSH_INTERVAL_NS", 40_000_000)
    stack_sampling.install(tmp_path)
    loader = DataLoader(slow_dataset.Slow(), num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    (file,) = tmp_path.glob("python-*.jsonl")
    os.kill(int(file.stem.partition("-")[2]), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        list(batches)
    found = python_view(RunDirectory(tmp_path).sampled()).lines
    # Not first: in eight batches what torch imports to begin with may take as long.
    assert line_of("BURNS") in [line.line for line in found if line.file == slow_dataset.__file__]
