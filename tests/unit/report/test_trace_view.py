"""What a person reads after `ridgeline trace`."""

import msgspec
import pytest

from ridgeline.records.facts import Check, Trust
from ridgeline.records.trace import Idle
from ridgeline.report.document import Document, Paragraph, Section, Table
from ridgeline.report.reasons import explain
from ridgeline.report.views.trace import document, next_commands, query_document
from ridgeline.report.views.trace_comparison import document as comparison_document
from ridgeline.report.views.trace_work import device_names
from tests.unit.report import made_up_trace as made
from tests.unit.report.rendered import at_terminal, grid
from tests.unit.report.rendered import trace_at_terminal as shown


def section(found: Document, id: str) -> Section:
    return next(b for b in found.blocks if isinstance(b, Section) and b.id == id)


def table(found: Document, id: str) -> Table:
    return next(block for block in section(found, id).blocks if isinstance(block, Table))


def test_the_verdict_comes_first_and_the_window_beside_it() -> None:
    first, second, *_ = [line for line in shown(made.study()).splitlines() if line.strip()]
    assert first.strip() == explain(made.study().verdict)
    assert "window 1.73 s, device activity" in second


def test_a_warning_stands_before_the_numbers_it_touches() -> None:
    text = shown(made.study())
    assert text.index("12 kernels overlap on stream 7") < text.index("why the device was idle")
    kernels = text[text.index("\n kernels") :]
    assert kernels.splitlines()[2].strip() == "doubtful: see the warnings above"


def test_busy_and_every_cause_are_drawn_to_scale() -> None:
    text = shown(made.study())
    blocks = {
        name: next(x for x in text.splitlines() if x.startswith(f"  {name} ")).count("█")
        for name in ("busy", "input", "launch-bound")
    }
    assert blocks["busy"] == 40
    assert blocks["input"] == round(40 * 0.522)
    assert blocks["launch-bound"] == round(40 * 0.2)


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
    text = shown(made.study(), max_rows=2)
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


def test_negligible_rows_are_only_counted() -> None:
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
    assert "other work is hidden behind it" in shown(study, full=True)
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
    assert "no device work and no operators in 5 ms" in text
    assert "kernels group" not in text


def test_the_full_view_says_a_sentence_for_each_empty_section() -> None:
    text = shown(made.nothing(), full=True)
    for sentence in ("record_shapes=True", "profile_memory=True", "with_stack=True"):
        assert sentence in text


def test_the_late_rank_is_named() -> None:
    text = " ".join(shown(made.several()).split())
    assert "rank 1 was last to 31 of 32 collectives, in aten::copy_" in text
    assert "12.5 GB/s" in text


def test_what_is_missing_and_what_to_type_next_close_the_report() -> None:
    text = shown(made.study())
    assert "no shapes: record_shapes=True" in text
    last = text.strip().splitlines()[-1]
    assert last.strip().startswith("ask it anything:     ridgeline trace runs/resnet.json.gz --sql")


def test_operators_without_device_work_are_shown_by_host_time() -> None:
    rows = tuple(
        msgspec.structs.replace(o, device_ns=0, device_self_ns=0) for o in made.study().ops
    )
    text = shown(msgspec.structs.replace(made.nothing(), ops=rows))
    assert "operators, by the host time they take themselves" in text


def test_two_traces_side_by_side_say_what_changed() -> None:
    text = at_terminal(comparison_document(made.comparison()))
    assert "a step went from 152 to 61 ms" in text
    assert "-91 ms -97.8 %" in text
    assert "+3 ms new" in text
    assert "-3 ms gone" in text
    assert "one trace each is no proof" in text


def test_a_querys_answer_is_a_table_with_a_note_on_the_rest() -> None:
    rows = [(f"k\x1b{i}", i, None) for i in range(100)]
    answer = query_document(("name", "n", "x"), rows, truncated=False)
    text = at_terminal(answer, 80)
    assert "\x1b" not in text
    assert text.strip().startswith("100 rows")
    assert "and 40 more, -o FILE.csv has them" in text
    assert text.count("null") == 60
    assert at_terminal(answer, 80, full=True).count("null") == 100
    cut = at_terminal(query_document(("name", "n", "x"), rows, truncated=True), 80)
    assert "there are more than these 100 rows" in cut
    names = tuple(f"column_{i}" for i in range(10))
    wide = at_terminal(query_document(names, [tuple(range(10))], truncated=False), 80)
    assert "no room for 2 columns: column_8, column_9" in wide
    assert "no answer to show" in at_terminal(query_document((), [], truncated=False))
    assert "0 rows" in at_terminal(query_document(("a",), [], truncated=False))


def test_rows_that_no_view_shows_are_counted() -> None:
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
    assert "and 981 more" in shown(many, max_rows=250)  # kernels: 950 and the 31


def test_columns_of_collectives_say_which_statistic_they_are() -> None:
    names = [column.name for column in table(document(made.several()), "collectives").columns]
    assert names[4:7] == ["moving, median a call", "waited, sum over ranks", "skew, largest"]


def test_waiting_that_was_not_split_is_a_dash_and_not_never() -> None:
    several = made.several()
    assert several.ranks is not None
    unsplit = tuple(
        msgspec.structs.replace(r, wait_ns=None, transfer_ns=None, late_count=0, caused_wait_ns=0)
        for r in several.ranks.ranks
    )
    hidden = msgspec.structs.replace(
        several, ranks=msgspec.structs.replace(several.ranks, ranks=unsplit)
    )
    ranks = table(document(hidden), "ranks")
    i = [column.name for column in ranks.columns].index("last to arrive")
    assert {tuple(row[i : i + 2]) for row in grid(ranks)} == {("—", "—")}
    assert grid(table(document(several), "ranks"))[1][i] != "—"


def test_devices_are_counted_by_name() -> None:
    device = made.study().devices[0]
    devices = [msgspec.structs.replace(device, name=n) for n in ("V100", "V100", "H100")]
    named = msgspec.structs.replace(made.study(), devices=tuple(devices))
    assert device_names(named) == "2 × V100, 1 × H100"
    assert device_names(msgspec.structs.replace(named, devices=(devices[2],))) == "H100"
    assert device_names(msgspec.structs.replace(named, devices=())) == ""


def test_a_doubt_that_a_warning_explains_is_not_explained_twice() -> None:
    check = Check(id="clock", severity="warning", claim="clocks differ", affects=("idle",))
    idle = msgspec.structs.replace(
        made.study().idle,
        trust=Trust(confidence="doubtful", why="rank 0: clocks differ", codes=("clock",)),
    )
    study = msgspec.structs.replace(made.study(), idle=idle, validation=(check,))
    first = section(document(study), "idle").blocks[0]
    assert first == Paragraph("doubtful: see the warnings above", "doubt")
    other = msgspec.structs.replace(idle.trust, codes=("other",))
    kept = msgspec.structs.replace(study, idle=msgspec.structs.replace(idle, trust=other))
    first = section(document(kept), "idle").blocks[0]
    assert first == Paragraph("doubtful: rank 0: clocks differ", "doubt")
