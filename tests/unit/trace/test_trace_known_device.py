"""Devices as traces name them find their datasheet; a doubtful one finds none."""

import subprocess
import sys

import pytest

from ridgeline.trace.ceilings import known_device
from ridgeline.trace.trace import DeviceProperties


def _properties(name: str, cores: int, gib: float, warp: int = 32) -> DeviceProperties:
    return DeviceProperties(id=1, name=name, cores=cores, memory_bytes=int(gib * 2**30), warp=warp)


@pytest.mark.parametrize(
    ("name", "cores", "gib", "float16", "gb_s"),
    [
        ("Tesla V100-SXM2-32GB", 80, 31.74, 125, 900),
        ("Tesla V100-DGXS-32GB", 80, 31.74, 125, 900),
        ("NVIDIA H100 80GB HBM3", 132, 79.18, 989.4, 3352),
        ("AMD Instinct MI300X", 304, 191.98, 1307.4, 5300),
        ("NVIDIA A100-PG509-200", 108, 39.39, 312, 1555),
        ("NVIDIA A100-SXM4-40GB", 108, 39.39, 312, 1555),
    ],
)
def test_names_in_traces_find_their_product(
    name: str, cores: int, gib: float, float16: float, gb_s: float
) -> None:
    device = known_device(_properties(name, cores, gib, 64 if "AMD" in name else 32))
    assert device is not None
    assert device.name == name
    assert device.index == 1
    matmul, copy = device.ceiling("matmul", "float16"), device.ceiling("copy")
    assert matmul is not None
    assert copy is not None
    assert matmul.value == pytest.approx(float16 * 1e12)
    assert copy.value == pytest.approx(gb_s * 1e9)
    assert copy.source == "datasheet"


def test_a_nameless_device_is_told_by_cores_and_memory_where_one_product_fits() -> None:
    device = known_device(_properties("", 304, 191.98, 64))
    assert device is not None
    assert device.name == "MI300X"
    assert "multiprocessors and memory" in device.ceilings[0].note


@pytest.mark.parametrize(
    ("name", "cores", "gib"),
    [
        ("", 80, 31.74),  # three V100 products
        ("", 108, 79.2),  # PCIe or SXM
        ("", 0, 0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 9.8),
        ("NVIDIA A100-SXM4-40GB", 14, 39.39),  # a slice under the whole one's name
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 16),
        ("Imaginary 9000", 132, 79.18),  # another product's numbers are not enough with a name
    ],
)
def test_doubtful_devices_have_no_datasheet(name: str, cores: int, gib: float) -> None:
    assert known_device(_properties(name, cores, gib)) is None


def test_the_datasheet_comes_without_torch() -> None:
    code = (
        "import sys, ridgeline.trace.ceilings, ridgeline.trace.analyses.roofline;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
