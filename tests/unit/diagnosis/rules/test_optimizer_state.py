"""Optimizer state in a memory that is half full."""

import ast
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.peak_memory import optimizer_state as look
from ridgeline.records.run import ModuleSeen, OptimizerSeen, OutOfMemory
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_memory import FILE, GIB, capture, case

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
    assert finding.claim.endswith("which is 64.3 % of the device")
    assert finding.change == (
        "torch.optim.Adafactor(model.parameters(), lr=1e-4, weight_decay=1e-2)  # or an 8-bit AdamW"
    )


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        ("AdamW(net.parameters(), 3e-4)", "net.parameters(), lr=3e-4, weight_decay=1e-2"),
        ("AdamW(lr=RATE, params=net.parameters(), betas=(0.9, 0.95), weight_decay=0.1)",
         "net.parameters(), lr=RATE, weight_decay=0.1"),
        ("AdamW(parts(net, decay=0.1), lr=1e-3, weight_decay=0)",
         "parts(net, decay=0.1), lr=1e-3, weight_decay=0"),
        ("AdamW([{'params': a, 'lr': 1e-5}, {'params': b}], lr=1e-3, weight_decay=0)",
         "[{'params': a, 'lr': 1e-5}, {'params': b}], lr=1e-3, weight_decay=0"),
        ("AdamW(\n        net.parameters(),\n        **options)",
         "net.parameters(), lr=1e-3, weight_decay=1e-2"),
        ("AdamW(*given)", "model.parameters(), lr=1e-3, weight_decay=1e-2"),
    ],
)  # fmt: skip
def test_the_fix_keeps_their_own_parameters_and_rate(made: str, kept: str) -> None:
    source = SourceFiles(texts={FILE: f"def main():\n    optimizer = torch.optim.{made}\n"})
    (finding,) = look(replace(state(), sources=source))
    assert finding.change == f"torch.optim.Adafactor({kept})  # or an 8-bit AdamW"
    ast.parse(finding.change)


def test_a_rate_that_was_not_given_is_the_optimizers_own() -> None:
    source = SourceFiles(texts={FILE: "made = NAdam(net.parameters())\n"})
    (finding,) = look(replace(state(name="NAdam"), sources=source))
    assert "Adafactor(net.parameters(), lr=2e-3)" in finding.change


def test_without_its_line_the_step_is_the_place() -> None:
    (finding,) = look(replace(state(), sources=case("").sources))
    assert finding.place == f"{FILE}:9"
    assert finding.confidence == "medium"


def test_out_of_memory_is_said() -> None:
    made = state()
    assert made.capture is not None
    oom = OutOfMemory(asked_bytes=GIB, free_bytes=0, total_bytes=140 * GIB)
    (finding,) = look(replace(made, capture=replace(made.capture, out_of_memory=oom)))
    assert finding.claim.endswith("and the program ran out of memory")


def test_silent_where_half_of_the_device_is_free() -> None:
    assert not list(look(state(parameters=10, peak=45)))


def test_silent_where_state_is_not_what_fills_it() -> None:
    assert not list(look(state(parameters=10)))
    assert not list(look(state(name="SGD")))


def test_silent_where_the_sum_cannot_be_right() -> None:
    """Sharded over ranks, or of frozen parameters: more state than was ever allocated."""
    assert not list(look(state(parameters=60)))
