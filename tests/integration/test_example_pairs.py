"""The pairs in examples/pairs: both sides agree, a wrong answer would be noticed, SKIPs say why.

Nothing is timed here. What is compiled runs uncompiled, but for one case: the code around it is the
same, and compiling all would take minutes.
"""

import gc
import multiprocessing
import sys
import unittest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgeline.comparison.host import open_target
from ridgeline.comparison.pair_folder import Files, find_pairs, title_of
from ridgeline.equality.calls.examine import Accepts, by_rule, strength_of, thinned
from ridgeline.equality.calls.judge import Pair, Rule, judge
from ridgeline.equality.calls.outputs import Outputs, outputs_of, put_together
from ridgeline.errors import TargetError
from ridgeline.harness.usercode.workload import Workload

FOLDER = Path(__file__).parents[2] / "examples" / "pairs"
PAIRS = find_pairs(FOLDER)
TOPICS = (
    "dataloader", "autograd_standard", "bandwidth", "precision_mixed", "precision_fp8", "training",
    "arithmetic_intensity", "memory_profiling", "attention", "kv_cache", "matmul_epilogue",
    "regional_compile_cold", "regional_compile_warm",
)  # fmt: skip
MEMORY = {"training", "memory_profiling"}


@pytest.fixture(autouse=True)
def _uncompiled_on_one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    path, threads = list(sys.path), torch.get_num_threads()
    compiles = request.node.get_closest_marker("slow") is not None
    torch.set_num_threads(1)  # two threads that wait for each other on busy cores take far longer
    with torch.compiler.set_stance("default" if compiles else "force_eager"):
        yield
    torch.set_num_threads(threads)
    sys.path[:] = path


@pytest.fixture
def of_pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module that the pairs share."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


@pytest.mark.parametrize("files", PAIRS, ids=lambda files: files.name)
def test_both_sides_of_a_pair_agree_and_a_wrong_answer_would_be_noticed(files: Files) -> None:
    assert_pair_is_sound(files)


@pytest.mark.reliability  # `make programs`, and CI
@pytest.mark.compiles
def test_the_sliding_window_agrees_when_it_is_compiled_too() -> None:
    assert_pair_is_sound(next(files for files in PAIRS if files.name == "sliding_window"))


def test_every_topic_of_the_source_has_a_pair_and_every_file_a_title_and_a_partner() -> None:
    assert {topic for topic in TOPICS if not any(f.name == topic for f in PAIRS)} == set()
    for files in PAIRS:
        assert files.baseline is not None, files.name
        assert files.optimized is not None, files.name
        for path in (files.baseline, files.optimized):
            assert len(title_of(path)) > 20, path.name


def test_a_pair_that_trades_time_for_memory_says_so_on_both_sides() -> None:
    for files in PAIRS:
        for path in (files.baseline, files.optimized):
            assert path is not None
            aims = 'GOAL = "memory"' in path.read_text()
            assert aims == (files.name in MEMORY), path.name


def test_workers_of_the_loader_end_with_the_workload() -> None:
    before = set(multiprocessing.active_children())
    epoch = opened(FOLDER / "optimized_dataloader.py", seed=0)
    epoch()
    assert set(multiprocessing.active_children()) > before
    del epoch
    gc.collect()
    assert set(multiprocessing.active_children()) == before


def test_bf16_passes_its_own_check_where_it_is_emulated(of_pairs: Any) -> None:
    candidate, mixed = of_pairs("optimized_precision_mixed"), of_pairs("_precision_mixed")
    baseline = mixed.Step()(*mixed.data())
    autocast = mixed.Step(lambda: torch.autocast(mixed.DEVICE, torch.bfloat16))
    assert candidate.check(baseline, autocast(*mixed.data())) is None
    assert_strong(outputs_of(baseline), by_check(candidate.check, outputs_of(baseline)))


@pytest.mark.parametrize("by_row", [False, True])
def test_fp8_passes_its_own_check_where_it_is_emulated(of_pairs: Any, by_row: bool) -> None:
    fp8 = of_pairs("_precision_fp8")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(256, 1024, generator=draw).bfloat16()
    weight = torch.randn(256, 1024, generator=draw).bfloat16()
    (x8, scale_x), (weight8, scale_w) = (fp8.to_fp8(t, by_row=by_row) for t in (x, weight))
    exact = x.float() @ weight.float().t()
    rounded = (x8.float() @ weight8.float().t()) * scale_x * scale_w.t()
    baseline = exact.bfloat16()
    assert fp8.check(baseline, rounded.bfloat16()) is None
    assert fp8.check(baseline, (1.01 * rounded).bfloat16())
    assert fp8.check(baseline, torch.cat((0.9 * rounded[:1], rounded[1:])).bfloat16())
    assert_strong(outputs_of(baseline), by_check(fp8.check, outputs_of(baseline)))


def test_bf16_is_not_called_native_because_of_avx512_alone(
    of_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = of_pairs("_device")
    monkeypatch.setattr(device, "DEVICE", "cpu")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not device.bf16_is_native()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert device.bf16_is_native()


def assert_pair_is_sound(files: Files) -> None:
    assert files.baseline is not None
    assert files.optimized is not None
    try:
        # Another seed for each: a file draws the same numbers whoever runs it.
        candidate = opened(files.optimized, seed=1)
        baseline = opened(files.baseline, seed=2)
    except unittest.SkipTest as skip:
        pytest.skip(a_sentence(skip))
    assert candidate.declared.items == baseline.declared.items
    assert candidate.declared.goal == baseline.declared.goal
    first, second = outputs_of(baseline()), outputs_of(baseline())
    assert all(judge(pair, Rule()).ok for pair in paired(first, second))
    found = outputs_of(candidate())
    if candidate.declared.check is not None:
        check = candidate.declared.check
        assert not check(put_together(first), put_together(found))
        assert_strong(first, by_check(check, first))
        return
    pairs, rule = paired(first, found), Rule(rtol=candidate.declared.rtol)
    assert [judged.words for judged in (judge(pair, rule) for pair in pairs) if not judged.ok] == []
    assert_strong(first, by_rule([thinned(pair) for pair in pairs], rule))


def assert_strong(baseline: Outputs, accepts: Accepts) -> None:
    """Zeros, the answer 1 % too large and the right numbers in wrong places are all rejected."""
    pairs = [thinned(pair) for pair in paired(baseline, baseline)]
    judgement = strength_of(pairs, accepts, baseline.numbers, nan_share=0.0)
    assert judgement.reasons == ()


def by_check(check: Any, baseline: Outputs) -> Accepts:
    return lambda leaves: not check(put_together(baseline), put_together(baseline, tuple(leaves)))


def paired(baseline: Outputs, candidate: Outputs) -> list[Pair]:
    both = zip(baseline.leaves, candidate.leaves, strict=True)
    return [
        Pair(path=ours.path, role="output", baseline=ours, candidate=theirs)
        for ours, theirs in both
    ]


def opened(path: Path, seed: int) -> Workload:
    try:
        return open_target(f"{path}:workload", seed)
    except TargetError as error:
        if isinstance(error.__cause__, unittest.SkipTest):
            raise error.__cause__ from None
        raise


def a_sentence(skip: unittest.SkipTest) -> str:
    words = str(skip)
    assert len(words) > 20, words
    assert " " in words
    assert "\n" not in words
    return words
