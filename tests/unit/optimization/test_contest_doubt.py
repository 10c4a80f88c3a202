"""A gain that may be luck is looked at again, later, and has to be there still."""

from typing import Any

import pytest

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.contest import is_confirmed, is_doubtful
from ridgeline.records.facts import Ratio
from ridgeline.records.trial import Asked
from ridgeline.report.reasons import explain
from tests.unit.optimization.fake_bench import FakeBench, candidate, climbed, statuses, times


def _ratio(value: float, low: float, high: float, pairs: int = 3) -> Ratio:
    return Ratio(value=value, ci_low=low, ci_high=high, pairs=pairs)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (_ratio(1.05, 1.02, 1.09), True),
        (_ratio(1.21, 1.07, 1.38), True),
        (_ratio(1.05, 1.04, 1.06), False),
        (_ratio(1.93, 1.45, 2.57), True),
        (_ratio(2.63, 2.0, 3.46), False),
        (_ratio(1.34, 1.30, 1.39), False),
        (_ratio(1.3, 1e-20, 5e21, pairs=1), True),  # no interval to speak of
    ],
)
def test_what_is_far_from_nothing_by_its_own_interval_is_in_no_doubt(
    ratio: Ratio, expected: bool
) -> None:
    assert is_doubtful(ratio) is expected


def test_two_looks_together_have_to_be_surer_than_one() -> None:
    first = _ratio(1.21, 1.07, 1.38)
    assert is_confirmed(first, _ratio(1.2, 1.06, 1.36))
    assert is_confirmed(first, _ratio(1.25, 0.9, 1.7, pairs=1))
    assert not is_confirmed(first, _ratio(1.03, 0.91, 1.17))
    assert not is_confirmed(first, _ratio(1.05, 0.84, 1.31, pairs=1))


class Lucky(FakeBench):
    """A change that gains something for as long as the machine is kind to it."""

    kind = 3

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        on = {one.fix for one in fixes}
        if "lucky" in on:
            self.kind -= 1
        lucky = 1.15 if self.kind >= 0 else 1.0
        self._speed = times(big=2.0, lucky=lucky)
        return super().trial(fixes, **given)


def _after(bench: FakeBench) -> tuple[str, str]:
    found = climbed(bench, candidate("big"), candidate("lucky"))
    return statuses(found)["lucky"], next(
        explain(r.reason) for r in found.rungs if r.fix == "lucky"
    )


def test_what_was_luck_is_gone_the_second_time() -> None:
    found = [_after(Lucky(times(), spread=0.05, seed=seed)) for seed in range(40)]
    kept = [why for status, why in found if status == "kept"]
    assert len(kept) <= 15, kept  # looked at once: 23


def test_what_was_none_stays() -> None:
    found = [_after(FakeBench(times(big=2.0, lucky=1.3), spread=0.05, seed=s)) for s in range(20)]
    assert sum(status == "kept" for status, _ in found) >= 19


def test_useless_changes_beside_a_useful_one_are_hardly_ever_kept() -> None:
    useless = [candidate(name) for name in "abcd"]
    kept = 0
    for seed in range(60):
        found = climbed(
            FakeBench(times(big=1.6), spread=0.1, seed=seed), candidate("big"), *useless
        )
        kept += sum(status == "kept" for name, status in statuses(found).items() if name != "big")
    assert kept <= 2  # of 240
