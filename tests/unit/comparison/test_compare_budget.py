"""A budget is for the whole comparison, and is kept: on a clock that only the test moves."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ridgeline.comparison import scripts
from ridgeline.comparison.contenders import (
    Collected,
    Contender,
    Examined,
    Opened,
    Options,
    Peak,
    Warmed,
    stand,
)
from ridgeline.comparison.functions import together, without_broken
from ridgeline.comparison.remote_host import RemoteHost
from ridgeline.errors import RidgelineError
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.measure.clock import BudgetEnded, Deadline, Reading
from ridgeline.measure.timing import Block
from ridgeline.records.comparison import Comparison, Guard, Results, Surroundings


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SlowHost:
    """Answers as a child process does: what would end beyond the deadline is ended at it. `call`
    is what a call took in the warm-up, where a block of the rounds takes another time."""

    def __init__(self, clock: Clock, deadline: Deadline, **takes_s: float) -> None:
        self._clock, self._deadline, self._takes_s = clock, deadline, takes_s
        self.asked: list[str] = []
        self.call_s = takes_s.get("call", takes_s.get("block", 0.1))

    def ask(self, method: str, **arguments: Any) -> Any:
        self.asked.append(method)
        takes_s = self._takes_s.get(method, 0.0)
        if takes_s >= self._deadline.left_s():
            self._clock.now_s += max(self._deadline.left_s(), 0.0)
            raise BudgetEnded(method, arguments.get("variant", ""))
        self._clock.now_s += takes_s
        return self._answer(method)

    def _answer(self, method: str) -> Any:
        ns = 1e9 * self.call_s
        reading = Reading(total_ns=ns, wall_ns=ns, cpu_ns=ns)
        results = Results(status="equal", method="", strength="strong", detail="")
        return {
            "open": Opened(goal=None, items=None, rtol=None, has_check=False, changed=(),
                           device="cpu"),
            "collect": Collected(call_ns=(ns,), changed=()),
            "first_calls": Collected(call_ns=(ns,), changed=()),
            "examine": Examined(results=results, guards=()),
            "warm_up": Warmed(block_calls=1, block_ns=ns, steady=True, steady_ns=ns, excess_ns=0.0,
                              calls=8, events_share=1.0, clock="wall"),
            "block": Block(reading, 1),
            "end_rounds": Surroundings(device="cpu", threads=1, cores=2),
            "recompiles": 0,
            "peak": Peak(bytes=1, method=""),
            "floor": Guard(name="roofline floor", outcome="passed"),
            "replays": Guard(name="cached replay", outcome="passed"),
        }.get(method)  # fmt: skip


def compared(budget_s: float, **takes_s: float) -> tuple[Comparison, SlowHost, Clock]:
    clock = Clock()
    deadline = Deadline(budget_s, now=clock)
    options = Options(budget_s=budget_s, deadline=deadline)
    host = SlowHost(clock, deadline, **takes_s)

    def compare(targets: Any) -> Comparison:
        contenders: list[Contender] = stand(targets, lambda variant, name: host)
        for contender in contenders[::2]:
            contender.open(0)
        with pytest.MonkeyPatch.context() as patch:
            name = "ridgeline.comparison.functions.perf_counter_ns"
            patch.setattr(name, lambda: int(1e9 * clock.now_s))
            return together(host, contenders, options, lambda text: None)  # type: ignore[arg-type]

    try:
        return without_broken(["base", "new"], compare), host, clock
    finally:
        assert clock.now_s <= budget_s, "the budget is kept, whatever comes of it"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("open", "baseline was built"),
        ("collect", "baseline had made its first calls"),
        ("warm_up", "baseline was warm"),
    ],
)
def test_a_first_call_beyond_the_budget_is_undecided(stage: str, said: str) -> None:
    with pytest.raises(RidgelineError) as caught:
        compared(20.0, **{stage: 30.0})
    assert said in caught.value.message
    assert "UNDECIDED" in caught.value.message


def test_a_round_beyond_the_budget_is_undecided() -> None:
    with pytest.raises(RidgelineError, match="UNDECIDED"):
        compared(20.0, block=9.0)


def test_the_rounds_that_were_taken_count_where_one_is_cut() -> None:
    found, _, _ = compared(20.0, collect=3.0, call=0.5, block=2.5)
    assert found.stopped == "budget"
    assert found.rounds >= 1
    assert found.spent_s <= 20.0


def test_checks_that_did_not_fit_after_the_rounds_are_named() -> None:
    found, host, _ = compared(20.0, collect=4.0, block=0.9)
    assert "look_again" not in host.asked
    assert found.notes


def test_with_enough_time_every_check_after_the_rounds_is_made() -> None:
    found, host, _ = compared(60.0, collect=0.5, block=0.1, peak=0.2, look_again=0.5)
    assert {"peak", "floor", "look_again", "replays"} <= set(host.asked)
    assert found.notes == ()


def test_a_remote_host_is_not_asked_once_the_budget_is_over() -> None:
    clock = Clock()
    deadline = Deadline(5.0, now=clock)
    with closing(RemoteHost(cold=False, device=None, timeout_s=300.0, deadline=deadline)) as host:
        clock.now_s = 6.0
        with pytest.raises(BudgetEnded) as caught:
            host.ask("open", variant="baseline", target="slow.py:step", seed=0)
    assert (caught.value.stage, caught.value.about) == ("open", "slow.py:step")


def test_a_script_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock()
    options = Options(budget_s=20.0, deadline=Deadline(20.0, now=clock))
    limits: list[float] = []

    def run_recorded(*program: Any, limit_s: float, **how: Any) -> tuple[Ended, list[Any]]:
        limits.append(limit_s)
        clock.now_s += limit_s
        return Ended(code=None, wall_ns=int(1e9 * limit_s)), []

    monkeypatch.setattr(scripts, "run_recorded", run_recorded)
    variant = scripts.ScriptRuns("train.py", options, tmp_path / "variant")
    clock.now_s = 4.0
    for _ in range(2):
        with pytest.raises(BudgetEnded):
            variant.run()
    assert limits == [16.0], "once it is over, no process is started"
