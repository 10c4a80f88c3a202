"""Two traces side by side: what got slower, what got faster, what is new and what is gone."""

from typing import Any

import pytest

from ridgeline import units
from ridgeline.records.facts import Check, Trust
from ridgeline.records.trace import (
    CategoryRow,
    DeviceTime,
    Difference,
    Idle,
    IdleCause,
    KernelRow,
    ModuleRow,
    OpRow,
    Phase,
    TraceComparison,
    TraceStudy,
    Window,
)
from ridgeline.trace.differences import _percent, _time, differences

MS = 1_000_000


def window(ms: float, steps: int = 0, note: str = "") -> Window:
    return Window(start_ns=0, end_ns=int(ms * MS), basis="made", steps=steps, note=note)


def kernel(name: str, ms: float, count: int = 1) -> KernelRow:
    return KernelRow(
        name=name, category="matmul", count=count, total_ns=int(ms * MS), share=0.5,
        mean_ns=1.0, least_ns=1, most_ns=1,
    )  # fmt: skip


def cause(name: Any, ms: float) -> IdleCause:
    return IdleCause(cause=name, ns=int(ms * MS), share=0.5, gaps=4)


def op(name: str, device: float, host: float = 1) -> OpRow:
    return OpRow(
        name=name, count=2, host_ns=int(host * MS), host_self_ns=int(host * MS), share=0.1,
        device_ns=int(device * MS), device_self_ns=int(device * MS),
    )  # fmt: skip


def made(
    ms: float, busy: float | None, steps: int = 0, devices: int = 1, **parts: Any
) -> TraceStudy:
    span = window(ms, steps, parts.pop("note", ""))
    idle = None if busy is None else int((ms - busy) * MS)
    worked = DeviceTime(
        device=0, name=parts.pop("device", "V100"), window=span, idle_ns=idle,
        busy_ns=None if busy is None else int(busy * MS),
    )  # fmt: skip
    parts.setdefault("label", "made")
    return TraceStudy(files=("x",), events=1, window=span, devices=(worked,) * devices, **parts)


def row(told: TraceComparison, of: str, name: str) -> Difference:
    (found,) = [one for one in told.differences if (one.of, one.name) == (of, name)]
    return found


def test_the_verdict_names_what_a_step_lost_and_what_stayed() -> None:
    """Four steps of 200 ms before, two of 78 ms after: the loader's 120 ms are gone."""
    before = made(800, 300, 4, idle=Idle(causes=(cause("input", 490), cause("other host", 10))))
    after = made(156, 150, 2, idle=Idle(causes=(cause("input", 5), cause("other host", 1))))
    told = differences(before, after)
    assert told.verdict == "a step takes 122 ms less (-61 %): input wait 120 ms less; kernels equal"
    assert (told.per, told.before_ns, told.after_ns) == ("step", 200 * MS, 78 * MS)
    totals = [(r.name, r.before_ns, r.after_ns) for r in told.differences if r.of == "total"]
    assert totals == [
        ("window", 200 * MS, 78 * MS), ("busy", 75 * MS, 75 * MS), ("idle", 125 * MS, 3 * MS),
    ]  # fmt: skip
    assert "ridgeline compare" in told.note


def test_without_steps_in_both_the_whole_traces_are_compared_and_said_so() -> None:
    told = differences(made(100, 50, 4), made(50, 50))
    assert (told.per, told.before_ns, told.after_ns) == ("trace", 100 * MS, 50 * MS)
    assert told.verdict == "the trace takes 50 ms less (-50 %): kernels equal"
    assert [check.id for check in told.validation] == ["no-common-steps"]


def test_rows_are_per_step_with_the_new_and_the_gone_largest_change_first() -> None:
    before = made(40, 20, 2, kernels=(kernel("gone", 6, 4), kernel("kept", 10, 2)))
    after = made(80, 40, 4, kernels=(kernel("new", 8, 4), kernel("kept", 28, 4)))
    rows = [r for r in differences(before, after).differences if r.of == "kernel"]
    assert [(r.name, r.before_ns, r.after_ns, r.before_count, r.after_count) for r in rows] == [
        ("gone", 3 * MS, 0, 2, 0),
        ("kept", 5 * MS, 7 * MS, 1, 1),
        ("new", 0, 2 * MS, 0, 1),
    ]


def test_kernels_alike_but_for_their_numbers_are_one_row() -> None:
    before = made(9, 9, kernels=(kernel("sgemm_128x64_nn", 4), kernel("sgemm_64x64_nn", 1)))
    after = made(9, 9, kernels=(kernel("sgemm_128x32_nn", 3), kernel("sgemm_64x64_nn", 2)))
    told = differences(before, after)
    both = row(told, "kernel", "sgemm_#x#_nn")
    assert (both.before_ns, both.after_ns) == (4 * MS, 3 * MS)
    assert row(told, "kernel", "sgemm_64x64_nn").change_ns == MS


