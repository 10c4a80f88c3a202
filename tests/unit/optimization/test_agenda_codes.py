"""What has to be allowed is named as the caller writes it: as an option or as an argument."""

import pytest

from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.optimized import SearchCode
from tests.unit.optimization.fake_bench import FakeBench, candidate, times


@pytest.mark.parametrize(
    ("as_arguments", "allow", "batch"),
    [
        (False, SearchCode.NEEDS_ALLOW, SearchCode.NEEDS_BATCH),
        (True, SearchCode.NEEDS_ALLOW_ARGUMENT, SearchCode.NEEDS_BATCH_ARGUMENT),
    ],
)
def test_a_fix_that_must_be_allowed_says_how(
    as_arguments: bool, allow: SearchCode, batch: SearchCode
) -> None:
    fixes = [candidate(name, alters="semantics") for name in ("int8-dynamic", "larger-batch")]
    wants = SearchSettings(as_arguments=as_arguments)
    found = Ladder(FakeBench(times()), fixes, wants).climb("train.py")
    assert [rung.reason.code for rung in found.rungs] == [allow, batch]
    assert found.rungs[0].reason.facts == {"fix": "int8-dynamic"}
