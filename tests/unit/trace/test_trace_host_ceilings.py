"""The CPU's kept ceilings, found without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.machine import ceiling_cache, processor
from ridgeline.machine.ceiling_cache import Entry, Key
from ridgeline.records.machine import Ceiling
from ridgeline.trace.ceilings import host_device


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))


def keep(flops_s: float, threads: int, name: str = "", torch: str = "9.9") -> None:
    key = Key(
        kind="cpu", name=name or processor.name(), driver="", torch=torch, threads=threads,
        cores=processor.usable_cores(),
    )  # fmt: skip
    peak = Ceiling(
        quantity="matmul", value=flops_s, unit="FLOP/s", source="measured", dtype="float32"
    )
    ceiling_cache.store(Entry(key=key, ceilings=(peak,)))


def peak(threads: int = 0, torch: str = "") -> float | None:
    device = host_device(threads, torch)
    ceiling = device.ceiling("matmul", "float32") if device is not None else None
    return ceiling.value if ceiling is not None else None


def test_nothing_measured_is_nothing_known() -> None:
    keep(5e9, 1, name="another processor")
    assert host_device() is None


def test_the_thread_count_asked_for_wins_then_the_version_then_the_most() -> None:
    keep(1e9, 1, torch="9.8")
    keep(2e9, 2, torch="9.8")
    keep(3e9, 1, torch="9.9+cpu")
    assert peak() == 2e9
    assert peak(threads=1, torch="9.8") == 1e9
    assert peak(threads=1, torch="9.9") == 3e9
    assert peak(torch="9.9") == 3e9


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    keep(1e9, 1)
    (tmp_path / "ceilings" / "damaged.json").write_text("{")
    assert peak() == 1e9


def test_it_comes_without_torch() -> None:
    code = (
        "import sys; from ridgeline.trace.ceilings import host_device; host_device(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
