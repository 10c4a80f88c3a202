"""What is said of each change while `ridgeline optimize` works."""

import io
from typing import Any

import pytest
from rich.console import Console

from ridgeline.cli import optimize_progress
from ridgeline.cli.optimize_progress import ClockedLine, settled, shown_progress
from ridgeline.records.facts import Ratio, because
from ridgeline.records.optimized import Rung
from ridgeline.records.trial import TrialFailure

SLOWER = Ratio(value=0.9, ci_low=0.85, ci_high=0.95, pairs=2)


def compiled(status: Any, why: str, **told: Any) -> Rung:
    reason = because(TrialFailure.RAISED, error=why)
    return Rung(fix="compile", title="torch.compile", status=status, reason=reason, **told)


def test_a_fix_is_named_with_the_fixes_it_was_tried_with() -> None:
    both = compiled("rejected", "worse", ratio=SLOWER, together=("channels-last",))
    assert settled(both) == (
        "✗ torch.compile with channels-last convolutions: rejected, worse: 0.90 × [0.85, 0.95]"
    )
    kept = compiled("kept", "2.00 ×", together=("channels-last", "of-a-later-version"))
    assert settled(kept) == (
        "✓ torch.compile with channels-last convolutions, of-a-later-version: kept, 2.00 ×"
    )


def test_a_fix_that_was_tried_alone_is_named_alone() -> None:
    alone = compiled("rejected", "worse: 0.90 × [0.85, 0.95]", ratio=SLOWER)
    assert settled(alone).startswith("✗ torch.compile: rejected, ")


def test_a_fix_that_is_dropped_later_is_named_without_partners() -> None:
    gone = compiled("dropped", "no longer of use", together=("channels-last",))
    assert settled(gone) == "✗ torch.compile: dropped, no longer of use"


def test_the_progress_line_shows_the_current_time_at_each_redraw() -> None:
    times = iter(["0:01 of 10:00", "0:02 of 10:00"])
    line = ClockedLine(lambda: next(times))
    line.say("trying [fused] optimizers")
    drawn = []
    for _ in range(2):
        with Console(file=io.StringIO(), width=80) as console, console.capture() as seen:
            console.print(line)
        drawn.append(seen.get().strip())
    assert drawn == [
        "0:01 of 10:00  trying [fused] optimizers",
        "0:02 of 10:00  trying [fused] optimizers",
    ]


def test_without_a_terminal_each_event_prints_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optimize_progress.time, "monotonic", iter((0.0, 61.0, 99.0)).__next__)
    with shown_progress(False, 600.0) as speaking:
        speaking.doing("looking")
    assert capsys.readouterr().err == "1:01 of 10:00  looking\n"
