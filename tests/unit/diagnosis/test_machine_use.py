"""The telemetry of a span in a few numbers."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis import machine_use as counter
from ridgeline.diagnosis.machine_use import COUNTER, PACKAGE, POWER, energy, telemetered
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


def _telemetry(
    *gpus: int,
    watts: float = 500.0,
    counter_j: float | None = 1e6,
    power: bool = True,
    seconds: float = 10.0,
    package_w: float | None = None,
    **facts: bool | int | None,
) -> list[Telemetry]:
    """Ten samples a second of GPUs that draw `watts` each; their counters start at `counter_j`."""
    made = []
    for tenth in range(int(seconds * 10) + 1):
        at = tenth / 10
        devices = tuple(
            DeviceSample(
                index=index,
                power_w=watts if power else None,
                energy_j=counter_j + watts * at if counter_j is not None else None,
                **{"utilisation_percent": 90, **facts},  # type: ignore[arg-type]
            )
            for index in gpus
        )
        package = 40 + package_w * at if package_w is not None else None
        made.append(
            Telemetry(at_ns=tenth * SECOND // 10, devices=devices, package_energy_j=package)
        )
    return made


def test_the_counters_difference_is_shared_out_over_steps_and_samples() -> None:
    found = energy(_telemetry(0), 2 * SECOND, 6 * SECOND, steps=40, samples=1280)
    assert found.joules_per_step == pytest.approx(500 * 4 / 40)
    assert found.joules_per_sample == pytest.approx(500 * 4 / 1280)
    assert found.mean_power_w == pytest.approx(500)
    assert found.source == COUNTER
    assert found.cost_per_million_samples is found.carbon_g_per_million_samples is None


def test_a_span_between_two_samples_is_interpolated() -> None:
    found = energy(_telemetry(0), 2_030_000_000, 2_070_000_000, steps=1, samples=0)
    assert found.joules_per_step == pytest.approx(500 * 0.04)
    assert found.joules_per_sample is None


def test_several_gpus_are_added() -> None:
    found = energy(_telemetry(0, 1, 5), SECOND, 3 * SECOND, steps=10, samples=10)
    assert found.mean_power_w == pytest.approx(1500)


def test_two_ranks_that_saw_the_same_gpus_count_them_once() -> None:
    both = [*_telemetry(0, 1), *_telemetry(0, 1)]
    assert energy(both, SECOND, 3 * SECOND, 10, 10).mean_power_w == pytest.approx(1000)


def test_without_a_counter_power_is_summed() -> None:
    found = energy(_telemetry(0, counter_j=None), 1_050_000_000, 3_050_000_000, 10, 10)
    assert (found.source, found.mean_power_w) == (POWER, pytest.approx(500))


def test_power_that_changes_is_summed_by_trapezes() -> None:
    points = [(0, 100.0), (SECOND, 300.0), (2 * SECOND, 300.0)]
    assert counter.amount(points, 0, 2 * SECOND) == pytest.approx(200 + 300)
    assert counter.amount(points, SECOND // 2, SECOND) == pytest.approx((200 + 300) / 2 * 0.5)


def test_a_counter_that_stands_still_or_was_reset_is_not_believed() -> None:
    still = [
        Telemetry(
            at_ns=s.at_ns,
            devices=(DeviceSample(index=0, power_w=500.0, energy_j=7.0, utilisation_percent=9),),
        )
        for s in _telemetry(0)
    ]
    assert energy(still, SECOND, 3 * SECOND, 10, 10).source == POWER
    reset = [(0, 900.0), (SECOND, 950.0), (2 * SECOND, 20.0)]
    assert counter.growth(reset, 0, 2 * SECOND) is None


def test_the_processors_counter_is_the_last_resort() -> None:
    found = energy(_telemetry(package_w=65.0), SECOND, 3 * SECOND, 10, 20)
    assert (found.source, found.mean_power_w) == (PACKAGE, pytest.approx(65))
    assert found.joules_per_sample == pytest.approx(65 * 2 / 20)


def test_a_gpu_program_is_not_given_the_processors_share_alone() -> None:
    assert energy(_telemetry(package_w=65.0), SECOND, 3 * SECOND, 10, 20, on_gpu=True).source == ""
    silent = _telemetry(0, counter_j=None, power=False, package_w=65.0)
    assert energy(silent, SECOND, 3 * SECOND, 10, 20).joules_per_step is None


def test_an_idle_gpu_is_not_a_cpu_programs_energy() -> None:
    idle = _telemetry(0, watts=70.0, package_w=65.0, utilisation_percent=0)
    assert energy(idle, SECOND, 3 * SECOND, 10, 20).source == PACKAGE
    busy = _telemetry(0, package_w=65.0)  # somebody else's work
    assert energy(busy, SECOND, 3 * SECOND, 10, 20, on_gpu=False).source == PACKAGE


def test_idle_gpus_of_others_are_left_out() -> None:
    mixed = [
        Telemetry(at_ns=a.at_ns, devices=a.devices + b.devices)
        for a, b in zip(
            _telemetry(0), _telemetry(1, watts=70.0, utilisation_percent=0), strict=True
        )
    ]
    assert energy(mixed, SECOND, 3 * SECOND, 10, 20).mean_power_w == pytest.approx(500)


def test_an_idle_gpu_the_program_was_seen_on_is_counted() -> None:
    idle = _telemetry(0, 1, watts=70.0, utilisation_percent=0, ours=True)
    assert energy(idle, SECOND, 3 * SECOND, 10, 20).mean_power_w == pytest.approx(140)


def test_price_and_carbon_of_a_million_samples() -> None:
    found = energy(
        _telemetry(0), 0, 10 * SECOND, 100, 2000, price_per_hour=3.6, carbon_g_per_kwh=400,
        samples_s=250.0,
    )  # fmt: skip
    # The program's 250 samples a second, not the span's 200, at 0.001 a second; 2.5 J a sample,
    # 3.6 MJ a kWh.
    assert found.cost_per_million_samples == pytest.approx(4000 * 0.001)
    assert found.carbon_g_per_million_samples == pytest.approx(2.5e6 / 3.6e6 * 400)


def test_a_price_needs_no_counter() -> None:
    found = energy([], 0, 0, 0, 0, price_per_hour=3.6, carbon_g_per_kwh=400, samples_s=200.0)
    assert found.cost_per_million_samples == pytest.approx(5.0)
    assert found.joules_per_step is found.carbon_g_per_million_samples is None


def test_too_little_telemetry_is_no_figure() -> None:
    short = _telemetry(0, seconds=1)
    assert energy(short, 0, 10 * SECOND, 10, 10).joules_per_step is None
    assert energy(short, 60 * SECOND, 70 * SECOND, 10, 10).joules_per_step is None
    assert energy(short[:1], 0, SECOND, 10, 10).joules_per_step is None


def test_telemetry_that_ends_early_is_carried_on() -> None:
    found = energy(_telemetry(0, seconds=8), 0, 10 * SECOND, 10, 10)
    assert found.mean_power_w == pytest.approx(500)


def test_no_steps_and_no_time_give_no_figure() -> None:
    assert energy(_telemetry(0), 0, SECOND, 0, 0).joules_per_step is None
    assert energy(_telemetry(0), SECOND, SECOND, 5, 5).joules_per_step is None
