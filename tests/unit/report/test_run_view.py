"""A run's document and JSON: what it says, and in every format whatever the names hold."""

import io
import json
import math
import re
import unicodedata

import pytest
from msgspec.structs import replace
from rich.console import Console

from ridgeline.records.facts import Trust, because
from ridgeline.records.finding import Findings
from ridgeline.records.run import PythonLine, PythonView
from ridgeline.records.run_summary import (
    MemoryUse,
    NextCommand,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
)
from ridgeline.records.verdict import DoubtCode, LimitCode, Verdict
from ridgeline.report.document import Item, plain
from ridgeline.report.renderers import json as json_renderer
from ridgeline.report.renderers import markdown, terminal
from ridgeline.report.views.run import about, data, document, has_own_mean, remarks
from tests.unit.report import made_up_findings
from tests.unit.report import made_up_run as made
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import at_terminal, bare_page, grid, tables

WIDTHS = [60, 72, 80, 100, 120, 160, 200]
PAUSES = because(DoubtCode.PAUSES, pauses=2, steps=40, longest_s=5.0)
LEFT_OUT = "not counted: 2 of 40 steps, which held a pause (a checkpoint, a stall) of up to 5 s"
KEYS = {
    "schema", "verdict", "because", "step", "throughput", "mfu", "flops", "memory", "energy",
    "telemetry", "run_dir", "name", "command", "status", "losses", "sync_points", "recompiles",
    "graph_breaks", "python", "missing", "problems", "next", "findings", "answers",
}  # fmt: skip
PYTHON = PythonView(
    main_samples=1240, worker_samples=4000, worker_idle_samples=1000, workers=4,
    interval_ns=7_500_000,
    lines=(
        PythonLine(
            file="/home/me/proj/train.py", line=20, function="main",
            source="for images, labels in loader:", share=0.91, seconds=8.4,
            calls="DataLoader, waiting for a batch",
        ),
        PythonLine(
            file="/home/me/proj/data.py", line=41, function="Augment.__call__",
            source="image = image.resize(self.size)", process="worker", share=0.62, seconds=14,
            calls="PIL.Image.Image.resize",
        ),
        PythonLine(file="/home/me/proj/data.py", line=7, function="f", share=0.0002),
    ),
)  # fmt: skip


def shown(summary: RunSummary, width: int = 120, *, encoding: str = "utf-8") -> str:
    return at_terminal(document(summary), width, encoding=encoding)


def flat(text: str) -> str:
    return " ".join(text.split())


def remark(summary: RunSummary, label: str) -> Item:
    return next(item for item in remarks(summary) if item.label == label)


def text(item: Item) -> str:
    return plain(item.lines[0])


def labels(summary: RunSummary) -> set[str]:
    return {item.label for item in remarks(summary)}


def python_rows(view: PythonView) -> list[list[str]]:
    made_up = replace(made.summary(), python=view)
    return next((grid(t) for t in tables(document(made_up)) if t.columns[0].name == "line"), [])


class TestFirstLines:
    def test_the_first_lines_have_the_limit_and_the_main_numbers(self) -> None:
        lines = shown(made.summary(), 140).splitlines()
        sentence = "input-bound: the GPU waits 61 % of each step for data"
        assert lines[1].startswith(f" ridgeline  {sentence}")
        assert lines[1].endswith("train.py · 240 steps · H200")
        assert lines[2].strip() == (
            "step 152 ms [149, 155] · 210 samples/s · 105 TFLOP/s, 11 % of the peak "
            "(bfloat16, datasheet) · peak 7.9 of 140 GiB · 41.2 J/step"
        )

    @pytest.mark.parametrize(
        ("taken", "words"),
        [(640, "240 of 640 steps watched"), (240, "240 steps"), (None, "240 steps watched")],
    )
    def test_watched_steps_and_taken_steps_are_distinguished(
        self, taken: int | None, words: str
    ) -> None:
        summary = made.summary()
        assert about(replace(summary, step=replace(summary.step, taken=taken)))[1] == words

    def test_steps_of_the_parent_are_not_told_as_those_of_its_children(self) -> None:
        summary = made.summary()
        doubt = because(DoubtCode.OTHER_PROCESSES_TRAIN, processes=2)
        trust = Trust(confidence="doubtful", doubts=(doubt,))
        alone = replace(summary, verdict=replace(summary.verdict, trust=trust))
        assert len(about(alone)) == len(about(summary)) + 1

    @pytest.mark.parametrize(("mean", "is_shown"), [(27.8, True), (30.9, False), (36.0, True)])
    def test_the_mean_is_shown_where_it_differs_from_the_median(
        self, mean: float, is_shown: bool
    ) -> None:
        step = replace(made.summary().step, median_ms=30.8, mean_ms=mean)
        assert has_own_mean(step) == is_shown
        in_text = ", mean " in shown(replace(made.summary(), step=step))
        assert in_text == is_shown

    def test_a_run_without_records_still_has_a_report(self) -> None:
        words = flat(shown(made.nothing()))
        assert "ridgeline unknown: no step was seen" in words
        assert "killed" in words
        assert "step 1" not in words


