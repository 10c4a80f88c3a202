"""A program that waits for its loader is steady, and wavers once it does not."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.agenda import Agenda
from ridgeline.records.trial import Asked
from tests.unit.optimization.fake_bench import FakeBench, candidate, climbed, statuses, times


class Starved(FakeBench):
    """40 ms a step, whatever the machine does, until `workers`; then 11 ms, and 13 % between
    processes: two cores, on which workers and the step run."""

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        fed = any(one.fix == "workers" for one in fixes)
        self._spread = 0.13 if fed else 0.01
        found = super().trial(fixes, **given)
        assert found.trial is not None
        return replace(found, trial=replace(found.trial, input_share=0.1 if fed else 0.7))


def test_what_gains_nothing_is_seldom_kept_once_the_loader_is_fast() -> None:
    kept = fed = 0
    for seed in range(100):
        bench = Starved(times(workers=3.7), seed=seed)
        found = climbed(bench, candidate("workers"), candidate("a"), candidate("b"))
        after = statuses(found)
        fed += after.pop("workers") == "kept"
        kept += sum(status == "kept" for status in after.values())
    assert fed == 100
    assert kept <= 10  # of 200; by the spread of the unchanged program 26


def test_what_gains_much_is_still_found_then() -> None:
    found = [
        climbed(Starved(times(workers=3.7, a=1.5), seed=seed), candidate("workers"), candidate("a"))
        for seed in range(30)
    ]
    assert sum(statuses(one)["a"] == "kept" for one in found) >= 27


def test_another_number_of_what_is_kept_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first trial met a busy machine, and its share of the time was over."""
    monkeypatch.setattr(Agenda, "share_s", lambda self, one: 0.0)

    class Workers(FakeBench):
        fours = 0

        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            number = next((one.options["workers"] for one in fixes), "0")
            self.fours += number == "4"
            busy = number == "4" and self.fours == 1
            speed = {"0": 1.0, "2": 1.5, "4": 1.6 if busy else 2.1}[number]
            self._speed = lambda names: speed
            return super().trial(fixes, **given)

    two = replace(candidate("workers", slot="workers"), options={"workers": "2"})
    found = climbed(Workers(times()), replace(two, others=({"workers": "4"},)))
    assert {one.options["workers"]: one.status for one in found.rungs} == {
        "2": "dropped", "4": "kept",
    }  # fmt: skip
