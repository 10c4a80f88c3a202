import msgspec
import pytest

from ridgeline.diagnose.rules.idle_between_epochs import look
from ridgeline.records.run import LoaderSeen
from ridgeline.records.step import Phase, Step
from tests.unit.diagnose.made_up_steps import BASE, noisy, step
from tests.unit.diagnose.rules.made_up_machine import capture, case, only

SAVES = """import torch


def train(model, loader, optimizer):
    for epoch in range(10):
        for batch in loader:
            model(batch).backward()
            optimizer.step()
        keep(model)


def keep(model):
    torch.save(model.state_dict(), "last.pt")


class Pictures:
    def __getitem__(self, i):
        image.save("copy.png")
"""
EVALUATES = """def train(model):
    for epoch in range(10):
        epoch_of(model)
        validate(model)
"""


def paused(every: int, ms: float, phase: Phase = "other", count: int = 40) -> list[Step]:
    """Steps of 100 ms; each `every`-th holds a pause."""
    held = list(noisy(count))
    for i in range(every, count, every):
        phases = dict(BASE)
        if phase != "other":
            phases[phase] = phases.get(phase, 0.0) + ms
        held[i] = step(i, phases, ms=100 + ms)
    return held


def test_a_checkpoint_after_every_epoch() -> None:
    found = only(look(case(steps=paused(10, 500), source=SAVES)))
    assert found.place == "train.py:13"
    assert "`torch.save` takes 500 ms after every 10 steps" in found.claim
    assert found.share_pct == pytest.approx(100 * 1500 / 5500, abs=1)
    assert found.gain_bound >= 5500 / 4000 - 0.03
    assert found.confidence == "high"
    assert "Thread(target=torch.save" in found.change


def test_evaluations_are_told_with_doubt() -> None:
    found = only(look(case(steps=paused(10, 500, "evaluation"), source=EVALUATES)))
    assert found.confidence == "low"
    assert found.place == "train.py:4"
    assert "`validate()`" in found.claim


def test_a_short_evaluation_is_work_one_wants() -> None:
    assert not [*look(case(steps=paused(10, 200, "evaluation"), source=EVALUATES))]


def test_workers_that_start_again_are_another_rules() -> None:
    loader = LoaderSeen(workers=4, begun=(0, 10, 20, 30), batches=40)
    seen = msgspec.structs.replace(capture(), loaders=(loader,))
    assert not [*look(case(steps=paused(10, 500), capture=seen))]
    kept = msgspec.structs.replace(loader, persistent_workers=True)
    seen = msgspec.structs.replace(capture(), loaders=(kept,))
    assert only(look(case(steps=paused(10, 500), capture=seen)))


def test_regular_pauses_without_a_cause() -> None:
    found = only(look(case(steps=paused(10, 500))))
    assert found.file == ""
    assert found.confidence == "low"
    assert "something between steps" in found.claim


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer"])
def test_long_steps_for_another_reason_are_no_pauses(phase: Phase) -> None:
    assert not [*look(case(steps=paused(10, 500, phase), source=SAVES))]


def test_silent_on_even_steps() -> None:
    assert not [*look(case(source=SAVES))]


def test_one_stall_alone_is_the_machines() -> None:
    assert not [*look(case(steps=paused(25, 500), source=SAVES))]


def test_two_stalls_without_a_cause_are_the_machines() -> None:
    assert not [*look(case(steps=paused(13, 500, count=38)))]


def test_short_pauses_are_not_worth_a_word() -> None:
    assert not [*look(case(steps=paused(10, 80), source=SAVES))]


def test_what_happens_in_every_other_step_is_the_step() -> None:
    assert not [*look(case(steps=paused(2, 500), source=SAVES))]
