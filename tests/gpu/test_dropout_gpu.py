"""Dropout on a real GPU: in 16 bits it drops others, by another kernel too."""

from pathlib import Path

import pytest

from ridgeline.optimization.judge import WITHOUT_DROPOUT
from tests.integration.draws_judged import judged

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("fixes", [("autocast",), ("autocast", "channels-last", "compile")])
def test_sixteen_bits_are_compared_without_dropout(tmp_path: Path, fixes: tuple[str]) -> None:
    found = judged(tmp_path, *fixes)
    assert found.as_it_is.equality == "differs"
    assert found.redrawn.equality in ("equal", "weak"), found.redrawn.why
    assert found.redrawn.why.endswith(WITHOUT_DROPOUT)
