"""Joules from counters, from power, from the processor; by hand in each case."""

import pytest

from ridgeline.diagnosis import counter
from ridgeline.diagnosis.energy import COUNTER, PACKAGE, POWER, energy
from ridgeline.records.run import DeviceSample, Telemetry

SECOND = 1_000_000_000


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
