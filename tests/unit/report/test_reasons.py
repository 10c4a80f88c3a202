"""Every reason has its words."""

import string
from enum import StrEnum

import pytest

from ridgeline.records.comparison import VerdictCode
from ridgeline.records.facts import because
from ridgeline.records.finding import AnswerCode
from ridgeline.records.machine import Disturbance
from ridgeline.records.memory import AdviceCode, MemoryNote
from ridgeline.records.optimized import Earlier, SearchCode
from ridgeline.records.parity import OutcomeCode
from ridgeline.records.reason_codes import ByHand, Done, Obstacle, Skip, SkipKind
from ridgeline.records.run_summary import MissingCode
from ridgeline.records.trace import TraceVerdict
from ridgeline.records.trial import TrialFailure
from ridgeline.records.verdict import DecidingCode, DoubtCode, LimitCode
from ridgeline.report.reasons import TEMPLATES, explain, explain_earlier
from ridgeline.report.run_reasons import NUMBERS

ENUMS = [
    SearchCode,
    Skip,
    Done,
    ByHand,
    Obstacle,
    TrialFailure,
    VerdictCode,
    LimitCode,
    DoubtCode,
    MissingCode,
    TraceVerdict,
    OutcomeCode,
    Disturbance,
    AnswerCode,
    AdviceCode,
    MemoryNote,
]


@pytest.mark.parametrize("code", list(Skip))
def test_every_reason_to_skip_a_fix_has_a_template_and_a_kind(code: Skip) -> None:
    assert TEMPLATES[code.value]
    assert isinstance(code.kind, SkipKind)


def test_facts_are_formatted_with_their_units() -> None:
    assert explain(None) == ""
    reason = because(Skip.NODE_TOO_SMALL, threads=8, workers=1, cores=4)
    assert explain(reason) == "8 threads and 1 worker need more than the 4 cores of a NUMA node"
    reason = because(Skip.OUTPUTS_TOO_FAR_OFF, dtype="int8", error_share=0.25)
    assert explain(reason) == "in int8 its outputs are off by 25 % of their norm"


def test_the_kind_of_a_code_read_from_a_record_is_known() -> None:
    assert Skip("skip.no-gpu").kind is SkipKind.MACHINE


@pytest.mark.parametrize("codes", ENUMS)
def test_every_code_has_a_template(codes: type[StrEnum]) -> None:
    assert not set(codes) - set(TEMPLATES)


def test_no_template_is_left_over() -> None:
    assert set(TEMPLATES) == {code for codes in ENUMS for code in codes}
    assert set(NUMBERS) == set(DecidingCode)


def test_templates_name_their_facts() -> None:
    for template in TEMPLATES.values():
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        assert all(name.isidentifier() for name in names)


def test_the_cause_of_a_reason_is_printed_with_it() -> None:
    killed = because(TrialFailure.KILLED, signal="SIGKILL")
    stopped = because(SearchCode.BASELINE_RUN_FAILED, cause=killed, run=1)
    assert "SIGKILL" in explain(stopped)
    assert explain(None) == ""


def test_a_reason_can_be_printed_without_figures() -> None:
    facts = {"value": 0.93, "ci_low": 0.9, "ci_high": 0.96, "pairs": 2}
    slower = because(SearchCode.SLOWER, **facts)  # type: ignore[arg-type]
    assert "0.93" in explain(slower)
    assert "0.93" not in explain(slower, figures=False)
    assert explain_earlier(Earlier(reason=slower)).startswith("alone: ")


def test_an_interval_of_two_rounds_is_not_written_with_all_its_digits() -> None:
    facts = {"value": 2.79, "ci_low": 1e-17, "ci_high": 2754007842776496472064.0, "pairs": 2}
    text = explain(because(SearchCode.UNDECIDED, **facts))  # type: ignore[arg-type]
    assert "2.79 × [<0.01, >1,000]" in text