class TestPhases:
    def test_they_stand_on_one_line_to_scale_where_they_fit(self) -> None:
        lines = shown(made.summary(), 140).splitlines()
        line = next(x for x in lines if x.startswith("  input"))
        assert [len(bar) for bar in re.findall("█+", line)] == [24, 4, 8, 2, 2]
        assert line.endswith("other ██ 7.1 ms")

    def test_they_stand_on_a_line_each_where_they_do_not_fit(self) -> None:
        phases = [x for x in shown(made.summary(), 70).splitlines() if "█" in x]
        assert [x.split()[0] for x in phases] == [p for p, _ in made.PHASES]
        assert phases[0].endswith("93 ms  61 %")

    def test_a_step_without_phases_draws_no_bar(self) -> None:
        assert "█" not in shown(replace(made.summary(), step=StepTimes(median_ms=1.0, counted=1)))

    def test_pages_have_their_intervals_in_a_table_and_a_terminal_has_not(self) -> None:
        report = document(made.summary())
        assert "| input | 93 | [90.2, 95.8] | 61 % |" in markdown.render(report)
        assert "[90.2, 95.8]" in bare_page(report)
        assert "90.2" not in at_terminal(report)


class TestRemarks:
    def test_the_deciding_numbers_and_the_place(self) -> None:
        assert text(remark(made.summary(), "because")) == (
            "input wait 61 % of the step · GPU at work 30 % of the step · data.py:41"
        )

    def test_a_finding_on_the_same_subject_replaces_a_remark(self) -> None:
        alone = labels(made.summary())
        assert {"because", "waits"} <= alone
        explained = replace(made.summary(), findings=made_up_findings.findings())
        assert labels(explained) == alone - {"because", "waits"}

    def test_a_remark_stays_where_the_findings_are_about_something_else(self) -> None:
        elsewhere = replace(made_up_findings.ITEM, file="other.py")
        other = Findings(findings=(elsewhere, made_up_findings.PRECISION))
        assert {"because", "waits"} <= labels(replace(made.summary(), findings=other))
        # 20 % of the 61 % that decided
        small = Findings(findings=(replace(made_up_findings.LOADER, share_pct=20.0),))
        assert "because" in labels(replace(made.summary(), findings=small))

    def test_recompiles_are_named_by_a_remark_or_by_a_finding(self) -> None:
        summary = replace(made.summary(), recompiles=("f: shapes changed",))
        assert "compiled" in labels(summary)
        finding = replace(made_up_findings.LOADER, family="compile", rule="recompiles")
        assert "compiled" not in labels(replace(summary, findings=Findings(findings=(finding,))))

    def test_other_programs_are_a_doubt_from_a_quarter_of_the_cores_on(self) -> None:
        seen = Telemetered(program_cores=0.4, other_cores=1.6, cores=2)
        crowded = remark(replace(made.summary(), telemetry=seen), "machine")
        assert text(crowded) == "other programs took 1.6 of 2 cores · program 0.4 cores"
        assert crowded.level == "doubt"
        few = remark(replace(made.summary(), telemetry=replace(seen, other_cores=0.5)), "machine")
        assert (text(few), few.level) == ("program 0.4 cores", "plain")

    @pytest.mark.parametrize("rule", ["oversubscribed-cpu", "shared-device"])
    def test_other_programs_are_named_by_a_remark_or_by_a_finding(self, rule: str) -> None:
        seen = Telemetered(program_cores=0.4, other_cores=1.6, cores=2, other_processes=1)
        finding = replace(made_up_findings.LOADER, family="machine", rule=rule)
        summary = replace(made.summary(), telemetry=seen, findings=Findings(findings=(finding,)))
        assert text(remark(summary, "machine")) == "program 0.4 cores"

    def test_clocks_are_named_by_a_remark_or_by_a_finding(self) -> None:
        seen = Telemetered(program_cores=0.4, throttle=("power cap",))
        summary = replace(made.summary(), telemetry=seen)
        assert text(remark(summary, "machine")).startswith("clocks held down: power cap")
        finding = replace(made_up_findings.LOADER, family="machine", rule="throttled-clocks")
        summary = replace(summary, findings=Findings(findings=(finding,)))
        assert text(remark(summary, "machine")) == "program 0.4 cores"

    def test_memory_that_grows_and_retries_of_the_allocator(self) -> None:
        memory = MemoryUse(retries=3, growth_bytes_per_step=3.0 * 2**20)
        item = remark(replace(made.summary(), memory=memory), "memory")
        assert text(item) == "3 retries of the allocator · grows 3 MiB a step"
        assert item.level == "doubt"

    def test_long_pauses_say_what_they_cost(self) -> None:
        whole = made.summary()
        step = replace(whole.step, pause_share=0.59, trust=Trust(doubts=(PAUSES,)))
        rate = replace(whole.throughput, samples_s_with_pauses=2_500.0)
        long = remark(replace(whole, step=step, throughput=rate), "steps")
        cost = "pauses take 59 % of the time, with them 2.5 k samples/s"
        assert (text(long), long.level) == (f"{LEFT_OUT}; {cost}", "plain")
        short = replace(whole, step=replace(step, pause_share=0.05), throughput=rate)
        assert (text(remark(short, "steps")), remark(short, "steps").level) == (LEFT_OUT, "quiet")

    def test_doubts_say_how_doubtful_and_why(self) -> None:
        doubt = Trust(confidence="doubtful", doubts=(because(DoubtCode.ALL_COMPILING, steps=2),))
        summary = replace(made.summary(), step=replace(made.summary().step, trust=doubt))
        assert (
            text(remark(summary, "steps")) == "doubtful: only 2 steps ran, and every one compiled"
        )
        assert "steps" not in labels(made.summary())

    def test_many_missing_things_are_counted(self) -> None:
        missing = tuple(f"thing {i} is not here" for i in range(9))
        lines = remark(replace(made.summary(), missing=missing), "missing").lines
        assert lines == (*missing[:3], "and 6 more, in summary.json")


