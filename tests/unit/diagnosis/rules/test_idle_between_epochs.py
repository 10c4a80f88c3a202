import msgspec
import pytest

from ridgeline.diagnosis.rules.idle_between_epochs import look
from ridgeline.records.run import Capture, LoaderSeen, ModuleSeen, PauseSeen, Phase, Step
from ridgeline.records.run_summary import Telemetered
from tests.unit.diagnosis.made_up_steps import BASE, noisy, step
from tests.unit.diagnosis.rules.made_up_machine import capture, case, only

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
NEVER_REACHED = """for i, batch in enumerate(loader):
    model(batch).backward()
    optimizer.step()
    if i % 10 == 0:
        ranked = sorted(history)
    if i % 500 == 499:
        torch.save(model.state_dict(), path)
"""
IN_KEEP = ("train.py:13:keep", "train.py:9:train")


def looked(
    *spent: tuple[tuple[str, ...], float], steps: range = range(10, 40, 10), phase: str = "other"
) -> Capture:
    """Return a program sampled in these steps: which frames ran (innermost first) and how long."""
    return msgspec.structs.replace(
        capture(),
        pauses=tuple(
            PauseSeen(step=step, phase=phase, frames=frames, seconds=seconds)
            for step in steps
            for frames, seconds in spent
        ),
    )


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
    seen = looked((IN_KEEP, 0.49))
    found = only(look(case(steps=paused(10, 500), source=SAVES, capture=seen)))
    assert found.place == "train.py:13"
    assert "`torch.save` takes 500 ms after every 10 steps" in found.claim
    assert found.share_pct == pytest.approx(100 * 1500 / 5500, abs=1)
    assert found.gain_bound >= 5500 / 4000 - 0.03
    assert found.confidence == "high"
    assert "args=(state, 'last.pt')" in found.change


def test_a_checkpoint_that_never_ran_is_not_blamed() -> None:
    seen = looked((("train.py:5:<module>",), 0.49), (("train.py:2:<module>",), 0.01))
    found = only(look(case(steps=paused(10, 500), source=NEVER_REACHED, capture=seen)))
    assert found.place == "train.py:5"
    assert "`sorted` takes 500 ms after every 10 steps" in found.claim
    assert "torch.save" not in found.change


def test_without_samples_no_line_is_named() -> None:
    found = only(look(case(steps=paused(10, 500), source=NEVER_REACHED)))
    assert found.file == ""
    assert found.line is None
    assert found.confidence == "low"
    assert "save" not in found.claim + found.change


def test_samples_of_other_steps_and_other_phases_do_not_count() -> None:
    for seen in (
        looked((IN_KEEP, 0.49), steps=range(5, 40, 10)),
        looked((IN_KEEP, 0.49), phase="forward"),
    ):
        found = only(look(case(steps=paused(10, 500), source=SAVES, capture=seen)))
        assert found.file == ""


def test_one_late_step_at_an_unknown_line_may_be_a_stall_of_the_machine() -> None:
    seen = looked((("train.py:5:<module>",), 0.49), steps=range(13, 14))
    steps = paused(13, 500, count=38)
    assert not [*look(case(steps=steps, source=NEVER_REACHED, capture=seen))]
    checkpoint = looked((IN_KEEP, 0.49), steps=range(13, 14))
    found = only(look(case(steps=steps, source=SAVES, capture=checkpoint)))
    assert found.place == "train.py:13"
    assert found.confidence == "medium"


def test_evaluations_are_told_with_doubt() -> None:
    seen = looked((("valid.py:7:validate", "train.py:4:train"), 0.5), phase="evaluation")
    steps = paused(10, 500, "evaluation")
    found = only(look(case(steps=steps, source=EVALUATES, capture=seen)))
    assert found.confidence == "medium"
    assert found.doubt
    assert found.place == "train.py:4"
    assert "`validate()`" in found.claim
    assert "validate(model)" in found.change


