"""Copies between host and device: direction, pinned or not, whose line, how much is exposed."""

from pathlib import Path

import pytest
from traces_made import Made

from ridgeline.records.sites import CopySite
from ridgeline.trace.analyses.copy_sites import copy_sites
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of


def found(trace: Trace) -> tuple[CopySite, ...]:
    return copy_sites(trace, Links(trace), window_of(trace, "all"))


def with_copy(name: str, *, busy: bool = False) -> Made:
    """Two steps, each with a copy of 1 MB and 100 µs, half of it under a kernel where `busy`."""
    made = Made()
    for step in range(2):
        at, ids = 1000 * step, 10 * step
        made.span(f"ProfilerStep#{step}", at, 900).frame("train.py(3): step", at, 900)
        made.op("aten::to", at + 10, 150).op(
            "aten::copy_", at + 20, 130,
            **{"Input Dims": [[64, 3], [64, 3], []], "Input type": ["float", "float", "Scalar"]},
        )  # fmt: skip
        made.call("cudaMemcpyAsync", at + 30, 110, 1 + ids)
        made.kernel(name, at + 35, 100, 1 + ids, cat="gpu_memcpy", bytes=1_000_000)
        if busy:
            made.call("cudaLaunchKernel", at + 5, 2, 2 + ids)
            made.kernel("gemm", at + 7, 78, 2 + ids, stream=9)
        made.launch("relu", at + 200, at + 210, 50, 3 + ids)
    return made


def test_a_pageable_copy_is_told_with_its_line_bytes_and_time(tmp_path: Path) -> None:
    (site,) = found(with_copy("Memcpy HtoD (Pageable -> Device)").trace(tmp_path))
    assert (site.direction, site.pageable, site.op) == ("to device", True, "aten::to")
    assert site.place is not None
    assert (site.place.file, site.place.line) == ("train.py", 3)
    assert (site.copies, site.bytes, site.dims) == (1, 1_000_000, (64, 3))
    assert site.exposed_ns == site.device_ns == pytest.approx(100_000)
    assert site.host_ns == pytest.approx(110_000)


def test_a_copy_under_a_kernel_is_exposed_only_beyond_it(tmp_path: Path) -> None:
    (site,) = found(with_copy("Memcpy HtoD (Pinned -> Device)", busy=True).trace(tmp_path))
    assert site.pageable is False
    assert site.exposed_ns == pytest.approx(50_000)


def test_a_copy_to_the_host_is_another_direction(tmp_path: Path) -> None:
    (site,) = found(with_copy("Memcpy DtoH (Device -> Pageable)").trace(tmp_path))
    assert site.direction == "to host"


def test_copies_within_the_device_are_none(tmp_path: Path) -> None:
    assert not found(with_copy("Memcpy DtoD (Device -> Device)").trace(tmp_path))
