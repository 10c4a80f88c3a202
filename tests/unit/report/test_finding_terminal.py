"""Findings in a run's and in a trace's block, at any width."""

import io
import re
import unicodedata

import pytest
from msgspec.structs import replace
from rich.console import Console

from ridgeline.records.finding import Findings
from ridgeline.records.run_summary import Telemetered
from ridgeline.records.trust import Trust
from ridgeline.report import trace_terminal
from ridgeline.report.run_rows import rows
from ridgeline.report.run_terminal import render
from tests.unit.report import made_up_findings as found
from tests.unit.report import made_up_run, made_up_trace
from tests.unit.report.made_up_trace import NASTY

WIDTHS = [60, 80, 100, 120, 140, 200]


def of_run(findings: Findings, width: int = 140, *, answers: bool = False) -> str:
    out = io.StringIO()
    summary = replace(made_up_run.summary(), findings=findings)
    render(summary, Console(file=out, width=width, highlight=False), answers=answers)
    return out.getvalue()


def of_trace(findings: Findings, width: int = 140) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    trace_terminal.show(made_up_trace.study(), console, findings)
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_in_a_wide_terminal_place_and_gain_stand_beside_the_claim() -> None:
    text = of_run(found.findings())
    line = next(x for x in text.splitlines() if x.startswith("   2  "))
    assert re.fullmatch(
        r"   2  fp32 matrix products: TF32 is off +models/model.py:88 +up to 1.29 ×, after 1", line
    )
    assert text.index("other ██") < text.index("   1  The DataLoader") < text.index(" machine ")


def test_in_a_narrow_one_they_stand_below() -> None:
    lines = of_run(found.findings(), 80).splitlines()
    at = next(i for i, x in enumerate(lines) if x.startswith("   2  "))
    assert lines[at + 1] == "      models/model.py:88 · up to 1.29 ×, after 1"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_says_all_and_no_line_is_too_long(width: int) -> None:
    for text in (of_run(found.findings(), width, answers=True), of_trace(found.findings(), width)):
        whole = flat(text)
        for said in ("data.py:41", "up to 2.5 ×", "same time as 1", "and 1 more below 3 %",
                     "Is the device busy?", "it waits for data 61 %"):  # fmt: skip
            assert said in whole
        for line in text.splitlines():
            assert len(line) <= width or "ridgeline trace" in line or "ridgeline run" in line
            assert line == line.rstrip()


@pytest.mark.parametrize(
    "change",
    [
        'name = "a text, that cannot be broken" + rest_of_it',
        "@torch.compile  # or nn.GRU / nn.LSTM; take products that need no `c` out of the loop",
        "with nullcontext() if last else model.no_sync():   # last: the last part of a step\n    …",
        "text = " + repr("x" * 150),
    ],
)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_fix_is_always_shown(change: str, width: int) -> None:
    found_ = Findings(findings=(replace(found.LOADER, change=change),))
    for text in (of_run(found_, width), of_trace(found_, width)):
        joined = "".join(text.split()).replace("\\", "").replace("#", "")
        code, _, comment = change.partition("  #")
        assert "".join(code.split("\n")[0].split()) in joined
        assert "".join(comment.split("\n")[0].split()) in joined
        for line in text.splitlines():
            assert len(line) <= width or "ridgeline trace" in line or "ridgeline run" in line


def test_of_a_long_fix_the_first_lines_are_shown_and_the_rest_is_counted() -> None:
    long = replace(found.LOADER, change="\n".join(f"x = {i}" for i in range(30)))
    text = of_run(Findings(findings=(long,)))
    assert "x = 10\n" in text
    assert "x = 11" not in text
    assert "… and 19 more lines" in text


@pytest.mark.parametrize("width", [80, 140])
def test_why_it_might_be_wrong_stands_under_the_claim(width: int) -> None:
    lines = of_run(found.findings(), width).splitlines()
    at = next(i for i, x in enumerate(lines) if "it may be wrong" in x)
    assert lines[at] == "      it may be wrong: the disk may be as slow"
    assert lines[at + 1].startswith("        loader = DataLoader(")
    assert sum("it may be wrong" in x for x in lines) == 1  # the others have no doubt
    long = replace(found.LOADER, doubt="a reason of many words, " * 20)
    lines = of_run(Findings(findings=(long,)), width).splitlines()
    said = [x for x in lines if "reason of many" in x]
    assert len(said) == 2
    assert said[-1].endswith(" …")
    assert max(map(len, said)) <= width


