"""A run under way: what is read from its growing files, and what the page and the terminal show."""

import io
import os
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ridgeline.harness.capture.watch_lock import Lock
from ridgeline.records.run import DeviceSample, ProcessSample, Step, StepMemory, Telemetry
from ridgeline.records.run_directory import RunDirectory
from ridgeline.viewer import terminal
from ridgeline.viewer.library import stage_of
from ridgeline.viewer.live import (
    MAX_READ_BYTES,
    TAIL_BYTES,
    News,
    Offsets,
    look,
    points,
    read_new,
    recent,
    shown_figures,
    stage_sentence,
)
from ridgeline.viewer.pages import live_data
from tests.unit.viewer.served import (
    add_steps,
    add_telemetry,
    made,
    made_running,
    serving,
    write_capture,
    write_run_file,
)

SECOND = 1_000_000_000
RUN = "1115-010203-train"


def sample(at_s: float, cpu_s: float, *, worker_cpu_s: float | None = None) -> Telemetry:
    processes = [ProcessSample(pid=1, cpu_s=cpu_s, rss_bytes=2 << 30)]
    if worker_cpu_s is not None:
        processes.append(ProcessSample(pid=2, worker=True, cpu_s=worker_cpu_s, rss_bytes=1 << 30))
    return Telemetry(at_ns=int(at_s * SECOND), processes=tuple(processes))


