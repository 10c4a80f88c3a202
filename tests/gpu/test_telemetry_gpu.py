"""NVML's numbers beside a matmul on a real GPU: sane, ours, and cheap enough for ten a second."""

import os
import time

import pytest
import torch

from ridgeline.diagnosis.machine_use import COUNTER, POWER, energy, telemetered
from ridgeline.machine.telemetry import Sampler
from ridgeline.records.run import Telemetry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def samples() -> list[Telemetry]:
    """Three seconds of large matmuls, looked at ten times a second from the same process."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    sampler = Sampler(os.getpid())
    found: list[Telemetry] = []
    spent = 0.0
    end = time.monotonic() + 3
    due = 0.0
    while time.monotonic() < end:
        for _ in range(20):
            a @ a
        if time.monotonic() >= due:
            due = time.monotonic() + 0.1
            before = time.thread_time()
            began = time.perf_counter()
            found.append(sampler.sample(time.monotonic_ns()))
            spent += time.thread_time() - before
            print(f"{1e3 * (time.perf_counter() - began):.2f} ms", end=" ")
        torch.cuda.synchronize()
    sampler.close()
    print(f"\n{1e3 * spent / len(found):.2f} ms CPU a look", found[0], found[-1], sep="\n")
    return found


def test_the_device_at_work_is_seen(samples: list[Telemetry]) -> None:
    last = samples[-1].devices
    device = max(last, key=lambda d: d.utilisation_percent or 0)
    assert (device.utilisation_percent or 0) > 50
    assert (device.memory_used_bytes or 0) > 8192 * 8192 * 2
    assert device.sm_mhz is not None
    assert device.sm_max_mhz is not None
    assert 300 < device.sm_mhz <= device.sm_max_mhz
    assert 15 < (device.temperature_c or 0) < 100
    assert (device.power_w or 0) > 50
    assert (device.power_limit_w or 0) > 50


def test_the_energy_counter_grows_as_the_power_says(samples: list[Telemetry]) -> None:
    start, end = samples[5].at_ns, samples[-1].at_ns
    found = energy(samples, start, end, steps=10, samples=100, on_gpu=True)
    short = telemetered(samples, start, end, on_gpu=True)
    print(found, short, sep="\n")
    assert found.source in (COUNTER, POWER)
    assert found.mean_power_w is not None
    assert short.power_w is not None
    # Power is itself an average over up to a second, and rises while we look.
    assert found.mean_power_w == pytest.approx(short.power_w, rel=0.35)
    assert (short.gpu_utilisation or 0) > 0.5


def test_one_look_is_cheap(samples: list[Telemetry]) -> None:
    """Looks do not crowd each other out: ten a second came through."""
    assert len(samples) >= 15
