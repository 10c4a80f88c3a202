"""Which findings get a line, what stands in it, and what is said of the others."""

import io
import re
import unicodedata

import pytest
from msgspec.structs import replace
from rich.console import Console

from ridgeline.records.finding import Evidence, Finding, Findings, UnaskedRule
from ridgeline.report.document import Claim, Document, Span, plain
from ridgeline.report.renderers import markdown, terminal
from ridgeline.report.views.findings import (
    answers_section,
    closing_sentences,
    findings_claims,
    findings_data,
    findings_section,
    short_place,
)
from tests.unit.report import made_up_findings as made
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import at_terminal, bare_page


def lacking(*parts: str) -> tuple[UnaskedRule, ...]:
    """Return a rule for each list of parts that it lacks."""
    return tuple(UnaskedRule(f"rule-{i}", tuple(lacks.split())) for i, lacks in enumerate(parts))


def only_claim(finding: Finding) -> Claim:
    (claim,) = findings_claims(Findings(findings=(finding,)))
    return claim


def test_each_claim_has_its_text_its_place_and_its_bound() -> None:
    first, second, third, fourth = findings_claims(made.findings())
    assert plain(first.text) == made.LOADER.claim
    assert (first.short_place, first.gain) == ("data.py:41", "up to 2.5 ×")
    assert (plain(second.text), second.gain) == (
        "fp32 matrix products: TF32 is off",
        "up to 1.29 ×, after 1",
    )
    assert third.gain == "up to 1.05 ×, same time as 1"
    assert (fourth.gain, fourth.short_place) == ("up to 31 % less memory", "Block_3 / Attention_3")


def test_code_in_a_claim_is_code_in_every_format() -> None:
    spans = findings_claims(made.findings())[0].text
    assert not isinstance(spans, str)
    assert [span.text for span in spans if span.code] == ["decode()"]


def test_a_claim_of_low_confidence_begins_with_perhaps() -> None:
    texts = [plain(claim.text) for claim in findings_claims(made.findings())]
    assert [text.startswith("perhaps: ") for text in texts] == [False, False, True, False]


def test_a_short_view_shows_the_code_of_the_first_two_claims() -> None:
    claims = findings_claims(made.findings())
    assert [claim.shows_code for claim in claims] == [True, True, False, False]
    assert [len(claim.code) for claim in claims] == [2, 1, 1, 0]


def test_evidence_ends_with_the_confidence_and_the_command_that_explains() -> None:
    evidence = findings_claims(made.findings())[0].evidence
    assert [(e.label, plain(e.lines[0])) for e in evidence] == [
        ("input wait", "93 ms, 61 % of the step (measured)"),
        ("workers", "num_workers=0 (read)"),
        ("confidence", "high"),
        ("more", "`ridgeline explain loader-starves`"),
    ]


def test_findings_without_a_line_are_counted() -> None:
    counts = "and 1 more below 3 %, 1 read in the source, not measured: no-pin"
    assert closing_sentences(made.findings()) == (counts,)
    placed = replace(made.READ, file="train.py", line=9)
    assert closing_sentences(Findings(findings=(made.LOADER, placed))) == (
        "and 1 more read in the source, not measured: no-pin at train.py:9",
    )
    assert closing_sentences(Findings(findings=(placed,))) == (
        "nothing above 3 %; 1 finding read in the source, not measured: no-pin at train.py:9",
    )
    two = Findings(findings=(made.LOADER, made.SMALL))
    assert closing_sentences(two) == ("and 1 more below 3 %",)
    assert closing_sentences(Findings(findings=(made.LOADER,))) == ()
    many = Findings(findings=(*[made.LOADER] * 7, made.SMALL))
    assert len(findings_claims(many)) == 5
    assert closing_sentences(many) == ("and 2 more above 3 %, 1 below it",)


@pytest.mark.parametrize(
    ("share", "memory", "is_shown"), [(3.0, 0.0, True), (2.99, 9.9, False), (0.0, 10.0, True)]
)
def test_a_finding_has_a_line_from_3_percent_of_the_step_or_10_of_the_peak_on(
    share: float, memory: float, is_shown: bool
) -> None:
    finding = Finding(rule="x", claim="x", share_pct=share, memory_pct=memory)
    assert bool(findings_claims(Findings(findings=(finding,)))) is is_shown


@pytest.mark.parametrize(
    ("bound", "printed"),
    [(1.031, "1.04"), (1.1, "1.1"), (1.2821, "1.29"), (2.41, "2.5"), (9.91, "10")],
)
def test_a_bound_is_rounded_up_so_that_no_gain_passes_it(bound: float, printed: str) -> None:
    assert only_claim(replace(made.LOADER, gain_bound=bound)).gain == f"up to {printed} ×"


