"""Optimizer state in a memory that is short."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rules.optimizer_state import look
from ridgeline.records.run import ModuleSeen, OptimizerSeen
from tests.unit.diagnose.rules.made_up_memory import FILE, GIB, capture, case

TEXT = """\
def main():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
"""


def state(name: str = "AdamW", parameters: int = 20, peak: int = 90, **changed: Any) -> Case:
    made = case(TEXT, **changed)
    modules = (ModuleSeen(name="Net", calls=9, parameter_bytes=parameters * GIB),)
    optimizers = (OptimizerSeen(name=name, steps=9, place=f"{FILE}:9"),)
    return replace(
        made,
        capture=capture(modules=modules, optimizers=optimizers),
        memory=replace(made.memory, device_peak_bytes=peak * GIB),
    )


def test_adam_keeps_twice_the_parameters() -> None:
    (finding,) = look(state())
    assert finding.rule == "optimizer-state"
    assert finding.place == f"{FILE}:3"
    assert "AdamW keeps 40 GiB of state, 44.4 % of the peak" in finding.claim
    assert finding.memory_pct == 44.44
    assert finding.share_pct == 0
    assert finding.change.startswith("torch.optim.Adafactor(model.parameters())")


def test_without_its_line_the_step_is_the_place() -> None:
    (finding,) = look(replace(state(), sources=case("").sources))
    assert finding.place == f"{FILE}:9"
    assert finding.confidence == "medium"


def test_silent_where_memory_is_not_short() -> None:
    assert not list(look(state(parameters=10, peak=45)))


def test_silent_where_state_is_not_what_fills_it() -> None:
    assert not list(look(state(parameters=10)))
    assert not list(look(state(name="SGD")))


def test_silent_where_the_sum_cannot_be_right() -> None:
    """Sharded over ranks, or of frozen parameters: more state than was ever allocated."""
    assert not list(look(state(parameters=60)))
