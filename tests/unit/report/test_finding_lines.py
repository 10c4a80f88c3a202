"""Which findings get a line, and what stands in it."""

import pytest
from msgspec.structs import replace

from ridgeline.records.finding import Evidence, Finding, Findings
from ridgeline.report.finding_lines import lines, nothing, rest, short_place, unlooked
from ridgeline.report.finding_markdown import findings_markdown
from tests.unit.report import made_up_findings as made


def test_each_line_has_its_number_claim_place_and_bound() -> None:
    first, second, third, fourth = lines(made.findings())
    assert first.claim == made.LOADER.claim
    assert (first.number, first.place, first.gain) == (1, "data.py:41", "up to 2.5 ×")
    assert (second.claim, second.gain) == (
        "fp32 matrix products: TF32 is off",
        "up to 1.29 ×, after 1",
    )
    assert third.gain == "up to 1.05 ×, same time as 1"
    assert (fourth.gain, fourth.place) == ("up to 31 % less memory", "Block_3 / Attention_3")


def test_a_low_confidence_says_perhaps() -> None:
    assert [line.claim.startswith("perhaps: ") for line in lines(made.findings())] == [
        False, False, True, False,
    ]  # fmt: skip


def test_the_first_two_have_their_fix() -> None:
    assert [len(line.code) for line in lines(made.findings())] == [2, 1, 0, 0]


def test_what_has_no_line_is_counted() -> None:
    said = "and 1 more below 3 %, 1 read in the source, not measured: no-pin"
    assert rest(made.findings()) == said
    placed = replace(made.READ, file="train.py", line=9)
    assert rest(Findings(findings=(made.LOADER, placed))).endswith("no-pin at train.py:9")
    assert nothing(Findings(findings=(placed,))).endswith("no-pin at train.py:9")
    assert "below" not in nothing(Findings(findings=(placed,)))
    assert rest(Findings(findings=(made.LOADER, made.SMALL))) == "and 1 more below 3 %"
    assert rest(Findings(findings=(made.LOADER,))) == ""
    many = Findings(findings=(*[made.LOADER] * 7, made.SMALL))
    assert len(lines(many)) == 5
    assert rest(many) == "and 2 more above 3 %, 1 below it"


@pytest.mark.parametrize(
    ("share", "memory", "told"), [(3.0, 0.0, True), (2.99, 9.9, False), (0.0, 10.0, True)]
)
def test_a_line_is_given_from_3_percent_of_the_step_or_10_of_the_peak(
    share: float, memory: float, told: bool
) -> None:
    found = Finding(rule="x", claim="x", share_pct=share, memory_pct=memory)
    assert bool(lines(Findings(findings=(found,)))) is told


@pytest.mark.parametrize(
    ("bound", "said"),
    [(1.031, "1.04"), (1.1, "1.1"), (1.2821, "1.29"), (2.41, "2.5"), (9.91, "10")],
)
def test_a_bound_is_rounded_up_so_that_no_gain_passes_it(bound: float, said: str) -> None:
    (line,) = lines(Findings(findings=(replace(made.LOADER, gain_bound=bound),)))
    assert line.gain == f"up to {said} ×"


@pytest.mark.parametrize("bound", [10.5, 200.0])
def test_a_very_large_bound_is_printed_as_almost_all_of_the_step(bound: float) -> None:
    (line,) = lines(Findings(findings=(replace(made.LOADER, gain_bound=bound),)))
    assert "×" not in line.gain
    assert "almost all" in line.gain


def test_a_finding_that_saves_time_and_memory_says_both() -> None:
    both = replace(made.LOADER, memory_pct=20.0)
    assert lines(Findings(findings=(both,)))[0].gain == "up to 2.5 ×, 20 % less memory"


def test_memory_that_grows_is_told_by_the_step_and_not_as_part_of_the_peak() -> None:
    growth = Evidence(what="growth", text="1.13 MiB a step", value=1.13 * 2**20)
    leak = Finding(rule="memory-leak", claim="x", memory_pct=100.0, evidence=(growth,))
    assert lines(Findings(findings=(leak,)))[0].gain == "ends growth of 1.13 MiB a step"
    assert "less memory" not in "\n".join(findings_markdown(Findings(findings=(leak,))))


def test_a_relation_to_a_finding_without_a_line_names_its_rule() -> None:
    (line,) = lines(Findings(findings=(made.PRECISION,)))
    assert line.gain == "up to 1.29 ×, after loader-starves"


def test_where_nothing_is_large_the_ceiling_and_the_rest_are_told() -> None:
    assert nothing(made.nothing()) == (
        "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak (datasheet); "
        "what remains is arithmetic 61 % (most of it matmul), memory traffic 25 %"
    )
    assert nothing(Findings()) == "nothing above 3 %"
    assert rest(made.nothing()) == ""
    assert nothing(made.findings()) == ""


def test_rules_that_could_not_look_are_no_all_clear() -> None:
    """Those for a GPU or for ranks are not meant here: they lack nothing."""
    assert unlooked(made.findings()) == ("1 rule could not look: the trace has no recorded shapes")
    assert unlooked(Findings(unlooked=("a: no gpu", "b: no ranks", "c: no capture"))) == ""


def test_what_rules_lacked_is_said_in_words() -> None:
    blind = Findings(unlooked=("a: no sites, stacks", "b: no stacks", "c: no shapes"))
    assert unlooked(blind) == (
        "3 rules could not look: the trace has no operators, no Python stacks and no recorded "
        "shapes"
    )
    two = Findings(unlooked=("a: no stacks", "c: no shapes"))
    assert unlooked(two).endswith("the trace has no Python stacks and no recorded shapes")
    none = Findings(unlooked=("a: no trace, sites", "b: no stacks"))
    assert unlooked(none) == "2 rules could not look: no step was traced"


def test_silence_about_a_waiting_device_is_no_all_clear() -> None:
    said = "98 % of the step is not the model's work, and no rule explains it: Python 98 %"
    assert nothing(Findings(unexplained=said)) == said
    with_small = nothing(replace(made.nothing(), unexplained=said))
    assert with_small == f"{said}; 1 finding below 3 %"
    assert nothing(replace(made.findings(), unexplained=said)) == ""


def test_a_long_place_keeps_its_end() -> None:
    far = replace(made.LOADER, file="/home/someone/projects/thing/src/thing/data/loader.py")
    assert short_place(far) == "data/loader.py:41"


def test_a_graph_kept_for_ever_has_a_line_however_small() -> None:
    kept = Finding(rule="graph-kept", claim="x", memory_pct=2.06, confidence="medium")
    (line,) = lines(Findings(findings=(kept,)))
    assert line.gain == "up to 2 % less memory"
    assert not lines(Findings(findings=(replace(kept, confidence="low"),)))
