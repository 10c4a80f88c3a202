import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils.data import IterableDataset, Subset, TensorDataset, get_worker_info

from ridgeline.fixes import dataset
from ridgeline.fixes.catalog import loader_workers
from ridgeline.fixes.fix import find_fix
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import Flags, LoaderSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source, option

DATA = TensorDataset(torch.zeros(64, 2))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(64))


class Shared(IterableDataset[int]):
    def __iter__(self) -> Any:
        return self._mine()

    def _mine(self) -> Any:
        info = get_worker_info()
        return iter(range(info.id if info else 0, 64, info.num_workers if info else 1))


class Counted(IterableDataset[int]):
    """Goes on where it was."""

    at = 0

    def __iter__(self) -> Any:
        while self.at % 64 < 63:
            self.at += 1
            yield self.at


class Begun(IterableDataset[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        return self.source


class Holds:
    def __init__(self, held: Any) -> None:
        self.transforms = [held]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> int:
        assert self.transforms
        return at


class Made(Holds):
    """Uses it once, to make its samples."""

    def __init__(self, held: Any) -> None:
        super().__init__(None)
        self.rng = held
        self.samples = [held.random() for _ in range(4)]


def apply(workers: int = 4, **given: Any) -> tuple[Here, Any]:
    program = Here()
    loader_workers.apply(program, {"workers": str(workers)})
    return program, program.makes(**given)


def test_a_loader_without_workers_gets_them() -> None:
    program, given = apply(dataset=DATA, batch_size=8)
    assert given["num_workers"] == 4
    assert program.done == [option("DataLoader", "num_workers", 4)]


def test_the_number_is_written_on_the_loaders_line() -> None:
    program, _ = apply(dataset=DATA, batch_size=8)
    edits = find_fix("loader-workers").source_edits(program.outcome()[0][0], no_source)
    done = patched("train.py", b"loader = DataLoader(data, 8, num_workers=0)\n", edits)
    assert "DataLoader(data, 8, num_workers=4)" in done.text
    assert not done.refused


@pytest.mark.parametrize("stream", [Stream(), Shared()])
def test_a_stream_gets_one_worker_which_keeps_its_batches(stream: Any) -> None:
    assert apply(dataset=stream, batch_size=8)[1]["num_workers"] == 1
    program, given = apply(dataset=stream, batch_size=8, num_workers=1)
    assert given["num_workers"] == 1
    assert code(program.why_not) == Skip.STREAM_SHARED_BY_WORKERS


@pytest.mark.parametrize(
    ("stream", "place"),
    [
        (Counted(), "at"),
        (Begun(n for n in range(64)), "generator"),
        (Begun(iter([1])), "list_iter"),
    ],
)
def test_a_stream_that_goes_on_where_it_was_is_left(stream: Any, place: str) -> None:
    program, given = apply(dataset=stream, batch_size=8)
    assert "num_workers" not in given
    assert program.why_not is not None
    assert program.why_not.code == Skip.STREAM_KEEPS_POSITION
    assert str(program.why_not.facts["attribute"]).startswith(place)


def test_of_a_stream_one_worker_is_all_that_is_asked() -> None:
    def numbers(*streams: bool) -> list[str]:
        seen = tuple(LoaderSeen(stream=one) for one in streams)
        return [o["workers"] for o in loader_workers.choices(Ground(cores=8, loaders=seen))]

    assert numbers(True, True) == ["1"]
    assert numbers(True, False)[0] == "8"


def test_a_loader_of_one_batch_has_nothing_to_make_ahead() -> None:
    program, given = apply(dataset=DATA, batch_size=64)
    assert "num_workers" not in given
    assert code(program.why_not) == Skip.ONE_BATCH


@pytest.mark.parametrize("held", [torch.Generator(), random.Random(1)])
def test_a_random_generator_of_the_datasets_own_would_be_copied(held: Any) -> None:
    program, given = apply(dataset=Subset(Holds(held), [1, 2]))  # type: ignore[arg-type]
    assert "num_workers" not in given
    assert code(program.why_not) == Skip.OWN_GENERATOR


def test_a_generator_that_only_made_the_samples_is_no_obstacle() -> None:
    assert apply(dataset=Made(random.Random(1)))[1]["num_workers"] == 4


def test_an_open_file_would_be_shared_but_bytes_in_memory_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with open(tmp_path / "a", "rb") as file:
        assert apply(dataset=Holds(file))[0].why_not == because(Skip.OPEN_FILE, file_kind="file")
    assert apply(dataset=Holds(io.BytesIO(b"1")))[1]["num_workers"] == 4


def test_what_cannot_be_pickled_matters_only_where_workers_are_not_forked() -> None:
    def collate(batch: Any) -> Any:
        return batch

    assert apply(dataset=DATA, collate_fn=collate, multiprocessing_context="fork")[0].done
    program, _ = apply(dataset=DATA, collate_fn=collate, multiprocessing_context="spawn")
    assert program.why_not is not None
    assert program.why_not.code == Skip.NOT_PICKLABLE
    assert program.why_not.facts["argument"] == "collate_fn"


def test_asking_how_workers_start_does_not_fix_it() -> None:
    import multiprocessing

    before = multiprocessing.get_start_method(allow_none=True)
    assert dataset.start_method() in multiprocessing.get_all_start_methods()
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_able_needs_a_loader_and_room_for_workers() -> None:
    assert code(loader_workers.reason_to_skip(Ground())) == Skip.NO_LOADER
    assert loader_workers.reason_to_skip(Ground(cores=2, loaders=(LoaderSeen(workers=0),))) is None
    full = Ground(cores=2, loaders=(LoaderSeen(workers=4),))
    enough = because(Skip.ENOUGH_WORKERS, workers=4, cores=2)
    assert loader_workers.reason_to_skip(full) == enough


def test_the_bound_is_the_wait_for_input() -> None:
    assert loader_workers.bound(Ground(input_share=0.75)) == pytest.approx(4)


def test_choices_leave_out_what_is_there_and_are_divided_among_ranks() -> None:
    ground = Ground(cores=8, ranks=2, loaders=(LoaderSeen(workers=4),))
    assert [one["workers"] for one in loader_workers.choices(ground)] == ["8"]


def test_several_loaders_are_each_written() -> None:
    two = option("DataLoader", "num_workers", 2)
    both = applied("loader-workers", two, places=("a.py:3", "b.py:9"))
    assert [
        (e.file, e.line, e.value) for e in find_fix("loader-workers").source_edits(both, no_source)
    ] == [  # type: ignore[union-attr]
        ("a.py", 3, "2"),
        ("b.py", 9, "2"),
    ]


@pytest.mark.parametrize(
    ("share", "worked", "cores", "workers", "threads", "device", "wanted"),
    [
        (0.83, 1.0, 2, 2, 2, "cpu", "threads"),
        (0.83, 0.05, 2, 2, 2, "cpu", ""),  # it sleeps: workers that do so take no core
        (0.83, None, 2, 2, 2, "cpu", ""),
        (0.60, 1.0, 2, 2, 2, "cpu", ""),  # one thread might take twice as long, and then be slower
        (0.83, 1.0, 2, 1, 1, "cpu", ""),  # it has no more threads than the worker leaves
        (0.83, 1.0, 8, 2, 2, "cpu", ""),  # there are cores for all
        (0.83, 1.0, 8, 2, 8, "cpu", "threads"),  # six of eight threads cost little
        (0.83, 1.0, 8, 8, 8, "cpu", ""),  # one of eight may cost much
        (0.83, 1.0, 2, 2, 2, "cuda", ""),
    ],
)
def test_workers_that_calculate_are_given_cores_of_the_step_from_the_first(
    share: float, worked: float | None, cores: int, workers: int, threads: int, device: str,
    wanted: str,
) -> None:  # fmt: skip
    ground = Ground(
        device=device, cores=cores, input_share=share, flags=Flags(threads=threads),
        loaders=(LoaderSeen(batches=2), LoaderSeen(batches=60, worked=worked)),
    )  # fmt: skip
    assert loader_workers.brings(ground, {"workers": str(workers)}) == wanted


def test_of_a_loader_that_has_workers_it_is_not_known_whether_they_calculate() -> None:
    ground = Ground(cores=2, input_share=0.9, flags=Flags(threads=2))
    for has, wanted in ((0, "threads"), (1, "")):
        loaders = (LoaderSeen(workers=has, batches=60, worked=0.9),)
        asked = loader_workers.brings(replace(ground, loaders=loaders), {"workers": "2"})
        assert asked == wanted