def test_each_look_returns_what_is_new(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    news = look(run, Offsets())
    assert (news.stage, news.steps, news.elapsed_s) == ("running", (), None)
    add_steps(run, 0, 3)
    news = look(run, news.offsets)
    assert [step.index for step in news.steps] == [0, 1, 2]
    add_steps(run, 3, 2)
    add_telemetry(run, sample(1, 0.1), sample(2, 0.6))
    news = look(run, news.offsets)
    assert [step.index for step in news.steps] == [3, 4]
    assert [point.program_cores for point in news.telemetry] == pytest.approx([0.5])
    assert news.elapsed_s == pytest.approx(2.0)
    again = look(run, news.offsets)
    assert (again.steps, again.telemetry) == ((), ())
    assert again.machine == news.telemetry[-1]  # still known, though it is no news
    assert again.recent.last_step == 4


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = msgspec.json.encode(Step(index=1, start_ns=0, dur_ns=1)) + b"\n"
    file.write_bytes(line + line[:10])
    records, offset, _ = read_new(file, Step, 0)
    assert (len(records), offset) == (1, len(line))
    file.write_bytes(line + line)
    records, offset, _ = read_new(file, Step, offset)
    assert (len(records), offset) == (1, 2 * len(line))


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = msgspec.json.encode(Step(index=1, start_ns=0, dur_ns=1)) + b"\n"
    file.write_bytes(line + b"{damaged\n\xff\n[[[[\n" + line)
    assert len(read_new(file, Step, 0)[0]) == 2


def test_a_large_file_is_read_from_near_its_end_and_in_parts(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = msgspec.json.encode(Step(index=1, start_ns=0, dur_ns=1)) + b"\n"
    count = (TAIL_BYTES + MAX_READ_BYTES) // len(line)
    file.write_bytes(line * count)
    tail, end, _ = read_new(file, Step, -1)
    assert len(tail) == pytest.approx(TAIL_BYTES / len(line), abs=1)
    assert end == file.stat().st_size
    part, middle, _ = read_new(file, Step, 0)
    rest, end, _ = read_new(file, Step, middle)
    assert len(part) + len(rest) == count
    assert middle <= MAX_READ_BYTES
    assert end == file.stat().st_size


def test_a_line_without_end_does_not_stop_the_reading(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    line = msgspec.json.encode(Step(index=1, start_ns=0, dur_ns=1)) + b"\n"
    file.write_bytes(b"x" * (MAX_READ_BYTES + 10) + b"\n" + line)
    offset, records = 0, []
    for _ in range(4):
        found, offset, _ = read_new(file, Step, offset)
        records += found
    assert len(records) == 1


def test_steps_that_turned_out_not_to_be_steps_are_void(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    add_steps(run, 0, 5)
    news = look(run, Offsets())
    run.write_whole("steps.jsonl", b"")
    add_steps(run, 0, 1)
    news = look(run, news.offsets)
    assert news.began_over
    assert [step.index for step in news.steps] == [0]


def test_the_stages_of_a_run_follow_each_other(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    lock = Lock(run.lock_file())
    assert lock.take()
    write_capture(run, "light")
    assert stage_of(run) == "running"
    write_capture(run, "light", ended="finished")
    assert stage_of(run) == "concluding"
    write_run_file(run, status="finished")
    assert stage_of(run) == "concluding"  # the watcher still writes the report page
    lock.release()
    assert stage_of(run) == "over"


def test_a_killed_or_damaged_run_is_over(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    write_run_file(run, status="running", pid=2**22 + 1, pid_started=1.0)
    assert stage_of(run) == "over"
    run.run_file.write_bytes(b"{")
    assert stage_of(run) == "over"
    assert stage_of(RunDirectory(tmp_path / "nothing")) == "over"


@pytest.mark.parametrize("window", ["settle", "light", "traced", "memory", "alone"])
def test_each_window_has_a_sentence_of_its_own(tmp_path: Path, window: str) -> None:
    run = made_running(tmp_path, RUN)
    none_yet = stage_sentence(look(run, Offsets()))
    write_capture(run, window)
    news = look(run, Offsets())
    assert news.window == window
    assert stage_sentence(news) != none_yet


def test_a_job_of_several_ranks_says_whose_numbers_are_shown(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    assert "rank" not in stage_sentence(look(run, Offsets()))
    write_run_file(run, status="running", pid=os.getpid(), ranks=8)
    news = look(run, Offsets())
    assert news.ranks == 8
    assert "rank 0 of 8" in stage_sentence(news)


def test_the_newest_steps_give_the_main_numbers() -> None:
    fast = [
        Step(index=i, start_ns=0, dur_ns=10_000_000, samples=32, loss=0.5 - i / 1000,
             host={"backward": 6_000_000, "forward": 4_000_000},
             memory=StepMemory(peak_bytes=i))
        for i in range(100)
    ]  # fmt: skip
    slow = [Step(index=100, start_ns=0, dur_ns=900_000_000, window="traced")]
    slow.append(Step(index=101, start_ns=0, dur_ns=900_000_000, compile_ns=1))
    found = recent([*fast, *slow])
    assert found.step_ms == pytest.approx(10.0)  # tracing and compiling are left out
    assert found.samples_s == pytest.approx(3200.0)
    assert found.phases == (("forward", 4.0), ("backward", 6.0))  # in the order of a step
    assert found.loss == pytest.approx(0.5 - 99 / 1000)
    assert (found.last_step, found.device_peak_bytes) == (101, 99)
    assert recent(slow).step_ms == pytest.approx(900.0)  # where there are no others
    assert recent([]).step_ms is None


def test_a_loss_that_broke_is_shown_as_it_is() -> None:
    steps = [Step(index=0, start_ns=0, dur_ns=1, loss=1.0)]
    steps.append(Step(index=1, start_ns=0, dur_ns=1, loss_broke="nan"))
    news = News(stage="running", recent=recent(steps), offsets=Offsets())
    assert ("loss", "nan") in shown_figures(news)


def test_processors_are_counted_from_one_second_to_the_next() -> None:
    samples = [sample(i / 10, i / 10 * 0.8, worker_cpu_s=i / 10 * 2.0) for i in range(31)]
    found = list(points(samples))
    assert len(found) == 3
    assert [point.program_cores for point in found] == pytest.approx([0.8] * 3)
    assert [point.worker_cores for point in found] == pytest.approx([2.0] * 3)
    assert {(point.workers, point.host_bytes) for point in found} == {(1, 3 << 30)}


def test_a_new_worker_does_not_count_with_the_time_before_it_was_seen() -> None:
    found = list(points([sample(0, 0.0), sample(1, 0.5, worker_cpu_s=100.0)]))
    assert found[-1].worker_cores == 0.0


def test_only_the_programs_own_gpu_is_shown_where_it_is_known() -> None:
    devices = (
        DeviceSample(index=0, utilisation_percent=90),
        DeviceSample(index=1, utilisation_percent=10, ours=True),
    )
    known = Telemetry(at_ns=1, devices=devices)
    unknown = Telemetry(at_ns=1, devices=devices[:1])
    assert [gpu.index for gpu in next(points([known])).gpus] == [1]
    assert [gpu.index for gpu in next(points([unknown])).gpus] == [0]


def test_the_page_of_a_run_under_way_streams_until_the_report(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    write_capture(run, "light")
    add_steps(run, 0, 20, samples=8, loss=0.25)
    with serving(tmp_path) as served:
        page = served.get(f"/run/{RUN}")
        assert f'data-source="/run/{RUN}/live"' in page.text
        assert "<iframe" not in page.text
        first = served.get(f"/run/{RUN}/live").json
        assert len(first["steps"]) == 20
        figures = dict(first["figures"])
        assert (figures["step"], figures["loss"]) == ("20", "0.25")
        add_steps(run, 20, 1)
        after = f"steps={first['offsets']['steps']}&telemetry={first['offsets']['telemetry']}"
        second = served.get(f"/run/{RUN}/live?{after}").json
        assert [step[0] for step in second["steps"]] == [20]
        write_run_file(run, status="finished")
        assert served.get(f"/run/{RUN}/live?{after}").json["stage"] == "over"
        assert "<iframe" in served.get(f"/run/{RUN}").text


def test_warm_up_and_compiling_steps_stay_out_of_the_chart(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    add_steps(run, 0, 1, window="settle")
    add_steps(run, 1, 1, compile_ns=5)
    add_steps(run, 2, 1)
    rows = live_data(look(run, Offsets()))["steps"]
    assert [row[1] for row in rows] == [None, None, 10.0]


def test_the_terminal_draws_the_same_numbers(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    write_capture(run, "light")
    add_steps(run, 0, 30, samples=8, loss=0.25)
    add_telemetry(run, sample(1, 0.1), sample(2, 0.6))
    view = terminal.LiveView("a\x1b[2Jname", "train.py")
    news = look(run, Offsets())
    view.update(news)
    text = io.StringIO()
    console = Console(file=text, width=100, no_color=True, highlight=False)
    console.print(view.picture(100))
    shown = text.getvalue()
    for label, value in shown_figures(news):
        assert label in shown
        assert value in shown
    assert "\x1b" not in shown
    assert all(phase in shown for phase in ("input", "forward"))


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([0.0, 3.5, 7.0], "▁▅█"), ([2.0, 2.0], "▁▁"), ([1.0, float("nan"), 2.0], "▁ █"), ([], "")],
)
def test_a_curve_goes_from_the_lowest_to_the_highest_block(values: list[float], drawn: str) -> None:
    assert terminal.blocks(values) == drawn


def test_the_terminal_ends_when_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_running(tmp_path, RUN)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            write_run_file(run, status="finished")

    monkeypatch.setattr(time, "sleep", wait)
    terminal.show_live(run, Console(file=io.StringIO(), force_terminal=True))
    assert waits == [terminal.POLL_INTERVAL_S] * 3


def test_a_concluded_run_opens_as_its_report(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    with serving(tmp_path) as served:
        text = served.get(f"/run/{RUN}").text
    assert f'<iframe src="/run/{RUN}/report" sandbox="allow-scripts' in text
