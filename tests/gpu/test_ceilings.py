"""Ceilings on a real GPU; on an H200 they must reach 95 % of careful runs by hand."""

import time
from pathlib import Path

import pytest
import torch

from ridgeline import machine
from ridgeline.machine import ceiling_cache, identity, nvml
from ridgeline.records.machine import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# FLOP/s by hand on an H200, random data (bf16 at 8192: 769 to 798); bytes/s for copy.
BY_HAND = {"bfloat16": 784e12, "tf32": 356e12, "float32": 51e12, "float8": 1417e12}
COPY_BY_HAND = 4.26e12


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Device, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(ceiling_cache, "_in_process", {})
        start = time.perf_counter()
        device = machine.measure("cuda", on_progress=print)
        took = time.perf_counter() - start
        print(f"took {took:.1f} s", *device.ceilings, sep="\n")
        print(*machine.stored_conditions("cuda"), *machine.missing_dtypes("cuda"), sep="\n")
    return device, took


def _only_on_h200(device: Device) -> None:
    if device.name != "NVIDIA H200":
        pytest.skip(f"figures are an H200's, this is {device.name}")


@pytest.mark.parametrize("dtype", BY_HAND)
def test_products_reach_what_careful_hands_reached(
    measured: tuple[Device, float], dtype: str
) -> None:
    _only_on_h200(measured[0])
    found = measured[0].ceiling("matmul", dtype)
    assert found is not None
    assert found.source == "measured"
    assert found.value >= 0.95 * BY_HAND[dtype]


def test_copy_reaches_what_careful_hands_reached(measured: tuple[Device, float]) -> None:
    _only_on_h200(measured[0])
    found = measured[0].ceiling("copy")
    assert found is not None
    assert found.value >= 0.95 * COPY_BY_HAND


def test_all_of_it_takes_under_thirty_seconds(measured: tuple[Device, float]) -> None:
    _only_on_h200(measured[0])
    assert measured[1] < 30


def test_no_measured_product_beats_the_datasheet_of_an_h200(
    measured: tuple[Device, float],
) -> None:
    """A rate above the chip's peak would mean that the clock, not the chip, was measured."""
    _only_on_h200(measured[0])
    promised = {c.dtype: c.value for c in measured[0].ceilings if c.source == "datasheet"}
    for ceiling in measured[0].ceilings:
        if ceiling.quantity in ("matmul", "copy") and ceiling.source == "measured":
            assert ceiling.value <= 1.02 * promised[ceiling.dtype]


def test_every_ceiling_is_positive_and_tf32_is_left_as_it_was(
    measured: tuple[Device, float],
) -> None:
    assert all(ceiling.value > 0 for ceiling in measured[0].ceilings)
    launch = measured[0].ceiling("launch")
    assert launch is not None
    assert launch.value < 1e-3
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_the_memory_is_given_back(measured: tuple[Device, float]) -> None:
    # cuBLAS keeps its workspace, tens of MiB, for as long as the process lives.
    assert torch.cuda.memory_allocated() < 256 << 20
    assert torch.cuda.memory_reserved() < 1 << 30


def test_nvml_finds_the_same_card_where_there_is_nvml() -> None:
    device = torch.device("cuda", 0)
    with nvml.session() as library:
        if library is None or torch.version.hip is not None:
            pytest.skip("no NVML here")
        handle = nvml.find(library, identity.address(device))
        assert handle is not None
        assert library.nvmlDeviceGetName(handle) == torch.cuda.get_device_name(device)


def test_the_cache_of_a_gpu_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    device = machine.ceilings("cuda", ["float32"])
    monkeypatch.setattr(ceiling_cache, "_in_process", {})
    assert machine.cached("cuda") == device
