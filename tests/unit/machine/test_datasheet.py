"""Device names to datasheet rows: the right one, or none."""

import pytest

from ridgeline.machine import datasheet
from ridgeline.machine.datasheet import DTYPES, TABLE, match


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI250X", "MI250X"),
        ("AMD Instinct MI250X / MI250", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
    ],
)
def test_a_name_as_the_driver_reports_it_finds_its_product(name: str, product: str) -> None:
    row = match(name)
    assert row is not None
    assert row.product == product


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10G-24Q",
        "NVIDIA A100X",
        "NVIDIA L40",
        "NVIDIA T400",
        "NVIDIA GB200",
        "Tesla P100-PCIE-16GB",
        "AMD Instinct MI250",
        "AMD Instinct MI300A",
        "AMD Instinct MI308X",
        "AMD Radeon RX 7900 XTX",
    ],
)
def test_a_sibling_a_slice_or_an_unknown_device_has_no_datasheet(name: str) -> None:
    assert match(name) is None


def test_a_slice_with_the_same_name_is_recognised_by_its_multiprocessors() -> None:
    assert match("AMD Instinct MI300X", cores=304) is not None
    assert match("AMD Instinct MI300X", cores=38) is None  # one of eight, CPX mode
    assert match("AMD Instinct MI250X / MI250", cores=104) is None  # the smaller MI250


def test_the_h200_row_is_the_dense_datasheet() -> None:
    row = match("NVIDIA H200", cores=132)
    assert row is not None
    peaks = {c.dtype: c.value / 1e12 for c in row.ceilings() if c.quantity == "matmul"}
    assert peaks["bfloat16"] == pytest.approx(989, abs=1)
    assert peaks["float8"] == pytest.approx(1979)
    assert peaks["tf32"] == pytest.approx(494.7)
    assert peaks["float32"] == pytest.approx(67)
    assert peaks["float64"] == pytest.approx(67)
    assert [c.value for c in row.ceilings() if c.quantity == "copy"] == [4.8e12]


def test_the_memory_decides_between_the_a100s() -> None:
    speeds = {row.product: row.gb_s for row in TABLE if row.product.startswith("A100")}
    assert speeds == {"A100 40GB": 1555.0, "A100 80GB PCIe": 1935.0, "A100 80GB SXM": 2039.0}


def test_an_mi250x_says_that_it_is_half_a_package() -> None:
    row = match("AMD Instinct MI250X", cores=110)
    assert row is not None
    assert all("one GCD of two" in c.note for c in row.ceilings())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.product)
def test_no_row_lists_a_sparse_or_misplaced_figure(row: datasheet.Datasheet) -> None:
    """Dense rates obey the ratios of the hardware; a sparse figure would be twice too high."""
    assert row.float16 is not None
    assert row.float32 is not None
    assert row.bfloat16 in (None, row.float16)
    if row.tf32 is not None:
        assert row.tf32 == pytest.approx(row.float16 / 2, rel=0.02)
    if row.float8 is not None:
        assert row.float8 == pytest.approx(2 * row.float16, rel=0.02)
    assert {c.dtype for c in row.ceilings()} <= {*DTYPES, ""}
    assert 300 <= row.gb_s <= 8000