class TestPython:
    def test_a_row_says_where_how_much_and_what(self) -> None:
        assert python_rows(PYTHON) == [
            ["proj/train.py:20 main", "91 %", "8.4 s", "main", "for images, labels in loader:",
             "DataLoader, waiting for a batch"],
            ["proj/data.py:41 Augment.__call__", "62 %", "14 s", "4 workers",
             "image = image.resize(self.size)", "PIL.Image.Image.resize"],
        ]  # fmt: skip

    def test_it_says_what_the_shares_are_of(self) -> None:
        assert (
            "1,240 samples of the main process; 4,000 of 4 workers, 25 % of them waiting for work, "
            "not counted; one every 7.5 ms"
        ) in flat(shown(replace(made.summary(), python=PYTHON), 160))

    def test_rows_beyond_the_limit_are_counted(self) -> None:
        many = replace(PYTHON, lines=PYTHON.lines[:1] * 11)
        assert len(python_rows(many)) == 8
        assert "and 3 more, in summary.json" in shown(replace(made.summary(), python=many))

    def test_a_run_without_samples_has_a_sentence_and_no_empty_table(self) -> None:
        words = shown(replace(made.summary(), python=PythonView()))
        assert "\n no sample of the Python code: too short a time\n" in words
        assert "which calls" not in words
        seen = PythonView(main_samples=5, interval_ns=7_500_000)
        assert "none was in the user's own code" in shown(replace(made.summary(), python=seen))


