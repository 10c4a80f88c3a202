"""pin_memory, prefetch, persistent_workers: what needs no worker to be started."""

import pickle

import torch
from torch.utils.data import TensorDataset

from ridgeline.fixes.catalog import persistent_workers, pin_memory, prefetch
from ridgeline.fixes.catalog.persistent_workers import Stays
from ridgeline.fixes.fix import find_fix
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import LoaderSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, code, no_source, option

DATA = TensorDataset(torch.zeros(64, 2))


class Epochs(TensorDataset):
    def set_epoch(self, epoch: int) -> None: ...


def test_memory_is_pinned_only_for_a_gpu() -> None:
    for device, pinned in (("cuda", True), ("cpu", None)):
        program = Here(device)
        pin_memory.apply(program, {})
        assert program.makes(dataset=DATA).get("pin_memory") == pinned
        assert code(program.why_not) == ("" if pinned else Skip.NO_GPU)


def test_pinning_is_able_where_a_loader_does_not_pin() -> None:
    plain, pins = LoaderSeen(), LoaderSeen(pin_memory=True)
    assert code(pin_memory.reason_to_skip(Ground(loaders=(plain,)))) == Skip.NO_GPU
    assert pin_memory.reason_to_skip(Ground(device="cuda", loaders=(plain, pins))) is None
    assert (
        code(pin_memory.reason_to_skip(Ground(device="cuda", loaders=(pins,)))) == Skip.ALREADY_SET
    )


def test_the_bound_of_pinning_is_what_the_device_idles_and_copies() -> None:
    assert round(pin_memory.bound(Ground(device="cuda", busy=0.8, copy_share=0.3)), 6) == 2


def test_prefetching_needs_workers() -> None:
    program = Here()
    prefetch.apply(program, {"factor": "6"})
    assert "prefetch_factor" not in program.makes(dataset=DATA)
    assert code(program.why_not) == Skip.NO_WORKERS
    assert program.makes(dataset=DATA, num_workers=2)["prefetch_factor"] == 6
    assert program.makes(dataset=DATA, num_workers=2, prefetch_factor=8)["prefetch_factor"] == 8
    assert program.done == [option("DataLoader", "prefetch_factor", 6)]
    edits = find_fix("prefetch").source_edits(program.outcome()[0][0], no_source)
    done = patched("train.py", b"l = DataLoader(d, num_workers=2)\n", edits)
    assert "prefetch_factor=6" in done.text


def test_prefetching_is_able_where_the_queue_is_short() -> None:
    assert code(prefetch.reason_to_skip(Ground(loaders=(LoaderSeen(),)))) == Skip.NO_WORKERS
    assert prefetch.reason_to_skip(Ground(loaders=(LoaderSeen(workers=2),))) is None
    long = LoaderSeen(workers=2, prefetch_factor=8)
    assert code(prefetch.reason_to_skip(Ground(loaders=(long,)))) == Skip.ALREADY_SET


def test_staying_needs_workers_and_a_second_epoch() -> None:
    reason_to_skip = persistent_workers.reason_to_skip
    assert code(reason_to_skip(Ground(loaders=(LoaderSeen(epochs=3),)))) == Skip.NO_WORKERS
    assert (
        code(reason_to_skip(Ground(loaders=(LoaderSeen(workers=2, epochs=1),))))
        == Skip.WORKERS_START_ONCE
    )
    assert reason_to_skip(Ground(loaders=(LoaderSeen(workers=2, epochs=3),))) is None
    stays = LoaderSeen(workers=2, epochs=3, persistent_workers=True)
    assert code(reason_to_skip(Ground(loaders=(stays,)))) == Skip.ALREADY_SET


def test_our_true_is_true_and_reaches_workers_as_pythons_own() -> None:
    assert Stays(1)
    assert repr(Stays(1)) == "True"
    assert f"{Stays(1)}" == "True"
    assert pickle.loads(pickle.dumps(Stays(1))) is True