@pytest.mark.parametrize("bound", [10.5, 200.0])
def test_a_very_large_bound_is_printed_as_almost_all_of_the_step(bound: float) -> None:
    gain = only_claim(replace(made.LOADER, gain_bound=bound)).gain
    assert "×" not in gain
    assert "almost all" in gain


def test_a_finding_that_saves_time_and_memory_says_both() -> None:
    both = replace(made.LOADER, memory_pct=20.0)
    assert only_claim(both).gain == "up to 2.5 ×, 20 % less memory"


def test_memory_that_grows_is_printed_per_step_and_not_as_part_of_the_peak() -> None:
    growth = Evidence(what="growth", text="1.13 MiB a step", value=1.13 * 2**20)
    leak = Finding(rule="memory-leak", claim="x", memory_pct=100.0, evidence=(growth,))
    assert only_claim(leak).gain == "ends growth of 1.13 MiB a step"


def test_a_relation_to_a_finding_without_a_line_names_its_rule() -> None:
    assert only_claim(made.PRECISION).gain == "up to 1.29 ×, after loader-starves"


def test_without_large_findings_the_ceiling_and_the_rest_are_named() -> None:
    assert closing_sentences(made.nothing()) == (
        "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak (datasheet); "
        "what remains is arithmetic 61 % (most of it matmul), memory traffic 25 %",
        "1 rule could not check: the trace has no recorded shapes",
    )
    assert closing_sentences(Findings()) == ("nothing above 3 %",)


def test_rules_for_a_gpu_or_for_ranks_lack_nothing() -> None:
    others = Findings(unlooked=lacking("gpu", "ranks", "capture"))
    assert closing_sentences(others) == ("nothing above 3 %",)


@pytest.mark.parametrize(
    ("unlooked", "sentence"),
    [
        (
            lacking("sites stacks", "stacks", "shapes"),
            "3 rules could not check: the trace has no operators, no Python stacks and no recorded "
            "shapes",
        ),
        (
            lacking("stacks", "shapes"),
            "2 rules could not check: the trace has no Python stacks and no recorded shapes",
        ),
        (lacking("trace sites", "stacks"), "2 rules could not check: no step was traced"),
    ],
)
def test_a_sentence_says_what_rules_lacked(
    unlooked: tuple[UnaskedRule, ...], sentence: str
) -> None:
    assert closing_sentences(Findings(unlooked=unlooked))[1] == sentence


def test_unexplained_waiting_of_the_device_is_no_all_clear() -> None:
    why = "98 % of the step is not the model's work, and no rule explains it: Python 98 %"
    assert closing_sentences(Findings(unexplained=why)) == (why,)
    with_small = closing_sentences(replace(made.nothing(), unexplained=why))
    assert with_small[0] == f"{why}; 1 finding below 3 %"
    assert why not in closing_sentences(replace(made.findings(), unexplained=why))


def test_a_long_place_keeps_its_end() -> None:
    far = replace(made.LOADER, file="/home/someone/projects/thing/src/thing/data/loader.py")
    assert short_place(far) == "data/loader.py:41"


def test_a_graph_kept_for_ever_has_a_line_however_small() -> None:
    kept = Finding(rule="graph-kept", claim="x", memory_pct=2.06, confidence="medium")
    assert only_claim(kept).gain == "up to 2 % less memory"
    assert not findings_claims(Findings(findings=(replace(kept, confidence="low"),)))


def test_the_data_have_every_finding_and_the_same_keys_without_any() -> None:
    data = findings_data(made.findings())
    assert [f["rule"] for f in data["findings"]] == [f.rule for f in made.findings().findings]
    assert data["answers"][0]["question"] == "Is the device busy?"
    assert findings_data(Findings()).keys() == data.keys()


WIDTHS = [60, 80, 100, 120, 140, 200]


def section_document(findings: Findings) -> Document:
    blocks = (findings_section(findings), answers_section(findings))
    return Document(answer=(Span("a run"),), blocks=blocks)


def shown(findings: Findings, width: int = 140) -> str:
    return at_terminal(section_document(findings), width)


def test_in_a_wide_terminal_place_and_gain_stand_beside_the_claim() -> None:
    line = next(x for x in shown(made.findings()).splitlines() if x.startswith("   2  "))
    assert re.fullmatch(
        r"   2  fp32 matrix products: TF32 is off +models/model.py:88 +up to 1.29 ×, after 1", line
    )


