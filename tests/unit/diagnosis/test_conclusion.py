"""From a run directory to its summary: whole ones, and those a kill or a full disk left."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.build_case import called_lines
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.conclusion import _sync_points, conclude
from ridgeline.diagnosis.memory_use import memory_use
from ridgeline.diagnosis.recorded_run import Attempts, FileNames, read_run
from ridgeline.errors import RidgelineError
from ridgeline.records.facts import Reason, because
from ridgeline.records.run import (
    CallSeen,
    Capture,
    ChildrenSeen,
    Compilation,
    DeviceSeen,
    Environment,
    LoaderSeen,
    OutOfMemory,
    ProcessSample,
    Settings,
    Status,
    StepMemory,
    Telemetry,
    Window,
)
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import Energy, MissingCode, RunSummary, SyncPoint
from ridgeline.records.verdict import LimitCode
from ridgeline.report.document import plain
from ridgeline.report.reasons import explain
from ridgeline.report.renderers import markdown
from ridgeline.report.views.run import data, document, remarks
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis import made_up_run_directory as made
from tests.unit.diagnosis.made_up_steps import MS, noisy, step

GIB = 2**30


@pytest.fixture(autouse=True)
def _no_measured_ceilings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def whole(tmp_path: Path) -> RunDirectory:
    found = made.directory(
        tmp_path, run=made.run_file(), captured=made.capture(), stepped=made.steps(),
        watched=made.telemetry(),
    )  # fmt: skip
    made.trace(found)
    return found


def said(summary: RunSummary) -> str:
    """Return everything that is missing or went wrong, in one text."""
    missing = [text if isinstance(text, str) else explain(text) for text in summary.missing]
    return "\n".join((*missing, *summary.problems))


def missing(summary: RunSummary) -> list[Reason]:
    return [reason for reason in summary.missing if isinstance(reason, Reason)]


def test_a_whole_run_has_every_figure(whole: RunDirectory) -> None:
    progress: list[str] = []
    found = conclude(whole, progress.append)
    assert found.problems == ()
    assert found.step.median_ms == pytest.approx(100, rel=0.02)
    assert (found.step.steps, found.step.counted, found.step.clock) == (40, 46, "device")
    assert found.throughput.samples_s == pytest.approx(320, rel=0.02)
    assert found.energy.joules_per_step == pytest.approx(30, rel=0.1)
    assert found.energy.cost_per_million_samples is not None
    assert found.telemetry.gpu_utilisation == pytest.approx(0.8)
    assert found.memory.device_total_bytes == 140 * GIB
    assert found.device == "NVIDIA H200"
    assert found.command == "train.py -e 1"
    assert found.status == "finished"
    assert found.bytes_on_disk > 1000
    assert progress


def test_flops_are_the_traces_and_time_is_of_untraced_steps(whole: RunDirectory) -> None:
    found = conclude(whole)
    flops = 2 * 4096**3
    assert found.efficiency.flops_per_step == pytest.approx(flops)
    assert found.efficiency.flops_s == pytest.approx(flops / 0.1, rel=0.02)
    assert found.efficiency.mfu == pytest.approx(flops / 0.1 / 989.4e12, rel=0.02)
    assert found.efficiency.ceiling_dtype == "bfloat16"
    assert found.efficiency.ceiling_source == "datasheet"
    assert found.verdict.bound == "compute-bound"
    assert any(command.purpose == "trace" for command in found.next)


def test_the_summary_can_be_written_and_read_again(whole: RunDirectory) -> None:
    found = conclude(whole)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RunSummary) == found
    assert data(found)["step"]["phases"]["forward"]["ms"] == pytest.approx(30, rel=0.02)


def test_an_empty_directory_gives_an_unknown_and_says_why(tmp_path: Path) -> None:
    found = conclude(made.directory(tmp_path))
    assert found.verdict.bound == "unknown"
    assert "run.json" in said(found)
    assert found.name == "1115-0102-train"


def test_a_directory_that_is_not_there_gives_an_unknown(tmp_path: Path) -> None:
    assert conclude(RunDirectory(tmp_path / "gone")).verdict.bound == "unknown"


def test_a_program_that_never_imported_torch_is_told_so(tmp_path: Path) -> None:
    found = conclude(
        made.directory(
            tmp_path, run=made.run_file(),
            captured=made.capture(torch_imported=False, stepping="", steps=0, windows=()),
        )
    )  # fmt: skip
    assert found.verdict.reason.code == LimitCode.NO_TORCH
    assert found.device == ""
    assert found.step.median_ms is None


def test_a_program_without_steps_is_told_how_to_mark_them(tmp_path: Path) -> None:
    found = conclude(
        made.directory(
            tmp_path, run=made.run_file(), captured=made.capture(stepping="", steps=0, windows=())
        )
    )
    assert found.verdict.reason.code == LimitCode.NO_STEP
    assert data(found)["verdict"] == "unknown"


def test_a_program_of_two_steps_gets_what_can_be_had(tmp_path: Path) -> None:
    two = [step(0, ms=900, window="settle"), step(1, ms=100, window="settle")]
    found = conclude(
        made.directory(
            tmp_path, run=made.run_file(), captured=made.capture(steps=2, windows=()), stepped=two
        )
    )
    assert found.step.median_ms == 100
    assert found.step.trust.confidence == "doubtful"
    assert found.throughput.samples_s == pytest.approx(320)
    assert "no step was traced" in said(found)
    assert found.verdict.trust.confidence == "doubtful"


def test_a_killed_run_has_its_figures_without_a_capture(tmp_path: Path) -> None:
    found = made.directory(tmp_path, run=made.run_file("running", pid=0), stepped=made.steps())
    with found.steps_file().open("ab") as file:
        file.write(b'{"index":46,"start_')  # the kill came in the middle of a line
    summary = conclude(found)
    assert summary.status == "killed"
    assert summary.step.counted == 46
    assert summary.step.median_ms == pytest.approx(100, rel=0.02)
    assert summary.verdict.bound != "unknown"


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b garbage", b"{}", b'{"traceEvents":[]}'])
def test_a_damaged_trace_costs_the_trace_only(whole: RunDirectory, content: bytes) -> None:
    whole.trace_file().write_bytes(content)
    found = conclude(whole)
    assert found.step.median_ms == pytest.approx(100, rel=0.02)
    assert found.efficiency.mfu is None
    assert found.verdict.trust.confidence == "doubtful"
    assert said(found)


def test_damaged_lines_cost_themselves_and_are_counted(whole: RunDirectory) -> None:
    good = whole.steps_file().read_bytes()
    whole.steps_file().write_bytes(b"not json\n" + good + b'{"index": "seven"}\n')
    found = conclude(whole)
    assert found.step.counted == 46
    assert "2 lines of steps could not be read" in said(found)


def test_a_damaged_capture_costs_the_capture_only(whole: RunDirectory) -> None:
    whole.capture_file().write_bytes(b'{"rank": ')
    found = conclude(whole)
    assert found.step.median_ms == pytest.approx(100, rel=0.02)
    assert "capture-rank0.json" in said(found)


def test_a_run_file_that_is_damaged_costs_the_command_only(whole: RunDirectory) -> None:
    whole.run_file.write_bytes(b"\x00\x01")
    found = conclude(whole)
    assert found.command == ""
    assert found.step.median_ms == pytest.approx(100, rel=0.02)
    assert "run.json" in said(found)


def test_a_newer_schema_is_refused(whole: RunDirectory) -> None:
    whole.run_file.write_bytes(msgspec.json.encode(made.run_file(schema=99)))
    with pytest.raises(RidgelineError, match="newer"):
        conclude(whole)


def test_any_part_that_fails_is_named_and_costs_itself(
    whole: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **named: object) -> None:
        raise ZeroDivisionError("nobody saw this coming")

    for part in ("telemetered", "energy", "device_with_ceilings"):
        monkeypatch.setattr(f"ridgeline.diagnosis.conclusion.{part}", broken)
    for part in ("step_work", "sync_points", "hand_fed"):
        monkeypatch.setattr(f"ridgeline.diagnosis.build_case.{part}", broken)
    found = conclude(whole)
    assert found.step.median_ms == pytest.approx(100, rel=0.02)
    assert len(found.problems) == 6
    assert all("nobody saw this coming" in problem for problem in found.problems)


def test_several_ranks_add_up_their_samples_and_say_so(tmp_path: Path) -> None:
    found = made.directory(
        tmp_path, run=made.run_file(ranks=2), captured=made.capture(world=2), stepped=made.steps()
    )
    other = made.capture(rank=1, world=2)
    found.capture_file(1).write_bytes(msgspec.json.encode(other))
    summary = conclude(found)
    assert summary.ranks == 2
    assert summary.throughput.samples_s == pytest.approx(640, rel=0.02)
    assert because(MissingCode.OTHER_RANKS, ranks=2) in missing(summary)


def test_out_of_memory_leaves_a_verdict_and_the_peak(tmp_path: Path) -> None:
    full = OutOfMemory(
        asked_bytes=2 * GIB, free_bytes=GIB, total_bytes=140 * GIB, allocated_bytes=130 * GIB,
        reserved_bytes=138 * GIB, step=0, phase="forward", place="model.py:88",
    )  # fmt: skip
    seen = made.capture(out_of_memory=full, ended="raised", why="OutOfMemoryError", steps=0)
    found = conclude(made.directory(tmp_path, run=made.run_file("raised"), captured=seen))
    assert found.verdict.bound == "memory-capacity-bound"
    assert found.memory.device_peak_bytes == 130 * GIB
    assert found.why == "OutOfMemoryError"


def test_growth_of_memory_is_found_and_a_steady_program_has_none(tmp_path: Path) -> None:
    for name, each in (("leak", 3 * 2**20), ("steady", 0)):
        steps = [
            msgspec.structs.replace(
                s, memory=StepMemory(allocated_bytes=GIB + each * s.index, peak_bytes=2 * GIB)
            )
            if s.index % 10 == 0
            else s
            for s in noisy(60, device=True)
        ]
        (tmp_path / name).mkdir()
        found = conclude(
            made.directory(tmp_path / name, run=made.run_file(), captured=made.capture(),
                           stepped=steps)
        )  # fmt: skip
        assert found.memory.growth_bytes_per_step == pytest.approx(each)
        assert found.memory.device_peak_bytes == 2 * GIB


def test_recompiles_and_graph_breaks_are_told_with_their_place(tmp_path: Path) -> None:
    seen = made.capture(
        compilations=(
            Compilation(place="model.py:9", recompile_reason="size of x changed"),
            Compilation(place="model.py:9", graph_breaks=("call to print",)),
        ),
        graph_breaks={"call to print": 3},
    )
    found = conclude(made.directory(tmp_path, run=made.run_file(), captured=seen))
    assert found.recompiles == ("model.py:9: size of x changed",)
    assert found.graph_breaks == ("model.py:9: call to print",)


def test_the_first_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    stepped = [msgspec.structs.replace(s, loss=1.0) for s in noisy(20)]
    for at, broke in ((7, "inf"), (9, "nan")):
        stepped[at] = msgspec.structs.replace(stepped[at], loss=None, loss_broke=broke)
    found = conclude(made.directory(tmp_path, run=made.run_file(), stepped=stepped))
    assert found.loss_broke == "inf at step 7"
    assert data(found)["loss_broke"] == "inf at step 7"
    row = next(row for row in remarks(found) if row.label == "loss")
    assert (plain(row.lines[0]), row.level) == ("inf at step 7 · 1 → 1", "doubt")


def test_regions_are_means_over_the_steady_steps_largest_first(tmp_path: Path) -> None:
    stepped = [
        msgspec.structs.replace(s, regions={"load": 5 * MS, **({"save": 40 * MS} if i % 2 else {})})
        for i, s in enumerate(noisy(20, spread=0.0))
    ]
    first = step(99, window="settle")
    stepped.append(msgspec.structs.replace(first, regions={"load": 9000 * MS}))
    found = conclude(made.directory(tmp_path, run=made.run_file(), stepped=stepped))
    assert [(r.name, r.ms, round(r.share, 6)) for r in found.regions] == [
        ("save", 20.0, 0.2),
        ("load", 5.0, 0.05),
    ]
    assert data(found)["regions"][1] == {"name": "load", "ms": 5.0, "share": 0.05}
    assert "regions**: save 20 ms (20 %) · load 5 ms (5 %)" in markdown.render(document(found))


def test_the_hosts_peak_is_without_our_tracer() -> None:
    watched = [
        Telemetry(at_ns=at, processes=(ProcessSample(pid=7, rss_bytes=size),))
        for at, size in ((10, 3 * GIB), (20, 4 * GIB), (30, 9 * GIB))
    ]
    windows = (
        Window(kind="light", first_step=0, start_ns=5),
        Window(kind="traced", first_step=9, start_ns=25),
    )
    captured = made.capture(windows=windows)
    assert memory_use(captured, (), watched).host_peak_bytes == 4 * GIB
    assert memory_use(captured, (), watched[2:]).host_peak_bytes == 9 * GIB
    assert memory_use(None, (), watched).host_peak_bytes == 9 * GIB


def test_losses_are_the_first_and_the_last(tmp_path: Path) -> None:
    steps = [msgspec.structs.replace(s, loss=4.0 - s.index / 10) for s in noisy(20)]
    found = conclude(made.directory(tmp_path, run=made.run_file(), stepped=steps))
    assert found.losses == (4.0, pytest.approx(2.1))


def test_energy_is_over_a_stretch_that_no_trace_interrupts(whole: RunDirectory) -> None:
    """The 13 steps before the last stretch have no telemetry, so they cannot count."""
    late = [t for t in made.telemetry() if t.at_ns >= 1600 * MS]
    made.lines(whole.telemetry_file(), late)
    assert conclude(whole).energy.joules_per_step == pytest.approx(30, rel=0.1)


@pytest.mark.parametrize(("leak", "settles"), [(True, False), (False, True), (False, False)])
def test_a_resident_size_grows_only_where_it_keeps_rising(
    tmp_path: Path, leak: bool, settles: bool
) -> None:
    cpu = made.capture(device=DeviceSeen(kind="cpu"))
    steps = noisy(60)
    watched = [
        Telemetry(
            at_ns=i * 100 * MS,
            processes=(
                ProcessSample(
                    pid=7, rss_bytes=GIB + 2**20 * (i if leak else min(i, 15) * 20 * settles)
                ),
            ),
        )
        for i in range(60)
    ]
    found = conclude(
        made.directory(tmp_path, run=made.run_file(), captured=cpu, stepped=steps, watched=watched)
    )
    assert found.memory.growth_bytes_per_step == pytest.approx(2**20 if leak else 0, rel=0.1)


def test_places_are_told_from_where_the_program_ran(tmp_path: Path) -> None:
    cpu = made.capture(
        device=DeviceSeen(kind="cpu"), loaders=(LoaderSeen(batches=9, place="/home/me/data.py:41"),)
    )
    steps = [step(i, {"input": 80.0, "forward": 10.0}) for i in range(20)]
    run = made.run_file(environment=Environment(directory="/home/me"))
    found = conclude(made.directory(tmp_path, run=run, captured=cpu, stepped=steps))
    assert (found.verdict.bound, found.verdict.place) == ("input-bound", "data.py:41")


def test_even_the_verdict_and_the_times_may_fail_without_costing_the_run(
    whole: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **named: object) -> None:
        raise OverflowError

    for part in ("steady_steps", "times_of", "memory_use", "limit", "python_view"):
        monkeypatch.setattr(f"ridgeline.diagnosis.conclusion.{part}", broken)
    found = conclude(whole)
    assert found.verdict.bound == "unknown"
    assert found.step.counted == 46
    assert len(found.problems) == 4  # nothing was sampled, so the Python view was not tried


def test_absurd_numbers_in_the_steps_do_not_break_it(whole: RunDirectory) -> None:
    absurd = [
        step(0, ms=-5.0), step(1, ms=0.0), step(2, {"input": 1e12}, ms=1e12),
        step(3, {"forward": -7.0}), step(10**15, {"input": 5e3}, ms=1.0),
    ]  # fmt: skip
    made.lines(whole.steps_file(), absurd)
    found = conclude(whole)
    assert not found.problems
    assert all(0 <= phase.share <= 1 for phase in found.step.phases)


# ------------------------------------------------------------------------------------- ranks


def job(folder: Path, *captures: Capture) -> RunSummary:
    """Ranks of one job, each with its capture; rank 0 with steps."""
    found = made.directory(
        folder, run=made.run_file(ranks=len(captures)), captured=captures[0], stepped=made.steps()
    )
    for one in captures[1:]:
        found.capture_file(one.rank).write_bytes(msgspec.json.encode(one))
    return conclude(found)


def ended(rank: int, status: Status, at_s: float, **changed: object) -> Capture:
    return made.capture(rank=rank, ended=status, ended_ns=round(at_s * 1e9), world=3, **changed)


def test_the_rank_that_ended_first_is_reported(tmp_path: Path) -> None:
    summary = job(
        tmp_path,
        ended(0, "raised", 11, why="RuntimeError: Connection closed by peer"),
        ended(1, "raised", 12, why="RuntimeError: Connection closed by peer"),
        ended(2, "raised", 10, why="ValueError: no more data"),
    )
    assert [(end.rank, end.why) for end in summary.rank_ends] == [(2, "ValueError: no more data")]
    assert data(summary)["rank_ends"][0]["rank"] == 2
    told = [plain(row.lines[0]) for row in remarks(summary) if row.label == "program"]
    assert "rank 2" in told[0]
    assert "no more data" in told[0]


def test_a_killed_rank_is_reported_by_when_it_was_last_seen(tmp_path: Path) -> None:
    found = made.directory(
        tmp_path, run=made.run_file(ranks=2), captured=ended(0, "raised", 11), stepped=made.steps()
    )
    dead = ended(1, "running", 0, pid=2**22 + 1)  # above the largest id of a process
    found.capture_file(1).write_bytes(msgspec.json.encode(dead))
    made.lines(found.telemetry_file(1), made.telemetry())
    (end,) = conclude(found).rank_ends
    assert (end.rank, end.status) == (1, "killed")


def test_ranks_that_ended_well_or_later_are_not_reported(tmp_path: Path) -> None:
    later = ended(1, "raised", 12, why="RuntimeError: Connection closed by peer")
    summary = job(tmp_path, ended(0, "raised", 11, why="ValueError: broke"), later)
    assert summary.rank_ends == ()


def test_a_rank_that_never_imported_torch_is_reported_but_not_shown(
    tmp_path: Path,
) -> None:
    idle = Capture(rank=0, world=2, torch_imported=False, ended="finished", ended_ns=5)
    found = made.directory(tmp_path, run=made.run_file(ranks=2), captured=idle)
    found.capture_file(1).write_bytes(msgspec.json.encode(ended(1, "finished", 9)))
    made.lines(found.steps_file(1), made.steps())
    summary = conclude(found)
    assert summary.step.counted == 46
    assert [(end.rank, end.torch_imported) for end in summary.rank_ends] == [(0, False)]


def test_a_late_rank_is_the_verdict_of_the_job(tmp_path: Path) -> None:
    cpu = DeviceSeen(kind="cpu")
    found = made.directory(
        tmp_path, run=made.run_file(ranks=2), captured=made.capture(device=cpu, world=2),
        stepped=[step(i, {"forward": 5, "backward": 80}) for i in range(40)],
    )  # fmt: skip
    late = made.capture(
        rank=1, world=2, device=cpu, loaders=(LoaderSeen(batches=9, place="d.py:4"),)
    )
    found.capture_file(1).write_bytes(msgspec.json.encode(late))
    slow = [step(i, {"input": 70, "forward": 5, "backward": 10}) for i in range(40)]
    made.lines(found.steps_file(1), slow)
    summary = conclude(found)
    assert summary.verdict.bound == "late-rank"
    assert summary.verdict.place == "d.py:4"
    assert summary.verdict.reason.facts["rank"] == 1
    (finding,) = [f for f in summary.findings.findings if f.rule == "late-rank"]
    assert (finding.file, finding.line) == ("d.py", 4)
    assert finding.share_pct == pytest.approx(100 * summary.verdict.numbers[0].value, abs=0.01)


def test_a_synchronisation_is_placed_at_the_line_that_asks_most(tmp_path: Path) -> None:
    text = "def train(x):\n    a = x.item()\n    for p in ps:\n        p.item()\n\n\ny.item()\n"
    calls = tuple(
        CallSeen(file="/w/train.py", line=line, name="item", times=times)
        for line, times in ((2, 3), (4, 72), (7, 90))
    )
    captured = made.capture(calls=calls)
    read = read_run(made.directory(tmp_path, run=made.run_file(), captured=captured), Attempts())
    sources = SourceFiles(texts={"train.py": text}, called=called_lines((captured,)))
    point = SyncPoint(place="train.py:1", call="aten::item", per_step=25.0, ms_per_step=0.1)
    names = FileNames(read.run, read.capture)
    (placed,) = _sync_points((point,), Case(sources=sources), read, names)
    assert placed.place == "train.py:4"
    (unknown,) = _sync_points((point,), Case(), read, names)
    assert unknown.place == "train.py:1"


def test_a_line_that_ran_on_one_rank_alone_was_seen_running() -> None:
    first = made.capture(calls=(CallSeen(file="/w/train.py", line=2, name="load", times=3),))
    late = made.capture(
        rank=1, calls=(CallSeen(file="/w/train.py", line=9, name="sleep", times=3),)
    )
    assert called_lines((first, late)) == {
        "/w/train.py": {2: frozenset({"load"}), 9: frozenset({"sleep"})}
    }


@pytest.mark.parametrize(("count", "text"), [(1, "1 step is too few"), (2, "2 steps are too few")])
def test_too_few_steps_to_trace_are_counted(tmp_path: Path, count: int, text: str) -> None:
    stepped = [step(index, window="settle") for index in range(count)]
    captured = made.capture(steps=count, windows=())
    found = conclude(
        made.directory(tmp_path, run=made.run_file(), captured=captured, stepped=stepped)
    )
    assert because(MissingCode.TOO_FEW_STEPS_TO_TRACE, steps=count) in missing(found)
    assert text in said(found)
    assert (found.step.ci is None) == (found.step.steps == 1)


def test_processes_that_the_program_started_are_listed_as_missing(tmp_path: Path) -> None:
    children = (ChildrenSeen(function="train", place="/code/train.py:7", processes=2),)
    captured = made.capture(children=children, stepping="call")
    found = conclude(made.directory(tmp_path, run=made.run_file(), captured=captured))
    started = {"processes": 2, "function": "train", "place": "/code/train.py:7"}
    assert because(MissingCode.CHILDREN, **started) in missing(found)
    assert found.verdict.trust.confidence != "good"


def test_where_only_processes_of_its_own_train_that_is_the_verdict(tmp_path: Path) -> None:
    children = (ChildrenSeen(function="train", place="/code/train.py:7", processes=1),)
    captured = made.capture(children=children, stepping="", steps=0, windows=())
    found = conclude(made.directory(tmp_path, run=made.run_file(), captured=captured, stepped=[]))
    assert found.verdict.bound == "unknown"
    assert found.verdict.reason == because(
        LimitCode.STEPS_IN_CHILDREN, processes=1, function="train"
    )


def test_a_cost_or_an_emission_that_was_asked_for_and_is_not_known_has_its_reason(
    tmp_path: Path,
) -> None:
    def concluded(name: str, **facts: object) -> Energy:
        (tmp_path / name).mkdir()
        stepped = facts.pop("stepped", made.steps(device=False))
        watched = facts.pop("watched", [])
        kind = made.capture(device=DeviceSeen(kind="cpu"))
        run = made.run_file(**facts)
        found = conclude(
            made.directory(
                tmp_path / name, run=run, captured=kind, stepped=stepped, watched=watched
            )
        )
        return found.energy

    unwatched = concluded("a")
    assert (unwatched.cost_missing, unwatched.carbon_missing) == ("", "no-telemetry")
    without_counter = [replace(one, devices=()) for one in made.telemetry()]
    assert concluded("b", watched=without_counter).carbon_missing == "no-counter"
    nothing = concluded("c", watched=without_counter, stepped=[])
    assert (nothing.cost_missing, nothing.carbon_missing) == ("no-steps", "no-counter")
    unasked = concluded("d", settings=Settings())
    assert (unasked.cost_missing, unasked.carbon_missing) == ("", "")
