"""threads, cudnn_autotune, expandable_segments, affinity."""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from ridgeline.fixes.catalog import affinity, cudnn_autotune, expandable_segments, threads
from ridgeline.fixes.fix import find_fix
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Flags, LoaderSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_threads_are_set_at_once_and_said_when_a_step_has_ended(one_thread: None) -> None:
    program = Here()
    threads.apply(program, {"threads": "2"})
    assert torch.get_num_threads() == 2
    assert program.done == []
    program.step_ended()
    assert program.done == [because(Done.SETTING, statement="torch.set_num_threads(2)")]
    edits = find_fix("threads").source_edits(program.outcome()[0][0], no_source)
    done = patched("train.py", b"import torch.nn as nn\n\nx = 1\n", edits)
    assert "import torch\n" in done.text
    assert "torch.set_num_threads(2)" in done.text


def test_a_program_that_sets_its_threads_keeps_them(one_thread: None) -> None:
    program = Here()
    threads.apply(program, {"threads": "2"})
    torch.set_num_threads(3)
    program.step_ended()
    assert program.done == []
    assert program.why_not == because(Skip.PROGRAM_SETS, setting="3 threads")


def test_threads_set_around_the_program_are_the_users(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = Here()
    threads.apply(program, {"threads": "2"})
    assert torch.get_num_threads() == 1
    assert program.why_not == because(Skip.SET_BY_ENVIRONMENT, variable="OMP_NUM_THREADS")
    ground = Ground(cores=4, variables={"OMP_NUM_THREADS": "1"})
    assert threads.reason_to_skip(ground) == program.why_not


def test_threads_worth_trying_are_those_that_are_not_there() -> None:
    ground = Ground(cores=8, flags=Flags(threads=8), loaders=(LoaderSeen(workers=2),))
    assert [one["threads"] for one in threads.choices(ground)] == ["6", "4", "1"]
    assert code(threads.reason_to_skip(Ground(cores=1, flags=Flags(threads=1)))) == Skip.ONE_CORE
    assert code(threads.reason_to_skip(Ground(device="cuda"))) == Skip.NO_CPU_WORK


def test_the_bound_of_threads_lets_only_work_be_divided() -> None:
    ground = Ground(cores=4, flags=Flags(threads=1), input_share=0.5)
    assert threads.bound(ground) == pytest.approx(1 / (0.5 + 0.5 / 4))


def test_autotuning_is_for_convolutions_of_fixed_shape_on_a_gpu() -> None:
    fits = Ground(device="cuda", convolutions=True)
    assert cudnn_autotune.reason_to_skip(fits) is None
    assert code(cudnn_autotune.reason_to_skip(Ground(convolutions=True))) == Skip.NO_GPU
    assert code(cudnn_autotune.reason_to_skip(Ground(device="cuda"))) == Skip.NO_CONVOLUTION
    changing = Ground(device="cuda", convolutions=True, shapes_change=True)
    assert code(cudnn_autotune.reason_to_skip(changing)) == Skip.SHAPES_CHANGE
    same = Ground(device="cuda", convolutions=True, flags=Flags(cudnn_deterministic=True))
    assert code(cudnn_autotune.reason_to_skip(same)) == Skip.DETERMINISTIC


@pytest.mark.parametrize(
    ("deterministic", "benchmark", "skip"),
    [(False, True, ""), (True, True, Skip.DETERMINISTIC), (False, False, Skip.PROGRAM_SETS)],
)
def test_autotuning_gives_way_to_what_the_program_sets(
    deterministic: bool, benchmark: bool, skip: str
) -> None:
    program = Here("cuda")
    flags = SimpleNamespace(benchmark=False, deterministic=False)
    program.torch = SimpleNamespace(
        backends=SimpleNamespace(cudnn=flags), are_deterministic_algorithms_enabled=lambda: False
    )
    cudnn_autotune.apply(program, {})
    assert flags.benchmark
    flags.deterministic, flags.benchmark = deterministic, benchmark
    program.step_ended()
    assert code(program.why_not) == skip
    assert bool(program.done) == (not skip)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, {OLD: "expandable_segments:True"}),
        ({OLD: "max_split_size_mb:64"}, {OLD: "max_split_size_mb:64,expandable_segments:True"}),
        ({NEW: "a:1,"}, {NEW: "a:1,expandable_segments:True"}),
        ({OLD: "expandable_segments:False"}, {}),
        ({OLD: "backend:cudaMallocAsync"}, {}),
    ],
)
def test_segments_are_added_to_what_is_set(
    environment: dict[str, str], wanted: dict[str, str]
) -> None:
    variables = find_fix("expandable-segments").variables
    assert variables is not None
    assert variables(environment, {}) == wanted
    reason_to_skip = expandable_segments.reason_to_skip(
        Ground(device="cuda", variables=environment)
    )
    assert bool(reason_to_skip) == (not wanted)


def test_segments_are_said_where_they_are_still_set_after_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(NEW, raising=False)
    monkeypatch.setenv(OLD, "expandable_segments:True")
    kept, lost = Here("cuda"), Here("cuda")
    expandable_segments.apply(kept, {})
    expandable_segments.apply(lost, {})
    kept.step_ended()
    monkeypatch.setenv(OLD, "max_split_size_mb:64")
    lost.step_ended()
    assert kept.done == [
        because(Done.VARIABLE, variable=OLD, value="expandable_segments:True")
    ]  # fmt: skip
    assert lost.done == []
    assert lost.why_not == because(Skip.PROGRAM_SETS, setting=OLD)
    done = patched("train.py", b'"""Doc."""\nimport torch\n', expandable_segments.source_edits(
        kept.outcome()[0][0], no_source))  # fmt: skip
    assert done.text.index("os.environ") < done.text.index("import torch")


def test_an_affinity_is_released_only_where_it_was_found() -> None:
    assert code(affinity.reason_to_skip(Ground())) == Skip.NO_AFFINITY_LIMIT
    assert affinity.reason_to_skip(Ground(findings=("affinity",))) is None
    bound = Ground(findings=("affinity",), variables={"OMP_PROC_BIND": "close"})
    assert code(affinity.reason_to_skip(bound)) == Skip.SET_BY_ENVIRONMENT
    whole = Ground(findings=("affinity",), processors=4, flags=Flags(allowed_cores=4))
    assert code(affinity.reason_to_skip(whole)) == Skip.EVERY_CORE_ALLOWED


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be narrowed")
def test_a_program_that_narrows_its_affinity_is_given_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs, before = os.sched_setaffinity, os.sched_getaffinity(0)
    monkeypatch.setattr(os, "cpu_count", lambda: max(before) + 1)
    monkeypatch.setattr(os, "sched_setaffinity", theirs)  # put back at the end
    program = Here()
    affinity.apply(program, {})
    try:
        os.sched_setaffinity(0, {min(before)})
        assert os.sched_getaffinity(0) == before
    finally:
        theirs(0, before)
    ((target,),) = [one.targets for one in program.outcome()[0]]
    assert target.done == because(Done.CORES_FREED, before=1, after=len(before))
    assert target.place is not None
    assert target.place.file == __file__


def test_an_affinity_set_by_a_line_is_released_after_it() -> None:
    freed = because(Done.CORES_FREED, before=1, after=2)
    fixed = applied("affinity", freed, places=["train.py:2"])
    done = patched(
        "train.py",
        b"import os\nos.sched_setaffinity(0, {0})\n",
        affinity.source_edits(fixed, no_source),
    )
    assert done.text.index("{0}") < done.text.index("range(os.cpu_count() or 1)")
