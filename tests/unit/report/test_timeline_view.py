"""The timeline and the source as figures of a page: small, complete, and with nobody's markup."""

import json
import re

import pytest
from msgspec.structs import replace

from ridgeline.records.finding import Finding, LineChange
from ridgeline.records.run import PythonLine, PythonView
from ridgeline.records.timeline import SourceLines, Timeline, TimelineLane, Work
from ridgeline.records.trace import Place
from ridgeline.report.document import Document, Section, Span
from ridgeline.report.renderers import html
from ridgeline.report.views.findings import FAMILY_KINDS, findings_claims
from ridgeline.report.views.timeline import drawing, source_drawing, timeline_section
from tests.unit.report.made_up_trace import NASTY

MAX_PAYLOAD_BYTES = 1_500_000


def made_up(events: int = 4, name: str = "aten::mm", **fields: object) -> Timeline:
    place = Place(file="train.py", line=12, function="decode")
    works = (
        Work(name=name, kind="forward", place=place, shape="[2,3]", stack=("main.py(1): a", "b")),
        Work(name="input", kind="input", host="enumerate(DataLoader)"),
    )
    lane = TimelineLane(
        kind="host", thread="7", role="main",
        start_ns=tuple(range(1_000, 1_000 + 50 * events, 50)), length_ns=(40,) * events,
        depth=(0,) * events, work=tuple(i % 2 for i in range(events)),
    )  # fmt: skip
    length = 2_000 + 50 * events
    return Timeline(length_ns=length, works=works, lanes=(lane,), **fields)  # type: ignore[arg-type]


def finding(**fields: object) -> Finding:
    given = {
        "rule": "loader-starves", "family": "input", "claim": "Training waits",
        "share_pct": 30.0, "gain_bound": 1.4, "confidence": "high",
        "file": "train.py", "line": 14, "function": "Set.decode",
    } | fields  # fmt: skip
    return Finding(**given)  # type: ignore[arg-type]


def page(*blocks: object) -> str:
    section = Section(title="x", blocks=blocks)  # type: ignore[arg-type]
    return html.render(Document(answer=(Span("x"),), blocks=(section,)))


def payload(text: str) -> str:
    found = re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return found[1]


def test_a_timeline_keeps_every_event_and_what_it_was() -> None:
    made = made_up()
    drawn = drawing(made)
    (lane,) = drawn.lanes
    starts = [sum(lane.starts[: i + 1]) for i in range(len(lane.starts))]
    assert tuple(starts) == made.lanes[0].start_ns
    assert (lane.lengths, lane.works) == (made.lanes[0].length_ns, made.lanes[0].work)
    assert [drawn.texts[i] for i in drawn.names] == ["aten::mm", "input"]
    assert [drawn.all_kinds[i].name for i in drawn.kinds] == ["forward", "input"]
    assert drawn.places == (0, -1)
    assert drawn.all_places == ("train.py:12",)
    facts = {fact.label: [drawn.texts[i] if i >= 0 else "" for i in fact.texts]
             for fact in drawn.facts}  # fmt: skip
    assert facts["shape"] == ["[2,3]", ""]
    assert facts["the host was in"] == ["", "enumerate(DataLoader)"]
    assert "module" not in facts


def test_sixty_thousand_events_fit_into_a_page() -> None:
    text = page(drawing(made_up(60_000)))
    assert len(payload(text).encode()) < MAX_PAYLOAD_BYTES
    assert len(text.encode()) < html.MAX_PAGE_BYTES


def test_what_was_left_out_is_said() -> None:
    made = made_up(left_out=1_234, longest_left_out_ns=5_000, lanes_left_out=3,
                   whole_from_ns=1_000_000, whole_until_ns=2_000_000)  # fmt: skip
    caption = drawing(made).caption
    for number in ("1,234", "5 µs", "3 lanes", "1 ms", "2 ms"):
        assert number in caption
    assert drawing(made_up()).caption == ""


def test_the_title_is_the_finding() -> None:
    idle = made_up(idle_share=0.61, main_cause="input", main_cause_share=0.8)
    assert "61 %" in drawing(idle).title
    assert "input" in drawing(idle).title
    assert "input" not in drawing(replace(idle, idle_share=0.01)).title
    host = made_up(main_phase="backward", main_phase_share=0.44)
    assert "backward" in drawing(host).title
    assert "44 %" in drawing(host).title


@pytest.mark.parametrize("nasty", [*NASTY, "</script><b>", "<!--", "\u2028"])
def test_hostile_names_cannot_leave_the_payload(nasty: str) -> None:
    made = made_up(name=nasty)
    work = replace(made.works[0], place=Place(file=nasty, line=1, function=nasty), stack=(nasty,),
                   module=nasty)  # fmt: skip
    lane = replace(made.lanes[0], rank=nasty, device_name=nasty, thread=nasty, role="")
    source = SourceLines(file=nasty, first=1, lines=(nasty,))
    hostile = replace(made, works=(work, made.works[1]), lanes=(lane,))
    sections = timeline_section(hostile, (source,), (finding(file=nasty, line=1, claim=nasty),))
    text = page(*sections)
    assert text.count("<script") == text.count("</script>") == 3
    assert "<b>" not in payload(text)
    json.loads(payload(text))


def test_the_source_has_marks_only_where_it_has_lines() -> None:
    source = (SourceLines(file="train.py", first=10, lines=("a", "b", "c", "d", "e")),)
    found = [finding(), finding(line=99), finding(file="other.py"), finding(line=None)]
    python = PythonView(lines=(
        PythonLine(file="train.py", line=12, function="decode", total_share=0.3),
        PythonLine(file="train.py", line=13, function="decode", total_share=0.0001),
    ))  # fmt: skip
    drawn = source_drawing(source, found, python)
    assert [(mark.line, mark.kind) for mark in drawn.marks] == [(14, "finding"), (12, "time")]


def test_a_claim_knows_its_function_and_the_kinds_of_its_events() -> None:
    (claim,) = findings_claims(_findings(finding()))
    assert (claim.place, claim.function, claim.kinds) == ("train.py:14", "Set.decode", ("input",))
    assert claim.confidence == "high"


def test_a_claim_shows_the_lines_before_and_after_with_signs() -> None:
    edit = LineChange(file="train.py", line=3, before=("x = <a>",), after=("x = <b>", "y"))
    found = _findings(finding(change="x = <b>\ny", edits=(edit,)))
    (claim,) = findings_claims(found)
    assert claim.diff.splitlines() == ["@@ train.py:3", "- x = <a>", "+ x = <b>", "+ y"]
    from ridgeline.report.views.findings import findings_section

    text = html.render(Document(answer=(Span("x"),), blocks=(findings_section(found),)))
    assert '<span class="minus">- x = &lt;a&gt;</span>' in text
    assert '<span class="plus">+ y</span>' in text


def test_every_kind_that_findings_name_has_a_colour() -> None:
    style = html.asset("style.css")
    for kinds in FAMILY_KINDS.values():
        for kind in kinds:
            assert f"--k-{kind.replace(' ', '-')}:" in style


def _findings(*found: Finding):  # type: ignore[no-untyped-def]
    from ridgeline.records.finding import Findings

    return Findings(findings=found)
