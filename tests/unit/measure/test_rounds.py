"""Rounds: every variant once, shuffled, until the plan, the limit or an interrupt ends them."""

from collections.abc import Callable

import pytest

from ridgeline.measure.clock import Reading
from ridgeline.measure.timing import Block, Rounds


class Machine:
    """Arms that take a fixed time on a clock that only they move."""

    def __init__(self) -> None:
        self.now = 0
        self.ran: list[str] = []

    def now_ns(self) -> int:
        return self.now

    def variant(self, name: str, takes_ns: int) -> Callable[[], Block]:
        def shot() -> Block:
            self.now += takes_ns
            self.ran.append(name)
            return Block(Reading(total_ns=takes_ns, wall_ns=takes_ns, cpu_ns=takes_ns), 1)

        return shot


def never(rounds: object) -> bool:
    return False


def test_every_variant_runs_once_a_round_and_its_place_is_noted() -> None:
    machine = Machine()
    rounds = Rounds(0, machine.now_ns)
    shots = [machine.variant(name, 10) for name in "abc"]
    assert rounds.run(shots, until=(20,), limit_ns=1e9, decide=never) == "all rounds"
    assert len(rounds.taken) == 20
    for number, taken in enumerate(rounds.taken):
        order = machine.ran[3 * number : 3 * number + 3]
        assert sorted(order) == ["a", "b", "c"]
        assert [order.index(name) for name in "abc"] == list(taken.positions)


def test_orders_vary_and_are_repeated_by_the_same_seed() -> None:
    def orders(seed: int) -> list[tuple[int, ...]]:
        machine = Machine()
        rounds = Rounds(seed, machine.now_ns)
        shots = [machine.variant(name, 1) for name in "abc"]
        rounds.run(shots, until=(30,), limit_ns=1e9, decide=never)
        return [taken.positions for taken in rounds.taken]

    assert orders(1) == orders(1)
    assert len(set(orders(1))) == 6
    assert orders(1) != orders(2)


def test_looks_happen_only_where_planned() -> None:
    machine, asked = Machine(), []
    rounds = Rounds(0, machine.now_ns)

    def decide(taken: object) -> bool:
        asked.append(len(rounds.taken))
        return len(rounds.taken) == 12

    shots = [machine.variant("a", 1), machine.variant("b", 1)]
    assert rounds.run(shots, until=(3, 12, 40), limit_ns=1e9, decide=decide) == "decided"
    assert asked == [3, 12]
    assert len(rounds.taken) == 12


def test_a_round_that_would_end_beyond_the_limit_is_not_begun() -> None:
    machine = Machine()
    rounds = Rounds(0, machine.now_ns)
    shots = [machine.variant("a", 60), machine.variant("b", 40)]
    assert rounds.run(shots, until=(50,), limit_ns=1050, decide=never) == "budget"
    assert len(rounds.taken) == 10


def test_an_interrupt_keeps_whole_rounds_only() -> None:
    machine = Machine()
    rounds = Rounds(0, machine.now_ns)
    left = [7]

    def interrupted() -> Block:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return machine.variant("b", 1)()

    shots = [machine.variant("a", 1), interrupted]
    assert rounds.run(shots, until=(50,), limit_ns=1e9, decide=never) == "interrupted"
    assert len(rounds.taken) == 6
    assert all(len(taken.blocks) == 2 for taken in rounds.taken)


def test_an_error_of_a_variant_is_passed_on() -> None:
    def fails() -> Block:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Rounds(0, Machine().now_ns).run([fails], until=(3,), limit_ns=1e9, decide=never)


def test_rounds_go_on_over_sets_of_processes() -> None:
    machine = Machine()
    rounds = Rounds(0, machine.now_ns)
    shots = [machine.variant("a", 10), machine.variant("b", 10)]
    for process in range(3):
        rounds.run(shots, until=(4 * (process + 1),), limit_ns=85, decide=never, process=process)
    assert [taken.process for taken in rounds.taken] == [0] * 4 + [1] * 4 + [2] * 4
