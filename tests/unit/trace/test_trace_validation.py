"""What is tested before a number is believed: each check, once wanting and once not."""

from pathlib import Path

from traces_made import Made

from ridgeline.records.facts import Check
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.validation import trust_in, validate
from ridgeline.trace.window import steps_of


def checks(trace: Trace) -> dict[str, Check]:
    return {c.id: c for c in validate(trace, Links(trace), steps_of(trace))}


def sound(launches: int = 200) -> Made:
    made = Made().span("ProfilerStep#1", 0, 100 * launches)
    for i in range(1, launches + 1):
        made.launch("gemm", 100 * i, 100 * i + 10.5, 50.25, i)
    return made


def test_a_sound_trace_has_nothing_to_say(tmp_path: Path) -> None:
    assert checks(sound().trace(tmp_path)) == {}


def test_kernels_that_run_at_once_on_one_stream_are_doubted(tmp_path: Path) -> None:
    made = sound()
    for i in range(1, 200):
        made.launch("long", 100 * i + 20, 100 * i + 30, 60, 1000 + i)
    trace = made.trace(tmp_path)
    found = checks(trace)["overlap"]
    assert found.severity == "error"
    assert trust_in("idle", tuple(checks(trace).values())).confidence == "unreliable"


def test_two_streams_may_run_at_once(tmp_path: Path) -> None:
    made = sound()
    for i in range(1, 200):
        made.launch("long", 100 * i + 20, 100 * i + 30, 60, 1000 + i, stream=20)
    assert "overlap" not in checks(made.trace(tmp_path))


def test_a_kernel_before_its_launch_says_the_clocks_disagree(tmp_path: Path) -> None:
    made = sound()
    for i in range(1, 11):
        made.launch("early", 50_000 + 100 * i, 50_000 + 100 * i - 30, 5, 1000 + i)
    found = checks(made.trace(tmp_path))["before-launch"]
    assert (found.severity, found.count) == ("warning", 10)
    assert "30.0 µs" in found.claim


def test_kernels_without_a_launch_are_counted(tmp_path: Path) -> None:
    made = sound(90)
    for i in range(10):
        made.kernel("loose", 20_000 + 100 * i, 10)
    found = checks(made.trace(tmp_path))["no-launch"]
    assert (found.severity, found.count) == ("warning", 10)
    assert "10 of 100" in found.claim


def test_launches_without_a_kernel_say_that_records_were_dropped(tmp_path: Path) -> None:
    made = sound()
    for i in range(30):
        made.call("cudaLaunchKernel", 100 * i + 60, 5, 5000 + i)
    trace = made.trace(tmp_path)
    assert checks(trace)["dropped"].severity == "error"
    assert checks(trace)["dropped"].count == 30


def test_launches_after_the_last_kernel_are_the_windows_edge(tmp_path: Path) -> None:
    made = sound()
    for i in range(30):
        made.call("cudaLaunchKernel", 30_000 + 100 * i, 5, 5000 + i)
    assert "dropped" not in checks(made.trace(tmp_path))


def test_launches_and_no_kernel_at_all_are_no_idle_device(tmp_path: Path) -> None:
    trace = Made().call("cudaLaunchKernel", 0, 5, 1).trace(tmp_path)
    assert checks(trace)["no-device-records"].severity == "error"


def test_graph_launches_that_hide_their_kernels_make_idle_unreliable(tmp_path: Path) -> None:
    made = sound()
    for i in range(5):
        made.call("cudaGraphLaunch", 30_000 + 100 * i, 20, 9000 + i)
    made.kernel("end", 40_000, 10)
    found = checks(made.trace(tmp_path))
    assert found["graphs-hide"].count == 5
    assert trust_in("idle", tuple(found.values())).confidence == "unreliable"


def test_graph_kernels_that_are_there_are_believed(tmp_path: Path) -> None:
    made = sound().call("cudaGraphLaunch", 30_000, 20, 9000)
    for i in range(40):
        made.kernel("node", 30_030 + 10 * i, 9, 9000)
    assert not {"graphs-hide", "graphs-loose"} & set(checks(made.trace(tmp_path)))


def test_a_clock_that_jumps_is_no_idle_time(tmp_path: Path) -> None:
    made = sound().launch("far", 7_200_000_000, 7_200_000_010, 5, 900)
    found = checks(made.trace(tmp_path))
    assert found["clock-jump"].severity == "error"
    assert "7,200 s" in found["clock-jump"].claim


def test_a_kernel_of_an_hour_is_not_believed(tmp_path: Path) -> None:
    made = sound().launch("endless", 25_000, 25_010, 3_600_000_000, 900)
    assert checks(made.trace(tmp_path))["endless"].count == 1


def test_an_operation_listed_twice_is_found(tmp_path: Path) -> None:
    made = sound()
    made.events.append(dict(made.events[2]))
    assert checks(made.trace(tmp_path))["repeated"].count == 1


def test_the_profilers_own_complaints_are_passed_on(tmp_path: Path) -> None:
    line = (
        "INFO:… Record counts: Out-of-range = 3, Blocklisted runtime = 5, Invalid ext "
        "correlations = 0, CPU GPU out-of-order = 4, Unexpected CUDA events = 0, "
        "CUPTI stopped early? = 1"
    )
    made = sound()
    made.beside["INFO"] = [line]
    found = checks(made.trace(tmp_path))
    assert found["stopped-early"].severity == "error"
    assert found["out-of-order"].count == 4


def test_whole_microseconds_and_missing_steps_are_notes(tmp_path: Path) -> None:
    made = Made()
    for i in range(1, 40):
        made.launch("gemm", 100 * i, 100 * i + 10, 0 if i == 3 else 50, i)
    found = checks(made.trace(tmp_path))
    assert {c.id: c.severity for c in found.values()} == {
        "microseconds": "note",
        "no-steps": "note",
    }
    assert found["microseconds"].count == 1


def test_lost_events_are_named_and_a_cut_file_is_said(tmp_path: Path) -> None:
    made = sound()
    made.events.insert(5, {"ph": "X", "name": "no time", "pid": 1, "tid": 1, "dur": 3})
    path = made.write(tmp_path)
    whole = checks(made.trace(tmp_path))
    assert (whole["lost"].count, whole["lost"].severity) == (1, "warning")
    path.write_bytes(path.read_bytes()[:-2000])
    from ridgeline.trace.reading.reader import parse

    assert "truncated" in checks(parse(path))