def test_operators_modules_categories_and_phases_have_rows() -> None:
    def one(x: float) -> TraceStudy:
        return made(
            10, 8, 1,
            ops=(op("aten::mm", x), op("aten::add", 1)),
            modules=(ModuleRow(path="Net / Linear_0", kind="Linear", depth=1, count=1, host_ns=1,
                               device_ns=int(x * MS), device_self_ns=0, share=1),),
            categories=(CategoryRow(category="matmul", device_ns=int(x * MS), count=3, share=1),),
            phases=(Phase(phase="forward", host_ns=int(x * MS), device_ns=0, share=1),),
        )  # fmt: skip

    told = differences(one(4), one(6))
    for of, name in (
        ("op", "aten::mm"), ("module", "Net / Linear_0"), ("category", "matmul"),
        ("phase", "forward"),
    ):  # fmt: skip
        assert row(told, of, name).change_ns == 2 * MS, of
    assert row(told, "op", "aten::add").change_ns == 0


def test_more_kernel_time_is_told_with_its_category() -> None:
    def one(x: float) -> TraceStudy:
        rows = (
            CategoryRow(category="matmul", device_ns=int(x * MS), count=3, share=1),
            CategoryRow(category="norm", device_ns=MS, count=3, share=1),
        )
        return made(x + 10, x, 1, categories=rows)

    said = differences(one(20), one(30)).verdict
    assert said == "a step takes 10 ms more (+33.3 %): kernels 10 ms more, most in matmul"


def test_equal_traces_are_called_equal() -> None:
    one = made(100, 50, 2)
    assert differences(one, one).verdict == "a step takes the same time (50 ms): kernels equal"


def test_without_a_device_operators_are_compared_by_their_host_time() -> None:
    def one(x: float) -> TraceStudy:
        span = window(x, 1)
        return TraceStudy(
            files=("x",), events=1, label="cpu", window=span, ops=(op("aten::mm", 0, x),)
        )

    told = differences(one(10), one(20))
    assert row(told, "op", "aten::mm").change_ns == 10 * MS
    assert told.verdict == "a step takes 10 ms more (+100 %): aten::mm 10 ms more"


def test_an_unreliable_idle_time_is_not_compared() -> None:
    bad = Idle(causes=(cause("input", 50),), trust=Trust(confidence="unreliable", why="graphs"))
    told = differences(made(100, None, 1, idle=bad), made(50, 20, 1))
    assert [r.name for r in told.differences if r.of in ("total", "cause")] == ["window"]
    assert told.verdict == "a step takes 50 ms less (-50 %)"


def test_ranks_added_up_are_told_as_one_device() -> None:
    """Idle causes of eight devices are sums; a step is not eight times as long."""
    before = made(100, 50, 1, 8, idle=Idle(causes=(cause("input", 8 * 50),)))
    after = made(60, 50, 1, 8, idle=Idle(causes=(cause("input", 8 * 10),)))
    told = differences(before, after)
    assert row(told, "total", "busy").before_ns == 50 * MS
    assert told.verdict == (
        "a step takes 40 ms less (-40 %): input wait 40 ms less a device; kernels equal"
    )


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"device": "H100"}, "devices-differ"),
        ({"devices": 2}, "device-count-differs"),
        ({"torch": "2.4"}, "torch-differs"),
        ({"kernels_left_out": 3}, "rows-left-out"),
        ({"note": "the first step began 5 ms before"}, "window-edges"),
        ({"validation": (Check(id="lost", severity="error", claim="lost"),)}, "lost"),
    ],
)
def test_what_makes_a_comparison_doubtful_is_said(change: dict[str, Any], id: str) -> None:
    told = differences(made(10, 5, 1, torch="2.3"), made(10, 5, 1, **{"torch": "2.3", **change}))
    assert [check.id for check in told.validation] == [id]


def test_empty_studies_are_compared_without_harm() -> None:
    empty = TraceStudy(files=(), events=0, label="", window=window(0))
    told = differences(empty, empty)
    assert told.verdict == "the trace takes the same time (0 s)"


@pytest.mark.parametrize("turned", [False, True])
def test_no_speed_up_is_told_between_a_device_and_none(turned: bool) -> None:
    """The host's 20 ms against a device's 100 ms are no factor of five."""
    device = made(
        100, 90, 1, ops=(op("aten::mm", 80, 5),), kernels=(kernel("sgemm", 80),),
        categories=(CategoryRow(category="matmul", device_ns=80 * MS, count=3, share=1),),
        idle=Idle(causes=(cause("input", 10),)),
    )  # fmt: skip
    host = TraceStudy(
        files=("x",), events=1, label="cpu", window=window(20, 1), ops=(op("aten::mm", 0, 15),)
    )
    told = differences(host, device) if turned else differences(device, host)
    which = "after" if turned else "before"
    assert told.verdict.startswith(
        f"these cannot be compared as device time: only the trace {which} has device work"
    )
    assert [(c.id, c.severity) for c in told.validation] == [("device-work-differs", "warning")]
    assert {r.of for r in told.differences} == {"op"}
    assert row(told, "op", "aten::mm").change_ns == (-10 if turned else 10) * MS


def test_times_and_shares_read_as_in_the_tables() -> None:
    for ns in (0, 0.4, 7, 999.4, 999.7, 1_000, 12_345, 99_960, 999_700, 5e6, 1.2345e9, 59.4e9):
        assert _time(ns) == units.seconds(ns / 1e9)
    for share in (-0.61, 0.3333, 1.0, 12.5, 0.00123, -0.0999):
        assert _percent(share) == f"{'+' if share > 0 else ''}{units.percent(share)}"