def test_a_long_call_is_broken_at_its_commas() -> None:
    call = 'loader = DataLoader(data, collate_fn=lambda x: (x, "a, b"), num_workers=8, pin=True)'
    lines = of_run(Findings(findings=(replace(found.LOADER, change=call),)), 60).splitlines()
    at = next(i for i, line in enumerate(lines) if "loader =" in line)
    assert lines[at : at + 3] == [
        "        loader = DataLoader(data,",
        '            collate_fn=lambda x: (x, "a, b"), num_workers=8,',
        "            pin=True)",
    ]
    joined = " ".join(line.strip() for line in lines[at : at + 3])
    assert joined == call


def test_the_next_command_explains_the_first() -> None:
    assert "next ridgeline explain loader-starves" in flat(of_run(found.findings()))
    assert "ridgeline explain loader-starves" in of_trace(found.findings())
    assert "ridgeline explain" not in of_run(found.nothing())


def test_answers_are_for_who_asks_for_more() -> None:
    assert "Is the device busy?" not in of_run(found.findings())
    assert "Is the device busy?" in of_run(found.findings(), answers=True)


def test_where_nothing_is_large_one_sentence_says_so() -> None:
    for text in (of_run(found.nothing()), of_trace(found.nothing())):
        assert "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak" in flat(text)
        assert "1 rule could not look: the trace has no recorded shapes" in flat(text)


def test_a_run_without_a_step_has_no_all_clear() -> None:
    out = io.StringIO()
    render(made_up_run.nothing(), Console(file=out, width=100))
    full = replace(made_up_run.summary().verdict, bound="memory-capacity-bound")
    render(replace(made_up_run.summary(), verdict=full), Console(file=out, width=100))
    assert "nothing above" not in out.getvalue()


def test_a_row_a_finding_tells_is_not_said_again() -> None:
    alone = {row.label for row in rows(made_up_run.summary())}
    assert {"because", "waits"} <= alone
    told = {row.label for row in rows(replace(made_up_run.summary(), findings=found.findings()))}
    assert told == alone - {"because", "waits"}


def test_a_row_stays_where_the_finding_is_about_something_else() -> None:
    other = Findings(findings=(replace(found.ITEM, file="other.py"), found.PRECISION))
    labels = {row.label for row in rows(replace(made_up_run.summary(), findings=other))}
    assert {"because", "waits"} <= labels
    little = Findings(findings=(replace(found.LOADER, share_pct=20.0),))  # of 61 % that decided
    labels = {row.label for row in rows(replace(made_up_run.summary(), findings=little))}
    assert "because" in labels


def test_recompiles_are_told_once() -> None:
    summary = replace(made_up_run.summary(), recompiles=("f: shapes changed",))
    assert "compiled" in {row.label for row in rows(summary)}
    again = replace(found.LOADER, family="compile", rule="recompiles")
    summary = replace(summary, findings=Findings(findings=(again,)))
    assert "compiled" not in {row.label for row in rows(summary)}


def test_what_a_finding_says_of_the_machine_is_said_once() -> None:
    crowded = Telemetered(program_cores=0.4, other_cores=1.6, cores=2)
    doubt = Trust(confidence="doubtful", why="other programs took 1.6 of 2 cores")
    summary = made_up_run.summary()
    summary = replace(
        summary, telemetry=crowded, verdict=replace(summary.verdict, trust=doubt)
    )  # fmt: skip
    assert {"verdict", "machine"} <= {row.label for row in rows(summary)}
    shared = replace(found.LOADER, family="machine", claim="other programs take 1.6 of 2 cores")
    told = rows(replace(summary, findings=Findings(findings=(shared,))))
    assert [row.text for row in told if row.label == "machine"] == ["program 0.4 cores"]
    assert "verdict" not in {row.label for row in told}


@pytest.mark.parametrize("nasty", NASTY)
def test_words_from_outside_cannot_move_the_cursor_or_become_markup(nasty: str) -> None:
    for text in (of_run(found.nasty(nasty), answers=True), of_trace(found.nasty(nasty))):
        unseen = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert unseen <= {"\n"}
        if "[bold]" in nasty:
            assert "[bold]not bold[/bold]" in text


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    summary = replace(made_up_run.summary(), findings=found.findings())
    render(summary, Console(file=out, width=120, force_terminal=True))
    assert not re.search(r"\x1b\[[\d;]*3\d", out.getvalue())


def test_the_number_is_coloured_and_the_claim_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    summary = replace(made_up_run.summary(), findings=found.findings())
    for width in (80, 140):
        render(
            summary, Console(file=out, width=width, force_terminal=True, color_system="standard")
        )
        assert re.search(r"\x1b\[1;36m   1  \x1b\[0mThe DataLoader", out.getvalue())


def test_a_stream_that_is_not_utf8_gets_plain_characters() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    summary = replace(made_up_run.summary(), findings=found.findings())
    render(summary, Console(file=file, width=100, highlight=False), answers=True)
    assert b"up to 2.5 x" in raw.getvalue()