def test_an_evaluation_that_was_not_late_is_named_by_the_models_call() -> None:
    model = ModuleSeen(name="Net", evaluation_place="train.py:3:check")
    seen = msgspec.structs.replace(capture(), modules=(model,))
    steps = paused(10, 500, "evaluation")
    found = only(look(case(steps=steps, source=EVALUATES, capture=seen)))
    assert found.place == "train.py:3"
    assert "`check()`" in found.claim


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


@pytest.mark.parametrize(("preempted", "count"), [(0.5, 0), (0.1, 1), (None, 1)])
def test_pauses_that_other_programs_can_explain_are_the_machines(
    preempted: float | None, count: int
) -> None:
    """The pauses take 27 % of the time. With other programs on the processors for half of the time,
    any line may be the one that ran when the program was interrupted."""
    seen = looked((("train.py:5:<module>",), 0.49))
    taken = Telemetered(preempted_share=preempted)
    found = look(case(steps=paused(10, 500), source=NEVER_REACHED, capture=seen, seen=taken))
    assert len([*found]) == count
    assert len([*look(case(steps=paused(10, 500), seen=taken))]) == count


def test_a_call_known_to_take_long_is_named_beside_other_programs_too() -> None:
    taken = Telemetered(preempted_share=0.5)
    seen = looked((IN_KEEP, 0.49))
    found = only(look(case(steps=paused(10, 500), source=SAVES, capture=seen, seen=taken)))
    assert found.place == "train.py:13"


def test_two_stalls_without_a_cause_are_the_machines() -> None:
    assert not [*look(case(steps=paused(13, 500, count=38)))]


def test_short_pauses_are_not_worth_a_word() -> None:
    assert not [*look(case(steps=paused(10, 20), source=SAVES))]


def test_short_pauses_need_a_line_that_was_seen() -> None:
    seen = looked((IN_KEEP, 0.06), steps=range(5, 40, 5))
    found = only(look(case(steps=paused(5, 60), source=SAVES, capture=seen)))
    assert "`torch.save` takes 60 ms after every 5 steps" in found.claim
    assert not [*look(case(steps=paused(5, 60), source=SAVES))]


def test_a_checkpoint_in_every_third_step() -> None:
    seen = looked((IN_KEEP, 0.06), steps=range(3, 40, 3))
    found = only(look(case(steps=paused(3, 60), source=SAVES, capture=seen)))
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
    seen = looked((IN_KEEP, 0.06), steps=range(5, 40, 5))
    found = only(look(case(steps=ours, source=SAVES, capture=seen)))
    assert "after every 5 steps" in found.claim


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


def test_where_no_line_of_a_function_stands_out_its_call_is_named() -> None:
    lines = (13, 15, 16)
    seen = looked(*(((f"train.py:{n}:keep", "train.py:9:train"), 0.16) for n in lines))
    found = only(look(case(steps=paused(10, 500), source=SAVES_SLOWLY, capture=seen)))
    assert found.place == "train.py:9"
    assert "`keep` takes 500 ms after every 10 steps" in found.claim
    assert "keep(model)" in found.change


def test_the_call_that_takes_the_time_is_named_among_several() -> None:
    seen = looked((("train.py:13:keep", "train.py:9:train"), 0.4), (IN_KEEP, 0.0))
    found = only(look(case(steps=paused(10, 500), source=SAVES_SLOWLY, capture=seen)))
    assert found.place == "train.py:13"
    assert "tolist" in found.claim
    assert "keep the tensor" in found.change


def test_workers_that_start_again_in_steps_only_timed_are_another_rules_too() -> None:
    loader = LoaderSeen(workers=2, begun=(0, 10, 20, 40), batches=60)  # 30 and 50 were only timed
    seen = msgspec.structs.replace(capture(), loaders=(loader,))
    steps = only_timed(paused(10, 500, "transfer", count=60), 4, since=25)
    assert not [*look(case(steps=steps, capture=seen))]