class TestEnd:
    def test_the_next_commands_say_what_for_and_stand_whole_on_a_line(self) -> None:
        lines = [line.strip() for line in shown(made.summary(), 60).splitlines()]
        again = "ridgeline run --python examples/train.py --epochs 1"
        assert f"which lines of Python:  {again}" in lines
        assert "run        .ridgeline/runs/1115-010203-train (2.96 MiB)" in [
            " ".join(line.rsplit("  (", 1)).replace(" 2.96", " (2.96") for line in lines
        ]

    def test_the_first_command_explains_the_first_finding(self) -> None:
        summary = replace(made.summary(), findings=made_up_findings.findings())
        command = "why, and the fix:       ridgeline explain loader-starves"
        assert command in shown(summary)
        assert data(summary)["next"][0] == "ridgeline explain loader-starves"
        assert "ridgeline explain" not in shown(made.summary())


class TestFindings:
    def test_they_stand_between_the_phases_and_the_remarks(self) -> None:
        words = shown(replace(made.summary(), findings=made_up_findings.findings()), 140)
        places = [words.index(x) for x in ("other ██", "   1  The DataLoader", " machine ")]
        assert places == sorted(places)

    def test_the_five_questions_are_answered_in_the_full_view_and_in_files(self) -> None:
        report = document(replace(made.summary(), findings=made_up_findings.findings()))
        question = "Is the device busy?"
        assert question not in at_terminal(report)
        assert question in at_terminal(report, full=True)
        assert f"- **{question}** No: the GPU works 30 %" in markdown.render(report)
        assert f">{question}</dt><dd>No: the GPU works 30 %" in bare_page(report)

    def test_a_run_without_a_step_or_without_memory_has_no_all_clear(self) -> None:
        full = replace(made.summary().verdict, bound="memory-capacity-bound")
        for summary in (made.nothing(), replace(made.summary(), verdict=full)):
            assert "nothing above" not in shown(summary)


