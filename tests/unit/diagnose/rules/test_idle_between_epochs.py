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
SAVES_SLOWLY = SAVES.replace(
    "    torch.save(",
    """    values = {k: v.tolist() for k, v in model.state_dict().items()}
    with open("last.json", "w") as file:
        json.dump(values, file)
    torch.save(""",
)
EVALUATES = """def train(model):
    for epoch in range(10):
        epoch_of(model)
        validate(model)


def epoch_of(model):
    for batch in loader:
        model(batch).backward()
"""
SETS_UP = """for i in range(100):
    np.save(f"{i}.npy", data[i])
for batch in loader:
    model(batch).backward()
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
    assert found.confidence == "medium"
    assert found.doubt
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
    assert not [*look(case(steps=paused(10, 20), source=SAVES))]


def test_short_pauses_need_a_cause() -> None:
    found = only(look(case(steps=paused(5, 60), source=SAVES)))
    assert "`torch.save` takes 60 ms after every 5 steps" in found.claim
    assert not [*look(case(steps=paused(5, 60)))]


def test_a_checkpoint_in_every_third_step() -> None:
    found = only(look(case(steps=paused(3, 60), source=SAVES)))
    assert "after every 3 steps" in found.claim


def only_timed(steps: list[Step], every: int, since: int = 20) -> list[Step]:
    """From `since` on only each `every`-th is looked into."""
    return [
        msgspec.structs.replace(s, host={}, detailed=False) if s.index >= since and s.index % every
        else s
        for s in steps
    ]  # fmt: skip


def test_steps_only_timed_are_compared_with_their_like() -> None:
    steps = only_timed(paused(10, 500, count=60), 4)
    found = only(look(case(steps=steps, source=SAVES)))
    assert found.share_pct == pytest.approx(100 * 2500 / 8500, abs=1)
    assert not [*look(case(steps=only_timed(noisy(60), 4), source=SAVES))]


def test_steps_only_timed_say_nothing_of_their_reason() -> None:
    steps = only_timed(list(noisy(60)), 4)
    for i in (33, 37, 51):  # unevenly
        steps[i] = msgspec.structs.replace(steps[i], dur_ns=3 * steps[i].dur_ns)
    assert not [*look(case(steps=steps, source=SAVES))]


def test_steps_of_ours_do_not_make_pauses_uneven() -> None:
    steps = paused(5, 60)
    ours = [
        msgspec.structs.replace(s, window="traced" if 13 <= s.index <= 16 else "light")
        for s in steps
    ]
    assert "after every 5 steps" in only(look(case(steps=ours, source=SAVES))).claim


def test_files_written_before_training_are_no_cause() -> None:
    found = only(look(case(steps=paused(10, 500), source=SETS_UP)))
    assert found.file == ""
    assert not [*look(case(steps=paused(10, 60), source=SETS_UP))]


def test_evaluations_of_steps_looked_into_at_the_same_beat() -> None:
    steps = only_timed(paused(4, 200, "evaluation", count=80), 4, since=40)
    found = only(look(case(steps=steps, source=EVALUATES)))
    assert "after every 4 steps" in found.claim
    assert found.share_pct == pytest.approx(100 * 2000 / 6100, abs=1)  # to the 40th


def test_evaluations_only_timed_are_no_checkpoints() -> None:
    steps = only_timed(paused(10, 200, "evaluation", count=80), 7, since=30)
    assert not [*look(case(steps=steps, source=SAVES))]


def test_a_teacher_asked_in_every_step_is_no_evaluation() -> None:
    assert not [*look(case(steps=paused(1, 100, "evaluation"), source=SAVES))]


def test_what_happens_in_every_other_step_is_the_step() -> None:
    assert not [*look(case(steps=paused(2, 500), source=SAVES))]


def test_a_pause_between_the_loaders_last_look_and_the_next_forward() -> None:
    """A checkpoint at an epoch's end is booked as transfer, whether all steps are looked into or
    some only timed."""
    for steps in (paused(5, 500, "transfer"), only_timed(paused(5, 500, "transfer"), 3)):
        found = only(look(case(steps=steps, source=SAVES)))
        assert "after every 5 steps" in found.claim
        assert found.share_pct == pytest.approx(100 * 3500 / 7500, abs=1)


def test_copies_that_every_step_makes_are_no_pause() -> None:
    assert not [*look(case(steps=paused(1, 500, "transfer"), source=SAVES))]


def test_of_several_calls_in_a_function_the_function_is_named() -> None:
    found = only(look(case(steps=paused(10, 500), source=SAVES_SLOWLY)))
    assert found.place == "train.py:9"
    assert "`keep()` takes 500 ms after every 10 steps" in found.claim
    assert found.confidence == "medium"
    said = found.evidence[-1].text
    assert "v.tolist in line 13, json.dump in line 15, torch.save in line 16" in said
    assert "keep(model)" in found.change
    assert "line 13: tolist()" in found.change


def test_of_several_calls_in_the_loop_all_are_named() -> None:
    text = SAVES.replace(
        "  keep(model)", "  json.dump(history, file)\n        torch.save(model, path)"
    )
    found = only(look(case(steps=paused(10, 500), source=text)))
    assert "`json.dump` or `torch.save` takes 500 ms" in found.claim
    assert found.confidence == "medium"


def test_workers_that_start_again_in_steps_only_timed_are_another_rules_too() -> None:
    loader = LoaderSeen(workers=2, begun=(0, 10, 20, 40), batches=60)  # 30 and 50 were only timed
    seen = msgspec.structs.replace(capture(), loaders=(loader,))
    steps = only_timed(paused(10, 500, "transfer", count=60), 4, since=25)
    assert not [*look(case(steps=steps, capture=seen))]
