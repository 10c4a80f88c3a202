from pathlib import Path

import msgspec
import pytest

from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rules.shared_machine import throttled_clocks as look
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.run import DeviceSample
from tests.unit.diagnosis import made_up_run_directory as made
from tests.unit.diagnosis.rules.made_up_machine import case, looks, only


def gpu(mhz: int, *throttle: str, used: int = 95) -> DeviceSample:
    return DeviceSample(
        index=0, utilisation_percent=used, sm_mhz=mhz, sm_max_mhz=1980, power_w=690.0,
        power_limit_w=700.0, temperature_c=88, throttle=throttle, ours=True,
    )  # fmt: skip


def shares(compute: float) -> Shares:
    rest = dict.fromkeys(("input", "transfer", "overhead", "communication"), 0.0)
    return Shares(of={**rest, "compute": compute, "memory": 0.9 - compute})


def test_a_hot_gpu_loses_its_clock() -> None:
    found = only(look(case(looks(gpu(1485, "thermal")), gpu=True)))
    assert "1485 of 1980 MHz" in found.claim
    assert "thermal" in found.claim
    assert found.share_pct == pytest.approx(22.5, abs=0.1)
    assert found.gain_bound >= 1 / (1 - 0.22)
    assert found.confidence == "medium"
    assert any("88 °C" in one.text for one in found.evidence)


def test_locked_clocks_are_told_with_the_command_that_frees_them() -> None:
    found = only(look(case(looks(gpu(1200, "clocks set by hand")), gpu=True)))
    assert "-rgc" in found.change


def test_a_power_limit_at_full_arithmetic_is_how_a_gpu_runs() -> None:
    held = looks(gpu(1600, "power cap"))
    assert not [*look(case(held, gpu=True, busy=0.6, shares=shares(0.5)))]
    assert not [*look(case(held, gpu=True, busy=0.95, shares=shares(0.1)))]


def test_a_power_limit_below_other_work_is_told_with_doubt() -> None:
    found = only(look(case(looks(gpu(1300, "power cap")), gpu=True, busy=0.6, shares=shares(0.1))))
    assert found.confidence == "low"


@pytest.mark.parametrize(
    "device",
    [
        gpu(1980, "thermal"),  # a reason, and nothing lost
        gpu(1400),  # low, and no reason: the driver chose it
        gpu(345, "thermal", used=5),  # an idle GPU
        gpu(1900, "power cap"),
    ],
)
def test_silent_where_nothing_is_lost(device: DeviceSample) -> None:
    assert not [*look(case(looks(device), gpu=True))]


def test_silent_without_clocks() -> None:
    unknown = DeviceSample(index=0, utilisation_percent=95, throttle=("thermal",), ours=True)
    assert not [*look(case(looks(unknown), gpu=True))]


def test_a_run_on_a_hot_gpu_has_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the telemetry file that the watcher writes to the findings of the run."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    hot = tuple(
        msgspec.structs.replace(sample, devices=(gpu(1485, "thermal"),))
        for sample in made.telemetry()
    )
    run = made.directory(
        tmp_path, run=made.run_file(), captured=made.capture(), stepped=made.steps(), watched=hot
    )
    made.trace(run)
    _, concluded = concluded_case(run)
    assert concluded is not None
    found = {finding.rule: finding for finding in findings(concluded, Attempts()).findings}
    assert found["throttled-clocks"].share_pct > 2
