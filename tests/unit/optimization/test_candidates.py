"""In which order changes are tried, and which are not."""

from typing import Literal

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.diagnosis import ground_of
from ridgeline.records.facts import because
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import SearchCode
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import Capture, LoaderSeen, OptimizerSeen

CPU = Ground(
    device="cpu", emulated=("bfloat16",), products_share=0.4, optimizer_share=0.4,
    optimizers=(OptimizerSeen(name="AdamW", steps=10, anchor=True),),
)  # fmt: skip


def finding(rule: str, bound: float) -> Finding:
    return Finding(
        rule=rule, id=rule, claim="", share_pct=40.0, gain_bound=bound, confidence="high"
    )


def test_what_answers_a_finding_comes_before_what_only_might() -> None:
    found = [one for one in candidates(CPU, [finding("unfused-optimizer", 1.7)]) if not one.unable]
    assert found[0].fix.id in ("fused-optimizer", "foreach-optimizer")
    assert found[0].promise >= 1.7
    names = [one.fix.id for one in found]
    assert names.index("fused-optimizer") < names.index("compile")


def test_what_cannot_win_stands_last_with_its_reason() -> None:
    found = candidates(CPU, [])
    unable = [one for one in found if one.unable]
    assert found[-len(unable) :] == unable
    reasons = {one.fix.id: one.unable for one in unable}
    assert reasons["autocast"] == because(Skip.DTYPE_EMULATED, dtype="bfloat16")
    assert reasons["tf32"] == because(Skip.NO_GPU)
    assert reasons["checkpointing"] == because(SearchCode.SAVES_MEMORY, goal="speed")


@pytest.mark.parametrize(("stepping", "updates", "trains"), [
    ("optimizer", True, True), ("backward", False, True), ("call", False, False),
    ("said", True, True), ("said", False, False),
])  # fmt: skip
def test_a_program_that_says_its_steps_trains_where_an_optimizer_stepped(
    stepping: Literal["said", "optimizer", "backward", "call"], updates: bool, trains: bool
) -> None:
    seen = (OptimizerSeen(name="SGD"),) if updates else ()
    capture = Capture(stepping=stepping, optimizers=seen)
    assert ground_of(Case(capture=capture)).trains is trains


def test_graphs_come_first_where_launches_are_waited_for_and_not_where_batches_are() -> None:
    gpu = Ground(device="cuda", capability=(9, 0), busy=0.3, loaders=(LoaderSeen(),))

    def first(ground: Ground) -> str:
        return next(one.fix.id for one in candidates(ground, ()) if not one.unable)

    assert first(gpu) == "compile-reduce-overhead"
    assert first(replace(gpu, input_share=0.6)) in ("loader-workers", "pin-memory")
