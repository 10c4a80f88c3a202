"""What is said of each change while `ridgeline optimize` works."""

from typing import Any

from ridgeline.cli.optimize_progress import settled
from ridgeline.records.optimized import Ratio, Rung

SLOWER = Ratio(value=0.9, ci_low=0.85, ci_high=0.95, pairs=2)


def compiled(status: Any, why: str, **told: Any) -> Rung:
    return Rung(change="compile", title="torch.compile", status=status, why=why, **told)


def test_a_change_is_named_with_those_it_was_tried_with() -> None:
    both = compiled(
        "rejected", "worse: 0.90 × [0.85, 0.95]", ratio=SLOWER, together=("channels-last",)
    )
    assert settled(both) == (
        "✗ torch.compile with channels-last convolutions: rejected, worse: 0.90 × [0.85, 0.95]"
    )
    kept = compiled("kept", "2.00 ×", together=("channels-last", "of-a-later-version"))
    assert settled(kept) == (
        "✓ torch.compile with channels-last convolutions, of-a-later-version: kept, 2.00 ×"
    )


def test_alone_it_is_named_alone() -> None:
    alone = compiled("rejected", "worse: 0.90 × [0.85, 0.95]", ratio=SLOWER)
    assert settled(alone).startswith("✗ torch.compile: rejected, ")


def test_what_is_dropped_later_is_dropped_by_itself() -> None:
    gone = compiled("dropped", "no longer of use", together=("channels-last",))
    assert settled(gone) == "✗ torch.compile: dropped, no longer of use"
