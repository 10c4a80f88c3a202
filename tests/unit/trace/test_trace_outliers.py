"""One damaged digit does not move a headline unnoticed: its event is set aside and named, or the
headline is doubtful."""

from pathlib import Path
from typing import Any

import pytest
from traces_made import Made, steady

from ridgeline.records.trace import TraceStudy
from ridgeline.report.views.trace import headline
from ridgeline.trace.study import study
from ridgeline.trace.validation import OTHER_DEVICE, TOO_EARLY, TOO_LATE, WRONG_TOTAL


def studied(made: Made, folder: Path) -> TraceStudy:
    return study([made.write(folder)], cache=False)[0]


def kernels(made: Made) -> list[dict[str, Any]]:
    return [event for event in made.events if event["cat"] == "kernel"]


@pytest.mark.parametrize(
    ("field", "change", "reason"),
    [
        ("ts", 2e6, TOO_LATE),
        ("ts", 2e3, TOO_LATE),
        ("ts", -2e3, TOO_EARLY),
        ("ts", -50e6, TOO_EARLY),
        ("device", 1, OTHER_DEVICE),
        ("device", None, OTHER_DEVICE),
    ],
)
def test_an_operation_that_contradicts_the_trace_is_set_aside_and_named(
    tmp_path: Path, field: str, change: float | None, reason: str
) -> None:
    made = steady()
    whole = studied(made, tmp_path)
    damaged = kernels(made)[-1 if change and change > 0 else 0]
    home = damaged if field == "ts" else damaged["args"]
    if change is None:
        del home[field]
    else:
        home[field] += change
    found = studied(made, tmp_path)
    assert [d.device for d in found.devices] == [0]
    assert found.window.ns == pytest.approx(whole.window.ns, rel=0.01)
    assert any(c.id == "lost" and c.count == 1 and reason in c.claim for c in found.validation)


def test_work_that_waits_for_another_device_is_no_outlier(tmp_path: Path) -> None:
    made = steady()
    last = kernels(made)[-1]["ts"]
    for index in range(3):  # launched early, run when the first device is done with its part
        made.launch(
            "second", last - 5000 + index, last + 13 + 100 * index, 90, 900 + index, device=1
        )
    found = studied(made, tmp_path)
    assert found.devices[1].operations == 3


def test_many_operations_on_several_devices_of_one_process_all_stay(tmp_path: Path) -> None:
    made = steady()
    for index, kernel in enumerate(kernels(made)):
        kernel["args"]["device"] = index % 4
    found = studied(made, tmp_path)
    assert [d.operations for d in found.devices] == [75, 75, 75, 75]
    assert found.trust.confidence == "good"


@pytest.mark.parametrize("launched", [True, False])
def test_a_window_that_rests_on_one_event_is_doubtful(tmp_path: Path, launched: bool) -> None:
    """A last kernel that runs on alone for long after everything else was recorded."""
    made = steady()
    damaged = kernels(made)[-1]
    if launched:
        damaged["name"], damaged["dur"] = "only one of its name", 9e6
    else:
        damaged["args"]["correlation"], damaged["ts"] = 0, damaged["ts"] + 9e6
    found = studied(made, tmp_path)
    assert found.trust.confidence == "doubtful"
    assert "stretched" in [c.id for c in found.validation]


def test_a_duration_far_out_of_line_makes_the_headline_doubtful(tmp_path: Path) -> None:
    made = steady()
    made.events = [event for event in made.events if event["cat"] != "kernel"]
    ops = [event for event in made.events if event["name"] == "aten::op2"]
    assert studied(made, tmp_path).trust.confidence == "good"
    ops[7]["dur"] *= 1000
    found = studied(made, tmp_path)
    assert "out-of-line" in [c.id for c in found.validation]
    assert found.trust.confidence == "doubtful"
    assert headline(found).startswith("doubtful: ")


def test_a_device_with_next_to_no_work_makes_the_headline_doubtful(tmp_path: Path) -> None:
    made = steady()
    damaged = kernels(made)[150]
    damaged["pid"] = damaged["args"]["device"] = 3
    found = studied(made, tmp_path)
    assert "hardly-used" in [c.id for c in found.validation]
    assert found.trust.confidence == "doubtful"


@pytest.mark.parametrize("row", [1, 10, 39])
@pytest.mark.parametrize("total", [9_000_000, -1, 12])
def test_a_damaged_total_of_memory_is_not_the_peak(tmp_path: Path, row: int, total: int) -> None:
    made = steady()
    for index in range(40):
        size = 512 if index < 20 else -512
        made.allocation(kernels(made)[0]["ts"] + index, size, 4096 + 512 * min(index, 40 - index))
    whole = studied(made, tmp_path).memory[0]
    events = [event for event in made.events if event["name"] == "[memory]"]
    events[row]["args"]["Total Allocated"] = total
    found = studied(made, tmp_path)
    assert found.memory[0].peak_bytes == pytest.approx(whole.peak_bytes, abs=512)
    assert any(WRONG_TOTAL in check.claim for check in found.validation)


def test_totals_that_were_never_recorded_are_no_outliers(tmp_path: Path) -> None:
    made = steady()
    for index, size in enumerate((512, 512, -512, 256, 128)):
        made.allocation(kernels(made)[0]["ts"] + index, size, -1)
    found = studied(made, tmp_path)
    assert not any(check.id == "lost" for check in found.validation)
    assert found.memory[0].peak_bytes == 1024
