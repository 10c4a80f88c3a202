"""What a person reads after `ridgeline trace`."""

import io

import msgspec
import pytest
from rich.console import Console

from ridgeline.records.trace import Idle, TraceStudy
from ridgeline.records.trust import Trust
from ridgeline.report import trace_answer, trace_comparison_text
from ridgeline.report.trace_next import next_commands
from ridgeline.report.trace_terminal import show
from tests.unit.report import made_up_trace as made


def shown(study: TraceStudy, width: int = 120, **options: bool | int) -> str:
    out = io.StringIO()
    show(study, Console(file=out, width=width, highlight=False), **options)  # type: ignore[arg-type]
    return out.getvalue()


def test_the_verdict_comes_first_and_the_window_beside_it() -> None:
    first, second, *_ = [line for line in shown(made.study()).splitlines() if line.strip()]
    assert first.strip() == made.study().verdict
    assert "window 1.73 s, device activity" in second


def test_a_warning_stands_before_the_numbers_it_touches() -> None:
    text = shown(made.study())
    assert text.index("12 kernels overlap on stream 7") < text.index("why the device was idle")
    kernels = text[text.index("\n kernels") :]
    assert kernels.splitlines()[2].strip() == "doubtful: see the warnings above"


def test_busy_and_every_cause_are_drawn_to_scale() -> None:
    text = shown(made.study())
    line = next(line for line in text.splitlines() if line.startswith("  busy █"))
    assert line.split("input")[0].count("█") == 28  # 57.7 % of 48
    assert line.split("input")[1].count("█") == 14


def test_a_cause_names_the_users_line() -> None:
    row = next(x for x in shown(made.study()).splitlines() if x.startswith("   input  "))
    assert "522 ms" in row
    assert "71.2 %" in row
    assert "data/loader.py:41" in row


@pytest.mark.parametrize("width", [60, 80, 100, 140, 220])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(made.several(), width).splitlines()
    tables = [line for line in lines if "ridgeline trace" not in line]
    assert max(len(line) for line in tables) <= width
    assert [line for line in lines if line.endswith(" ")] == []


def test_the_bar_shrinks_with_the_terminal() -> None:
    device = msgspec.structs.replace(made.study().devices[0], busy_ns=1733 * made.MS, idle_ns=0)
    busy = msgspec.structs.replace(made.study(), devices=(device,), idle=Idle(total_ns=0))
    for width in (40, 60, 100):
        line = next(x for x in shown(busy, width).splitlines() if x.startswith("  busy █"))
        assert len(line) <= width
        assert line.endswith("100 % 1.73 s")


def test_a_narrow_roofline_keeps_the_share_of_the_ceiling() -> None:
    text = shown(made.study(), 60)
    roofline = text[text.index("\n roofline of") :].splitlines()[2:5]
    assert roofline[0].split("  ")[-1].strip() == "of its ceiling"
    assert "bound by" not in roofline[0]
    assert roofline[1].endswith("70 %")


def test_a_figure_is_not_parted_from_its_unit() -> None:
    for width in range(60, 140, 7):
        for line in shown(made.study(), width).splitlines():
            assert line.strip().split(" ")[0] not in ("%", "ms", "µs", "s", "GiB")


def test_a_line_of_code_keeps_its_number_when_there_is_little_room() -> None:
    assert "loader.py:41" in shown(made.study(), 62)


def test_the_short_view_fits_two_screens_and_the_full_one_shows_more() -> None:
    short, full = shown(made.study()), shown(made.study(), full=True)
    assert len(short.splitlines()) < 100
    assert "gaps by length" not in short
    assert "gaps by length" in full
    assert "ampere_sgemm_10x64_tn" not in short
    assert "ampere_sgemm_10x64_tn" in full


def test_the_rows_of_each_table_can_be_chosen() -> None:
    text = shown(made.study(), most=2)
    assert "ampere_sgemm_0x64_tn" in text
    assert "ampere_sgemm_1x64_tn" not in text


def test_rows_left_out_are_counted() -> None:
    short, full = shown(made.study()), shown(made.study(), full=True)
    assert "and 37 more, 6 of them with --full" in short  # 12 - 6 here, 31 never handed over
    assert "and 31 more\n" in full
    assert "and 40,001 more, 3 of them with --full" in short  # gaps
    assert "and 39,998 more, shorter: -o FILE.perfetto.json.gz has all" in full


def test_the_full_view_has_every_row() -> None:
    base = made.study().ops[0]
    many = tuple(msgspec.structs.replace(base, name=f"op<{i}>") for i in range(3000))
    text = shown(msgspec.structs.replace(made.study(), ops=many), full=True)
    assert all(f"op<{i}>" in text for i in range(3000))


def test_rows_that_are_next_to_nothing_are_only_counted() -> None:
    base = made.study().ops[0]
    ops = tuple(
        msgspec.structs.replace(base, name=f"aten::op_{i}", share=(0.9, 0.0009, 0.0)[min(i, 2)])
        for i in range(4)
    )
    text = shown(msgspec.structs.replace(made.study(), ops=ops))
    table = text[text.index("operators, by") : text.index("\n modules")]
    assert "aten::op_0" in table
    assert "aten::op_1" not in table
    assert "and 3 more, with --full" in table


