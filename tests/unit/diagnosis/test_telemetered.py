"""The telemetry of a span in a few numbers."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.telemetered import telemetered
from ridgeline.records.run import DeviceSample, ProcessSample, Telemetry
from ridgeline.records.run_summary import Telemetered

SECOND = 1_000_000_000


def _device(index: int = 0, **facts: object) -> DeviceSample:
    usual: dict[str, object] = {
        "utilisation_percent": 80,
        "sm_mhz": 1700,
        "sm_max_mhz": 1980,
        "power_w": 600.0,
        "temperature_c": 55,
    }
    return DeviceSample(index=index, **{**usual, **facts})  # type: ignore[arg-type]


def _gpu(tenths: int, *devices: DeviceSample) -> list[Telemetry]:
    return [Telemetry(at_ns=t * SECOND // 10, devices=devices) for t in range(tenths)]


def test_no_telemetry_is_no_figure() -> None:
    assert telemetered([], 0, SECOND) == Telemetered()


def test_only_what_lies_in_the_span_counts() -> None:
    early = [Telemetry(at_ns=t, devices=(_device(power_w=90.0),)) for t in range(0, SECOND, SECOND)]
    later = [Telemetry(at_ns=SECOND + t * SECOND // 10, devices=(_device(),)) for t in range(11)]
    found = telemetered([*early, *later], SECOND, 2 * SECOND)
    assert (found.samples, found.power_w) == (11, 600.0)


def test_a_span_too_short_for_a_sample_takes_the_nearest() -> None:
    found = telemetered(_gpu(20, _device()), 1_020_000_000, 1_060_000_000)
    assert (found.samples, found.gpu_utilisation) == (1, 0.8)
    assert telemetered(_gpu(20, _device()), 60 * SECOND, 61 * SECOND).samples == 0


def test_gpus_are_averaged_and_their_power_added() -> None:
    found = telemetered(
        _gpu(20, _device(0), _device(1, utilisation_percent=40, sm_mhz=1500, temperature_c=71)),
        0,
        2 * SECOND,
    )
    assert found.gpu_utilisation == pytest.approx(0.6)
    assert (found.sm_mhz, found.sm_max_mhz) == (1600, 1980)
    assert (found.power_w, found.temperature_c) == (1200.0, 71)


def test_idle_gpus_of_others_do_not_thin_out_the_programs() -> None:
    found = telemetered(_gpu(9, _device(0), _device(1, utilisation_percent=0)), 0, SECOND)
    assert (found.gpu_utilisation, found.power_w) == (0.8, 600.0)


def test_a_starved_gpu_is_told_from_no_gpu() -> None:
    idle = _gpu(
        9,
        _device(0, utilisation_percent=0, memory_used_bytes=1),
        _device(1, utilisation_percent=0, memory_used_bytes=9, power_w=100.0),
    )
    assert telemetered(idle, 0, SECOND).gpu_utilisation is None
    found = telemetered(idle, 0, SECOND, on_gpu=True)
    assert (found.gpu_utilisation, found.power_w) == (0.0, 100.0)
    assert telemetered(_gpu(9, _device()), 0, SECOND, on_gpu=False).gpu_utilisation is None


def test_what_the_driver_does_not_say_stays_unknown() -> None:
    found = telemetered(_gpu(9, DeviceSample(index=0)), 0, SECOND)
    assert found.gpu_utilisation is found.power_w is found.sm_mhz is found.temperature_c is None


def test_a_reason_seen_once_in_many_looks_is_left_out() -> None:
    held = [("power cap",)] * 6 + [("thermal", "power cap")] * 3 + [()] * 10 + [("sync boost",)]
    samples = [
        Telemetry(at_ns=t * SECOND // 10, devices=(_device(throttle=reasons, others=t % 3),))
        for t, reasons in enumerate(held)
    ]
    found = telemetered(samples, 0, 2 * SECOND)
    assert found.throttle == ("power cap", "thermal")
    assert found.other_processes == 2


def _program(second: float, cpu_s: float, *workers: tuple[int, float]) -> Telemetry:
    others = tuple(ProcessSample(pid=pid, worker=True, cpu_s=used) for pid, used in workers)
    return Telemetry(
        at_ns=int(second * SECOND), processes=(ProcessSample(pid=7, cpu_s=cpu_s), *others)
    )


def test_cores_are_the_growth_of_cpu_time() -> None:
    samples = [
        _program(t / 10, 30 + 1.5 * t / 10, (8, 5 + 0.9 * t / 10), (9, 5 + 0.8 * t / 10))
        for t in range(50)
    ]
    found = telemetered(samples, SECOND, 3 * SECOND)
    assert found.program_cores == pytest.approx(1.5)
    assert found.worker_cores == pytest.approx(1.7)
    assert found.workers == 2


def test_a_process_that_does_nothing_is_not_a_worker() -> None:
    samples = [_program(t / 10, t / 10, (8, 0.02), (9, 0.5 * t / 10)) for t in range(30)]
    found = telemetered(samples, 0, 2 * SECOND)
    assert (found.workers, found.worker_cores) == (1, pytest.approx(0.5))


def test_workers_that_come_and_go_count_for_their_time() -> None:
    """Worker 8 ends after one second of two; 9 begins then: at each moment one core is used."""
    first = [_program(t / 10, 0.0, (8, 40 + t / 10)) for t in range(11)]
    second = [_program(t / 10, 0.0, (9, t / 10 - 1)) for t in range(11, 31)]
    found = telemetered([*first, *second], 0, 2 * SECOND)
    assert found.worker_cores == pytest.approx(1.0, abs=0.01)
    assert found.workers == 2


def test_workers_read_once_a_second_still_count() -> None:
    samples = [_program(t / 10, t / 10, *([(8, t / 10)] if t % 10 == 0 else [])) for t in range(60)]
    found = telemetered(samples, 1_500_000_000, 3_500_000_000)
    assert found.worker_cores == pytest.approx(1.0)


def test_a_program_without_workers_has_none() -> None:
    found = telemetered([_program(t / 10, t / 10) for t in range(30)], 0, 2 * SECOND)
    assert (found.workers, found.worker_cores) == (0, 0.0)


def _host(second: float, cpu_s: float, percent: float, *workers: tuple[int, float]) -> Telemetry:
    return replace(_program(second, cpu_s, *workers), host_cpu_percent=percent)


def test_what_the_host_used_beside_the_program_are_others() -> None:
    samples = [_host(t / 10, 0.2 * t / 10, 95.0, (8, 0.1 * t / 10)) for t in range(50)]
    found = telemetered(samples, SECOND, 3 * SECOND, cores=2)
    assert found.other_cores == pytest.approx(1.9 - 0.3)
    assert found.crowded
    assert telemetered(samples, SECOND, 3 * SECOND).other_cores is None


def test_a_program_alone_is_not_its_own_neighbour() -> None:
    """It kept both cores busy until 2.0 s and one since; the host's figure is a second old."""
    samples = [
        _host(t / 10, min(t, 20) / 5 + max(t - 20, 0) / 10, 100.0 if t < 30 else 50.0)
        for t in range(60)
    ]
    found = telemetered(samples, 2 * SECOND, 4 * SECOND, cores=2)
    assert found.other_cores == pytest.approx(0.0, abs=0.01)
    assert not found.crowded
