"""Gradients that nothing clears make wrong results, and come first."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rules.kept_graphs import gradients_not_zeroed as look
from ridgeline.records.run import Flags
from ridgeline.report.views.findings import gain_text, is_worth_a_line
from tests.unit.diagnosis.rules.made_up_memory import FILE, KEEPS_GRAPH, capture, growing

STEPS = """\
def train(model, loader, sgd):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        {line}
"""


def case(checked: int, kept: int, line: str = "sgd.step()", scaler: bool = False) -> Case:
    seen = capture()
    (optimizer,) = seen.optimizers
    optimizer = replace(
        optimizer, place=f"{FILE}:5", gradients_checked=checked, gradients_kept=kept
    )
    made = growing(STEPS.format(line=line), each=0)
    flags = Flags(gradient_scaler=scaler)
    return replace(made, capture=replace(seen, optimizers=(optimizer,), flags=flags))


def test_the_finding_names_the_line_where_the_optimizer_steps() -> None:
    (finding,) = look(case(16, 16))
    assert (finding.file, finding.line, finding.function) == (FILE, 5, "train")
    assert finding.wrong_results
    assert finding.change.startswith("sgd.zero_grad()")
    assert (finding.share_pct, finding.gain_bound) == (0.0, 1.0)


def test_the_change_names_the_optimizer_that_a_scaler_steps() -> None:
    (finding,) = look(case(16, 16, "scaler.step(sgd)", scaler=True))
    assert finding.change.startswith("sgd.zero_grad()")


@pytest.mark.parametrize(("checked", "kept"), [(16, 0), (16, 15), (4, 4), (0, 0)])
def test_silent_where_they_are_cleared_or_too_few_steps_were_seen(checked: int, kept: int) -> None:
    assert not list(look(case(checked, kept)))


def test_wrong_results_come_before_everything_and_promise_no_speed() -> None:
    seen = case(16, 16).capture
    drawn = findings(replace(growing(KEEPS_GRAPH, unrun=9.0), capture=seen), Attempts()).findings
    assert [f.rule for f in drawn][:2] == ["gradients-not-zeroed", "graph-kept"]
    assert is_worth_a_line(drawn[0])
    assert "×" not in gain_text(drawn[0])
