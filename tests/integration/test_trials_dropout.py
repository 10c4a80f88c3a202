"""Whole programs whose dropout drops others under a change: another layout, on a CPU."""

from pathlib import Path

import pytest

from ridgeline.optimization.judge import WITHOUT_DROPOUT
from tests.integration.dropout_judged import PROGRAM, judged

pytestmark = pytest.mark.reliability


def test_it_is_compared_without_dropout_and_equal(tmp_path: Path) -> None:
    found = judged(tmp_path, "channels-last")
    assert found.as_it_is.equality == "differs"
    assert found.redrawn.equality == "equal", found.redrawn.why
    assert found.redrawn.why.endswith(WITHOUT_DROPOUT)
    (dropout,) = (check for check in found.redrawn.checks if check.what == "dropout")
    # 8 steps of a fifth of 16 × 16 × 8 × 8 elements, and a tenth of 16 × 64 × 64 attention weights
    asked = f"{8 * (3277 + 6554):,}"
    assert dropout.text == f"dropout is called for {asked} elements, as in the baseline"


def test_what_computes_something_else_there_is_still_told(tmp_path: Path) -> None:
    """Where the layout is another, it learns faster."""
    cheats = PROGRAM.replace(
        "    loss.backward()",
        "    last = net.conv.weight.is_contiguous(memory_format=torch.channels_last)\n"
        "    (loss * (1.5 if last else 1.0)).backward()",
    )
    found = judged(tmp_path, "channels-last", program=cheats)
    assert found.redrawn.equality == "differs"


def test_a_type_that_drops_the_same_needs_no_other_trial(tmp_path: Path) -> None:
    found = judged(tmp_path, "autocast", program=PROGRAM.replace("0.1 if", "0.0 if"))
    assert found.as_it_is.equality in ("equal", "weak")
    assert found.trials == 0
