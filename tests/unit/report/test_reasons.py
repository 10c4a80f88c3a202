"""Every code of a reason has a template."""

import pytest

from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Skip, SkipKind
from ridgeline.report.reasons import TEMPLATES, explain


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