def test_in_a_narrow_terminal_place_and_gain_stand_below_the_claim() -> None:
    lines = shown(made.findings(), 80).splitlines()
    at = next(i for i, x in enumerate(lines) if x.startswith("   2  "))
    assert lines[at + 1] == "      models/model.py:88 · up to 1.29 ×, after 1"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_shows_everything_and_no_line_is_too_long(width: int) -> None:
    text = shown(made.findings(), width)
    whole = " ".join(text.split())
    for words in ("data.py:41", "up to 2.5 ×", "same time as 1", "and 1 more below 3 %",
                  "Is the device busy?", "it waits for data 61 %"):  # fmt: skip
        assert words in whole
    for line in text.splitlines():
        assert len(line) <= width
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
def test_the_first_fix_is_always_shown_whole(change: str, width: int) -> None:
    text = shown(Findings(findings=(replace(made.LOADER, change=change),)), width)
    joined = "".join(text.split()).replace("\\", "").replace("#", "")
    code, _, comment = change.partition("  #")
    assert "".join(code.split("\n")[0].split()) in joined
    assert "".join(comment.split("\n")[0].split()) in joined
    assert max(map(len, text.splitlines())) <= width


def test_a_long_fix_shows_its_first_lines_and_counts_the_rest() -> None:
    long = replace(made.LOADER, change="\n".join(f"x = {i}" for i in range(30)))
    text = shown(Findings(findings=(long,)))
    assert "x = 10\n" in text
    assert "x = 11" not in text
    assert "… and 19 more lines" in text


@pytest.mark.parametrize("width", [80, 140])
def test_the_doubt_stands_under_the_claim_and_is_cut_after_two_lines(width: int) -> None:
    lines = shown(made.findings(), width).splitlines()
    at = next(i for i, x in enumerate(lines) if "it may be wrong" in x)
    assert lines[at] == "      it may be wrong: the disk may be as slow"
    assert lines[at + 1].startswith("        loader = DataLoader(")
    assert sum("it may be wrong" in x for x in lines) == 1  # the others have no doubt
    long = replace(made.LOADER, doubt="a reason of many words, " * 20)
    doubt = [x for x in shown(Findings(findings=(long,)), width).splitlines() if "reason of" in x]
    assert len(doubt) == 2
    assert doubt[-1].endswith(" …")
    assert max(map(len, doubt)) <= width


def test_a_long_call_is_broken_at_its_commas() -> None:
    call = 'loader = DataLoader(data, collate_fn=lambda x: (x, "a, b"), num_workers=8, pin=True)'
    lines = shown(Findings(findings=(replace(made.LOADER, change=call),)), 60).splitlines()
    at = next(i for i, line in enumerate(lines) if "loader =" in line)
    assert lines[at : at + 3] == [
        "        loader = DataLoader(data,",
        '            collate_fn=lambda x: (x, "a, b"), num_workers=8,',
        "            pin=True)",
    ]
    assert " ".join(line.strip() for line in lines[at : at + 3]) == call


def test_the_number_is_coloured_and_the_claim_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for width in (80, 140):
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=True, color_system="standard")
        terminal.render(section_document(made.findings()), console)
        assert re.search(r"\x1b\[1;36m   1  \x1b\[0mThe DataLoader", out.getvalue())


def test_a_stream_that_is_not_utf8_gets_plain_characters() -> None:
    text = at_terminal(section_document(made.findings()), 100, encoding="ascii")
    assert "up to 2.5 x" in text


def test_a_terminal_has_no_title_above_the_claims_and_a_page_has() -> None:
    report = section_document(made.findings())
    assert "what holds it back" not in at_terminal(report)
    assert '<h2 id="findings">what holds it back</h2>' in bare_page(report)
    assert "#### what holds it back" in markdown.render(report)


def test_markdown_has_a_number_the_evidence_and_the_fix() -> None:
    text = markdown.render(section_document(made.findings()))
    assert "1. **The DataLoader cannot feed the GPU: `decode()` takes 11 ms a sample, 0 w" in text
    assert "`data.py:41`: up to 2.5 ×" in text
    assert "   - input wait: 93 ms, 61 % of the step (measured)" in text
    assert "   - it may be wrong: the disk may be as slow" in text
    assert "   ```python\n   loader = DataLoader(data, num_workers=8, pin_memory=True," in text
    assert "and 1 more below 3 %" in text
    assert "\n\n\n" not in text


def test_the_page_has_the_claim_the_fix_and_the_command_that_explains() -> None:
    page = bare_page(section_document(made.findings()))
    assert "<code>decode()</code> takes 11 ms a sample" in page
    assert "<pre>loader = DataLoader(data, num_workers=8" in page
    assert "<code>ridgeline explain loader-starves</code>" in page


@pytest.mark.parametrize("nasty", NASTY)
def test_markup_in_user_text_is_escaped_in_every_format(nasty: str) -> None:
    report = section_document(made.nasty(nasty))
    text, notes, page = at_terminal(report), markdown.render(report), bare_page(report)
    for made_text in (text, notes, page):
        unseen = {c for c in made_text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert unseen <= {"\n"}
    if "[bold]" in nasty:
        assert "[bold]not bold[/bold]" in " ".join(text.split())
    assert "<script>" not in page
    outside = [x for x in notes.splitlines() if "`" not in x and x.strip() != nasty]
    assert not any("<script>" in line for line in outside)
