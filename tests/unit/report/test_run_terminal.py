"""A run's block at the terminal: what it says, at any width, whatever the names hold."""

import io
import re
import unicodedata

import msgspec
import pytest
from rich.console import Console

from ridgeline.records.run_summary import (
    MemoryUse,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
    Verdict,
)
from ridgeline.records.trust import Trust
from ridgeline.report import run_figures
from ridgeline.report.run_terminal import render
from tests.unit.report import made_up_run as made
from tests.unit.report.made_up_trace import NASTY

replace = msgspec.structs.replace
WIDTHS = [60, 72, 80, 100, 120, 160, 200]


def shown(summary: RunSummary, width: int = 120, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    render(summary, Console(file=file, width=width, highlight=False))
    return raw.getvalue().decode(encoding)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_first_lines_say_what_limits_it_and_the_figures() -> None:
    lines = shown(made.summary(), 140).splitlines()
    assert lines[1].startswith(" ridgeline  input-bound: the GPU waits 61 % of each step for data")
    assert lines[1].endswith("train.py · 240 steps · H200")
    assert lines[2].strip() == (
        "step 152 ms [149, 155] · 210 samples/s · 105 TFLOP/s, 11 % of the peak "
        "(bfloat16, datasheet) · peak 7.9 of 140 GiB · 41.2 J/step"
    )


def test_steps_watched_are_told_from_steps_taken() -> None:
    summary = made.summary()
    for taken, told in (
        (640, "240 of 640 steps watched"),
        (240, "240 steps"),
        (None, "240 steps watched"),
    ):
        about = run_figures.about(replace(summary, step=replace(summary.step, taken=taken)))
        assert about[1] == told


@pytest.mark.parametrize(("mean", "told"), [(27.8, True), (30.9, False), (36.0, True)])
def test_the_mean_that_phases_add_up_to_is_named_where_it_is_another_figure(
    mean: float, told: bool
) -> None:
    summary = made.summary()
    step = replace(summary.step, median_ms=30.8, mean_ms=mean)
    assert run_figures.has_own_mean(step) == told


def test_the_two_numbers_and_the_place_stand_below() -> None:
    text = flat(shown(made.summary()))
    assert "because input wait 61 % of the step · GPU at work 30 % of the step · data.py:41" in text
    assert "next ridgeline run --python examples/train.py --epochs 1" in text
    assert "run .ridgeline/runs/1115-010203-train (2.96 MiB)" in text


def test_phases_stand_on_one_line_to_scale_where_they_fit() -> None:
    line = next(x for x in shown(made.summary(), 140).splitlines() if x.startswith("   input"))
    blocks = [len(found) for found in re.findall("█+", line)]
    assert blocks == [24, 4, 8, 2, 2]
    assert line.endswith("other ██ 7.1 ms")


def test_phases_stand_one_a_line_where_they_do_not_fit() -> None:
    lines = shown(made.summary(), 70).splitlines()
    phases = [x for x in lines if "█" in x]
    assert [x.split()[0] for x in phases] == [p for p, _ in made.PHASES]
    assert phases[0].endswith("93 ms  61 %")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_but_a_command(width: int) -> None:
    summary = replace(made.summary(), python=made.python())
    for line in shown(summary, width).splitlines():
        assert len(line) <= width or "ridgeline trace" in line or "ridgeline run" in line
        assert line == line.rstrip()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_there_at_every_width(width: int) -> None:
    text = flat(shown(made.summary(), width))
    for figure in ("152 ms [149, 155]", "210 samples/s", "41.2 J/step", "7.9 of 140 GiB", "H200"):
        assert figure in text


def test_a_stream_that_is_not_utf8_gets_plain_characters() -> None:
    summary = replace(made.summary(), python=made.python(), why="größer als ∞", status="raised")
    for encoding in ("ascii", "latin-1", "cp1252"):
        text = shown(summary, 70, encoding=encoding)
        assert text.isascii()
        assert "input-bound: the GPU waits 61 % of each step for data" in flat(text)
        assert "####" in text


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    render(made.summary(), Console(file=out, width=120, force_terminal=True))
    assert not re.search(r"\x1b\[[\d;]*3\d", out.getvalue())


@pytest.mark.parametrize("nasty", NASTY)
def test_words_from_outside_cannot_move_the_cursor_or_become_markup(nasty: str) -> None:
    summary = replace(
        made.summary(), name=nasty, command=nasty, device=nasty, run_dir=nasty, why=nasty,
        status="raised", recompiles=(nasty,), graph_breaks=(nasty,), missing=(nasty,),
        problems=(nasty,), next=(nasty,),
        sync_points=(SyncPoint(place=nasty, call=nasty, per_step=1.0, ms_per_step=1.0),),
        verdict=Verdict(bound="compute-bound", sentence=nasty, place=nasty, trust=Trust(why=nasty)),
    )  # fmt: skip
    text = shown(summary)
    unseen = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unseen <= {"\n"}
    if "[bold]" in nasty:
        assert "[bold]not bold[/bold]" in flat(text)


def test_a_run_that_left_nothing_still_has_a_block() -> None:
    text = flat(shown(made.nothing()))
    assert "ridgeline unknown: no step was seen" in text
    assert "killed" in text
    assert "step 1" not in text


def test_doubts_are_said() -> None:
    doubt = Trust(confidence="doubtful", why="only 2 steps")
    summary = replace(made.summary(), step=replace(made.summary().step, trust=doubt))
    assert "steps doubtful: only 2 steps" in flat(shown(summary))
    assert "doubtful" not in shown(made.summary())


def test_uneven_steps_show_their_mean() -> None:
    step = replace(made.summary().step, median_ms=90.0, mean_ms=152.4)
    assert ", mean 152 ·" in flat(shown(replace(made.summary(), step=step)))
    assert "mean" not in shown(made.summary())


def test_memory_that_grows_and_clocks_that_are_held_down_are_told() -> None:
    summary = replace(
        made.summary(),
        memory=MemoryUse(retries=3, growth_bytes_per_step=3.0 * 2**20),
        telemetry=Telemetered(throttle=("power cap",), other_processes=2),
    )
    text = flat(shown(summary))
    assert "3 retries of the allocator · grows 3 MiB a step" in text
    assert "clocks held down: power cap · 2 other programs on the GPU" in text


def test_many_missing_things_are_counted_not_listed() -> None:
    summary = replace(made.summary(), missing=tuple(f"thing {i} is not here" for i in range(9)))
    text = flat(shown(summary))
    assert "thing 2 is not here" in text
    assert "thing 3" not in text
    assert "and 6 more, in summary.json" in text


def test_a_step_without_phases_draws_no_bar() -> None:
    assert "█" not in shown(replace(made.summary(), step=StepTimes(median_ms=1.0, counted=1)))