class TestEveryFormat:
    @pytest.mark.parametrize("width", WIDTHS)
    def test_no_line_is_wider_than_the_terminal_but_a_command(self, width: int) -> None:
        summary = replace(
            made.summary(), python=made.python(), findings=made_up_findings.findings()
        )
        for line in at_terminal(document(summary), width, full=True).splitlines():
            assert len(line) <= width or re.search(r":  +ridgeline (trace|run|explain)", line)
            assert line == line.rstrip()

    @pytest.mark.parametrize("width", WIDTHS)
    def test_every_figure_is_there_at_every_width(self, width: int) -> None:
        words = flat(shown(made.summary(), width))
        figures = ("152 ms [149, 155]", "210 samples/s", "41.2 J/step", "7.9 of 140 GiB", "H200")
        for figure in figures:
            assert figure in words

    def test_a_stream_that_is_not_utf8_gets_plain_characters(self) -> None:
        summary = replace(made.summary(), python=made.python(), why="größer als ∞", status="raised")
        for encoding in ("ascii", "latin-1", "cp1252"):
            words = shown(summary, 70, encoding=encoding)
            assert words.isascii()
            assert "input-bound: the GPU waits 61 % of each step for data" in flat(words)
            assert "####" in words

    def test_there_is_no_colour_where_none_is_wanted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        out = io.StringIO()
        terminal.render(document(made.summary()), Console(file=out, force_terminal=True))
        assert not re.search(r"\x1b\[[\d;]*3\d", out.getvalue())

    @pytest.mark.parametrize("nasty", NASTY)
    def test_markup_in_user_text_is_escaped(self, nasty: str) -> None:
        line = replace(PYTHON.lines[0], source=nasty, function=nasty, file=nasty, calls=nasty)
        summary = replace(
            made.summary(), name=nasty, command=nasty, device=nasty, run_dir=nasty, why=nasty,
            status="raised", recompiles=(nasty,), graph_breaks=(nasty,), missing=(nasty,),
            problems=(nasty,), next=(NextCommand("trace", nasty),),
            sync_points=(SyncPoint(place=nasty, call=nasty, per_step=1.0, ms_per_step=1.0),),
            verdict=Verdict(
                bound="compute-bound", place=nasty,
                reason=because(LimitCode.ARITHMETIC, device="GPU", share=0.9, dtype=nasty),
                trust=Trust(doubts=(because(DoubtCode.TRACE, text=nasty),)),
            ),
            python=replace(PYTHON, lines=(line,)), findings=made_up_findings.nasty(nasty),
        )  # fmt: skip
        report = document(summary)
        words = at_terminal(report, full=True)
        if "[bold]" in nasty:
            assert "[bold]not bold[/bold]" in flat(words)
        page, notes = bare_page(report), markdown.render(report)
        for made_text in (words, page, notes, json_renderer.render(data(summary))):
            unseen = {c for c in made_text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl")}
            assert unseen <= {"\n"}
        assert "<script>" not in page
        outside = [x for x in notes.splitlines() if "`" not in x and x.strip() != nasty]
        assert not any("<script>" in line for line in outside)

    def test_markdown_has_the_sentence_the_lines_and_the_commands(self) -> None:
        notes = markdown.render(document(replace(made.summary(), python=made.python())))
        assert notes.startswith("### input-bound: the GPU waits 61 % of each step for data\n")
        assert "image.resize" in notes
        assert "`ridgeline run --python examples/train.py --epochs 1`" in notes
        assert "\n\n\n" not in notes

    def test_the_page_draws_the_phases_and_names_every_section(self) -> None:
        summary = replace(made.summary(), python=PYTHON, findings=made_up_findings.findings())
        page = bare_page(document(summary))
        assert "<title>input-bound: the GPU waits 61 % of each step for data</title>" in page
        assert "<title>input 93 ms</title>" in page
        for title in ("what holds it back", "lines of Python"):
            assert re.search(f"<h2 id=[^>]*>{title}</h2>", page)
        assert "<summary>the five questions</summary>" in page


class TestData:
    def test_it_has_what_scripts_read(self) -> None:
        found = data(made.summary())
        assert found["verdict"] == "input-bound"
        assert found["because"]["numbers"][0] == {
            "what": "input wait", "value": 0.61, "text": "61 % of the step", "source": "measured",
        }  # fmt: skip
        assert found["because"]["place"] == "data.py:41"
        assert found["step"]["median_ms"] == 152.1
        assert found["step"]["ci"] == [149.3, 155.2]
        assert found["step"]["phases"]["input"]["share"] == pytest.approx(93 / made.MEAN)
        assert found["throughput"]["samples_s"] == 210.3
        assert found["mfu"] == 0.11
        assert found["flops"]["ceiling_name"] == "bfloat16, datasheet"
        assert found["memory"]["device_peak_bytes"] == 8_482_560_410
        assert found["energy"]["joules_per_step"] == 41.2
        assert found["losses"] == {"first": 6.931, "last": 2.204}
        assert found["run_dir"] == ".ridgeline/runs/1115-010203-train"
        assert found["next"][0] == "ridgeline run --python examples/train.py --epochs 1"

    @pytest.mark.parametrize("summary", [made.summary(), made.nothing()], ids=["whole", "nothing"])
    def test_every_key_is_in_every_document(self, summary: RunSummary) -> None:
        found = data(summary)
        assert found.keys() >= KEYS
        assert found["step"].keys() == data(made.summary())["step"].keys()
        assert found["memory"].keys() == data(made.summary())["memory"].keys()

    def test_an_unknown_figure_is_null_and_not_zero(self) -> None:
        found = data(made.nothing())
        for figure in (
            found["mfu"], found["step"]["median_ms"], found["flops"]["per_s"], found["losses"],
            found["python"],
        ):  # fmt: skip
            assert figure is None

    def test_a_loss_that_is_not_a_number_is_valid_strict_json(self) -> None:
        written = json_renderer.render(data(replace(made.summary(), losses=(2.0, math.nan))))
        assert json.loads(written)["losses"] == {"first": 2.0, "last": None}

    def test_it_has_the_lines_of_python_and_every_field_of_every_finding(self) -> None:
        summary = replace(
            made.summary(), python=made.python(), findings=made_up_findings.findings()
        )
        found = data(summary)
        assert found["python"]["lines"][0]["function"] == "decode"
        first = found["findings"][0]
        assert (first["share_pct"], first["gain_bound"], first["line"]) == (60.0, 2.5, 41)
        assert first["evidence"][0] == {
            "what": "input wait", "text": "93 ms, 61 % of the step", "value": 93.0,
            "source": "measured",
        }  # fmt: skip
