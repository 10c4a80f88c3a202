"""Measuring for real, with a tiny budget: figures are positive; how large they are is not asked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ridgeline import machine
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.machine import ceiling_cache, microbenchmarks, survey
from ridgeline.machine.surroundings import DisturbanceWatch
from ridgeline.records.facts import because
from ridgeline.records.machine import Disturbance

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(ceiling_cache, "_in_process", {})
    # Whether others use the machine while the tests run must not decide what they say.
    monkeypatch.setattr(DisturbanceWatch, "others", lambda _: ())
    monkeypatch.setattr(DisturbanceWatch, "busy_since", lambda *_: False)


def test_identify_measures_nothing_and_knows_the_cpu() -> None:
    found = machine.identify()
    cpu = found.devices[0]
    assert cpu.kind == "cpu"
    assert cpu.name
    assert cpu.cores >= 1
    assert cpu.memory_bytes > 0
    assert cpu.ceilings == ()
    assert type(found.torch) is str  # torch's own version class cannot be written as JSON


def test_a_measured_device_is_cached_and_the_program_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    said: list[str] = []
    assert machine.cached("cpu") is None
    device = machine.measure("cpu", ["float32"], on_progress=said.append, budget_s=0.3)
    assert torch.equal(torch.rand(3), expected)
    assert said
    for quantity, dtype in (("matmul", "float32"), ("copy", ""), ("triad", ""), ("launch", "")):
        found = device.ceiling(quantity, dtype)  # type: ignore[arg-type]
        assert found is not None
        assert found.value > 0
        assert found.source == "measured"
    assert machine.cached("cpu") == device


def test_ceilings_measures_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.measure("cpu", ["float32"], budget_s=0.3)
    asked: list[str] = []
    real = survey._product

    def watched(device: torch.device, dtype: str, *rest: object) -> object:
        asked.append(dtype)
        return real(device, dtype, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(survey, "_product", watched)
    device = machine.ceilings("cpu", ["float32", "float64"])
    assert asked == ["float64"]
    assert device.ceiling("matmul", "float32") is not None
    assert device.ceiling("matmul", "float64") is not None
    machine.ceilings("cpu", ["float32", "float64"])
    assert asked == ["float64"]


def test_ceilings_of_a_busy_machine_are_measured_again_when_it_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DisturbanceWatch, "others", lambda _: (because(Disturbance.POWERSAVE),))
    device = machine.measure("cpu", ["float32"], budget_s=0.3)
    assert all(ceiling.disturbed for ceiling in device.ceilings)
    assert machine.ceilings("cpu", ["float32"]) == device
    monkeypatch.setattr(DisturbanceWatch, "others", lambda _: ())
    again = machine.ceilings("cpu", ["float32"]).ceiling("matmul", "float32")
    assert again is not None
    assert not again.disturbed


def test_only_the_ceiling_measured_during_a_burst_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = iter([False, False, True, False])
    monkeypatch.setattr(DisturbanceWatch, "busy_since", lambda *_: next(spans))
    device = machine.measure("cpu", ["float32"], budget_s=0.3)
    states = {(c.quantity, c.dtype): c.state for c in device.ceilings}
    assert states == {
        ("copy", ""): "usable",
        ("triad", ""): "usable",
        ("launch", ""): "disturbed",
        ("matmul", "float32"): "usable",
    }


def test_an_exceeded_ceiling_is_remembered_and_measured_again_when_it_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.measure("cpu", ["float32"], budget_s=0.3)
    key = survey._key(torch.device("cpu"))
    ceiling_cache.mark_exceeded(key, "matmul", "float32")
    kept = machine.cached("cpu")
    assert kept is not None
    assert kept.ceiling("matmul", "float32") is None
    doubtful = kept.doubtful_ceiling("matmul", "float32")
    assert doubtful is not None
    assert doubtful.state == "exceeded"
    assert machine.ceilings("cpu", ["float32"]).ceiling("matmul", "float32") is not None


def test_a_dtype_that_cannot_be_computed_is_listed_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("no such kernel\nand a long story")

    monkeypatch.setattr(microbenchmarks, "fastest", broken)
    device = machine.ceilings("cpu", ["float8", "tf32"])
    assert device.ceiling("matmul", "float8") is None
    reasons = machine.missing_dtypes("cpu")
    assert "float8: torch._scaled_mm is not available on this CPU (no such kernel)" in reasons
    assert any(reason.startswith("tf32: ") for reason in reasons)


def test_an_unknown_dtype_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="bf17"):
        machine.ceilings("cpu", ["bf17"])


def test_a_name_that_is_no_device_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'gpu'") as caught:
        machine.resolve_device("gpu")
    assert caught.value.exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_cuda_cannot_be_measured() -> None:
    with pytest.raises(RidgelineError, match="'cuda:1' was asked for") as caught:
        machine.resolve_device("cuda:1")
    assert caught.value.exit_code == 4
    assert caught.value.hint
    assert machine.resolve_device(None) == torch.device("cpu")


def test_an_index_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert machine.resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="no device 'cuda:2'") as caught:
        machine.resolve_device("cuda:2")
    assert "cuda:0 to cuda:1" in caught.value.hint


def test_buffers_exceed_the_cache_and_respect_the_memory() -> None:
    assert microbenchmarks.buffer_sizes("cpu", 48 * MIB, 10_000 * MIB) == (96 * MIB,)
    assert microbenchmarks.buffer_sizes("cpu", 48 * MIB, 90 * MIB) == (30 * MIB,)
    assert microbenchmarks.buffer_sizes("cuda", 50 * MIB, 4000 * MIB) == (256 * MIB, 1024 * MIB)
    assert microbenchmarks.buffer_sizes("cuda", 50 * MIB, 0) == (MIB,)


def test_importing_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, ridgeline.machine, ridgeline.cli.hardware, ridgeline.report.views.hardware;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
