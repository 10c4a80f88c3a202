"""loss-scale-thrash: steps a gradient scaler threw away."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.precision import loss_scale_thrash as look
from ridgeline.records.run import Capture, Flags, OptimizerSeen, RunFile, Step, Target
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_precision import gpu

SOURCE = """\
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=1)
"""


def case(skipped: Sequence[bool], source: str = SOURCE) -> Case:
    steps = tuple(
        Step(index=i, start_ns=i, dur_ns=1, skipped=lost, optimizer_steps=0 if lost else 1)
        for i, lost in enumerate(skipped)
    )
    optimizer = OptimizerSeen(name="SGD", anchor=True, place="train.py:7")
    return Case(
        on_gpu=True, steps=steps, device=gpu(), sources=SourceFiles(texts={"train.py": source}),
        capture=Capture(flags=Flags(gradient_scaler=True), optimizers=(optimizer,)),
        run=RunFile(name="run", target=Target(kind="script", name="train.py")),
    )  # fmt: skip


def test_every_other_step_thrown_away() -> None:
    [found] = look(case([False] * 4 + [True, False] * 20))
    assert "threw away 20 of 44 steps" in found.claim
    assert found.share_pct == pytest.approx(45.45, abs=0.01)
    assert (found.file, found.line) == ("train.py", 1)
    assert found.change.startswith('torch.amp.GradScaler("cuda")')
    assert found.confidence == "high"


def test_without_a_scaler_in_the_source_the_optimizer_is_named_and_bfloat16_advised() -> None:
    [found] = look(case([False, False, True] * 20, source="x = 1\n"))
    assert found.line == 7
    assert "bfloat16" in found.change


@pytest.mark.parametrize(
    "skipped",
    [
        [False] * 47,
        [True] * 10 + [False] * 37,  # finding its scale
        [False] * 25 + [True] + [False] * 21,  # one lost after the scale has grown
        [True, False] * 4,  # too few to say
    ],
)
def test_silent_while_a_scale_is_found_or_grows(skipped: list[bool]) -> None:
    assert not list(look(case(skipped)))


def test_all_steps_lost_is_not_the_scales_fault() -> None:
    [found] = look(case([True] * 47))
    assert "threw away 47 of 47 steps" in found.claim
    assert "at any scale" in found.claim
    assert found.confidence == "medium"


def test_steps_between_updates_are_not_counted() -> None:
    made = case([False, True] * 15)
    idle = tuple(replace(s, index=100 + s.index, skipped=False, optimizer_steps=0)
                 for s in made.steps)  # fmt: skip
    [found] = look(replace(made, steps=made.steps + idle))
    assert "15 of 30" in found.claim
