"""Activations that own a peak near what there is."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.peak_memory import activation_peak as look
from ridgeline.records.run import OutOfMemory
from ridgeline.records.sites import OpSite, Sites
from ridgeline.records.step_work import ModuleMemory
from tests.unit.diagnosis.rules.made_up_memory import FILE, GIB, capture, case

STACK = """\
class Net(nn.Module):
    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.mask)
        return x
"""
BLOCKS = (
    ModuleMemory(kind="Net", depth=0, calls=1, held_bytes=80.0 * GIB),
    ModuleMemory(kind="Block", depth=1, calls=20, held_bytes=80.0 * GIB, last_bytes=16.0 * GIB),
    ModuleMemory(kind="Linear", depth=2, calls=40, held_bytes=60.0 * GIB),
)


def full(text: str = STACK, peak: int = 100, held: float = 80.0, **changed: Any) -> Case:
    made = case(text, **changed)
    assert made.traced_memory is not None
    return replace(
        made,
        memory=replace(made.memory, device_peak_bytes=peak * GIB),
        traced_memory=replace(made.traced_memory, forward_bytes=held * GIB, modules=BLOCKS),
        sites=Sites(ops=(OpSite(op="aten::mm", phase="forward", module="Net_0 / Block_3",
                                device_ns=20e6),)),
    )  # fmt: skip


def test_names_the_blocks_what_checkpointing_saves_and_what_it_costs() -> None:
    (finding,) = look(full())
    assert finding.rule == "activation-peak"
    assert finding.module == "Block"
    assert finding.place == f"{FILE}:4"
    assert finding.function == "forward"
    # 80 GiB, less 20 results of 0.8 and one block of 4 worked on
    assert finding.memory_pct == pytest.approx(60.0)
    assert finding.share_pct == 0
    assert finding.change.startswith("x = checkpoint(block, x, self.mask, use_reentrant=False)")
    assert any("20 % of the step is computed again" in e.text for e in finding.evidence)


def test_blocks_never_hold_more_than_all_there_is() -> None:
    """No steps are marked: calls of three steps, 240 GiB held, of 80 a step."""
    made = full()
    assert made.traced_memory is not None
    several = tuple(
        replace(m, calls=3 * m.calls, held_bytes=3 * m.held_bytes, last_bytes=3 * m.last_bytes)
        for m in BLOCKS
    )
    (finding,) = look(replace(made, traced_memory=replace(made.traced_memory, modules=several)))
    assert "100 % of them in Block" in finding.claim
    assert finding.memory_pct == pytest.approx(60.0)
    assert any("20 calls a step" in e.text for e in finding.evidence)


def test_silent_where_half_of_the_device_is_free() -> None:
    assert not list(look(full(peak=60, held=50.0)))


def test_silent_where_activations_are_not_the_most() -> None:
    assert not list(look(full(held=50.0)))


def test_without_modules_it_still_says_so() -> None:
    made = full("")
    assert made.traced_memory is not None
    (finding,) = look(replace(made, traced_memory=replace(made.traced_memory, modules=())))
    assert finding.confidence == "medium"
    assert finding.file == ""


def test_out_of_memory_before_any_step_takes_the_lines_that_were_alive() -> None:
    oom = OutOfMemory(
        asked_bytes=GIB, free_bytes=0, total_bytes=140 * GIB, allocated_bytes=100 * GIB,
        alive=((f"{FILE}:4", 70 * GIB, 40), (f"{FILE}:1", 20 * GIB, 10), ("", GIB, 1)),
    )  # fmt: skip
    made = replace(case(STACK), capture=capture(out_of_memory=oom), traced_memory=None)
    (finding,) = look(made)
    assert "Out of memory with 70 GiB of 100 GiB" in finding.claim
    assert finding.place == f"{FILE}:4"
    assert finding.memory_pct == 70
    parameters = replace(oom, alive=((f"{FILE}:1", 90 * GIB, 10),))
    assert not list(look(replace(made, capture=capture(out_of_memory=parameters))))