def test_python_between_operators_is_not_called_idleness() -> None:
    study = made.study()
    assert "counts as neither" not in shown(study)
    overlap = msgspec.structs.replace(study.overlap, neither_ns=1733 * made.MS)
    text = shown(msgspec.structs.replace(study, overlap=overlap), 300)
    assert "host in operators or calls, device busy: both 700 ms 20.2 %" in text
    assert "neither 1.73 s 50 % (Python between them counts as neither)" in text


def test_the_critical_path_claims_no_more_than_it_knows() -> None:
    study = made.study()
    assert "work beside it is hidden behind it" in shown(study, full=True)
    doubtful = msgspec.structs.replace(
        study.critical_path, trust=Trust(confidence="doubtful", why="inferred"), of="rank 0"
    )
    text = shown(msgspec.structs.replace(study, critical_path=doubtful), full=True)
    assert "hidden behind it" not in text
    assert "critical path of rank 0" in text
    assert "doubtful: inferred" in text


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        (["trace", "x.json", "-q", "-o", "r.html"], "ridgeline trace x.json --full"),
        (["trace", "-qo", "r.md", "x.json", "--top", "3"], "ridgeline trace x.json --full"),
        (["trace", "-or.md", "x.json", "--output=r.csv"], "ridgeline trace x.json --full"),
        (["trace", "x.json", "--steps", "3-5", "-v"], "ridgeline trace x.json --steps 3-5 --full"),
        (["trace", "--", "-o"], "ridgeline trace --full -- -o"),
        ([], "ridgeline trace runs/resnet.json.gz --full"),
    ],
)
def test_the_next_command_is_the_question_without_its_output(typed: list[str], again: str) -> None:
    assert next_commands(made.study(), typed, full=False)[0] == ("everything", again)


def test_an_unreliable_figure_is_a_reason_not_a_number() -> None:
    text = shown(made.unreliable())
    assert "graph launches hide 97 % of the kernels" in text
    assert "57.7 %" not in text
    assert "  busy █" not in text


def test_a_trace_without_device_work_is_answered() -> None:
    text = shown(made.nothing())
    assert "there is no device work in this trace" in text
    assert "kernels group" not in text


def test_the_full_view_says_a_sentence_for_each_empty_section() -> None:
    text = shown(made.nothing(), full=True)
    for sentence in ("record_shapes=True", "profile_memory=True", "with_stack=True"):
        assert sentence in text


def test_the_late_rank_is_named() -> None:
    text = shown(made.several())
    assert "rank 1 was last to 31 of 32 collectives, in aten::copy_" in text
    assert "12.5 GB/s" in text


def test_what_is_missing_and_what_to_type_next_close_the_report() -> None:
    text = shown(made.study())
    assert "no shapes: record_shapes=True" in text
    last = text.strip().splitlines()[-1]
    assert last.strip().startswith("ask it anything:  ridgeline trace runs/resnet.json.gz --sql")


def test_operators_without_device_work_are_shown_by_host_time() -> None:
    rows = tuple(
        msgspec.structs.replace(o, device_ns=0, device_self_ns=0) for o in made.study().ops
    )
    text = shown(msgspec.structs.replace(made.nothing(), ops=rows))
    assert "operators, by the host time they take themselves" in text


def test_two_traces_side_by_side_say_what_changed() -> None:
    out = io.StringIO()
    trace_comparison_text.show(made.comparison(), Console(file=out, width=120, highlight=False))
    text = out.getvalue()
    assert "a step went from 152 to 61 ms" in text
    assert "-91 ms -97.8 %" in text
    assert "+3 ms new" in text
    assert "-3 ms gone" in text
    assert "one trace each is no proof" in text


def test_a_querys_answer_is_a_table_with_a_note_on_the_rest() -> None:
    out = io.StringIO()
    rows = [(f"k\x1b{i}", i, None) for i in range(100)]
    console = Console(file=out, width=80, highlight=False)
    trace_answer.show(("name", "n", "x"), rows, console)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "and 40 more; -o FILE.csv has them" in text
    trace_answer.show(("name", "n", "x"), rows, console, truncated=True)
    assert "and 40 more of the first 100; -o FILE.csv has them" in out.getvalue()
    trace_answer.show(tuple(f"column_{i}" for i in range(9)), [tuple(range(9))], console)
    assert "2 columns more than fit (column_7, column_8)" in out.getvalue()
    trace_answer.show((), [], console)
    trace_answer.show(("a",), [], console)
    assert "no rows" in out.getvalue()


def test_rows_nobody_will_see_are_counted_all_the_same() -> None:
    """A short view looks at 200 rows of a table."""
    study = made.study()
    many = msgspec.structs.replace(
        study,
        kernels=study.kernels * 100,
        ops=study.ops * 100,
        idle=msgspec.structs.replace(study.idle, top=study.idle.top * 100),
    )
    text = shown(many)
    assert "and 1,225 more, 1,194 of them with --full" in text  # 1200 - 6 and the 31 left out
    assert "and 795 more, with --full" in text
    assert "and 40,001 more, 597 of them with --full" in text
    assert "and 981 more" in shown(many, most=250)  # kernels: 950 and the 31
