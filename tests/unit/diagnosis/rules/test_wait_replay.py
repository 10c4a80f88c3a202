"""Steps gone through again without some of the host's waits."""

import pytest

from ridgeline.diagnosis.rules._waits import (
    LAUNCH_LATENCY_NS,
    RETURN_LATENCY_NS,
    length_ns,
    saved_shares,
    scale_for,
)
from ridgeline.records.sites import Replay

US = 1000


def replay(rounds: int, host: int, kernel: int, stays: bool = False, first: int = 0) -> Replay:
    """A kernel of `first` queued, then rounds of: the host's time, a kernel, a wait for it."""
    begin = ((0, -1, first * US),) if first else ()
    events = begin + ((host * US, -1, kernel * US), (0, 0, -1)) * rounds
    return Replay(
        steps=1,
        before_ns=tuple(event[0] for event in events),
        asking_ns=(0,) * len(events),
        site=tuple(event[1] for event in events),
        dur_ns=tuple(event[2] for event in events),
        stream=(0,) * len(events),
        stays=(stays,),
    )


def test_with_a_wait_after_each_kernel_host_and_device_take_turns() -> None:
    turn = 30 * US + LAUNCH_LATENCY_NS + 20 * US + RETURN_LATENCY_NS
    assert length_ns(replay(10, 30, 20), 1.0) == pytest.approx(10 * turn)


def test_without_the_waits_the_slower_of_both_remains() -> None:
    host = 10 * 30 * US + LAUNCH_LATENCY_NS + 20 * US
    assert length_ns(replay(10, 30, 20), 1.0, {0}) == pytest.approx(host)
    queued = replay(10, 30, 20, first=1000)
    assert length_ns(queued, 1.0, {0}) == pytest.approx(
        LAUNCH_LATENCY_NS + 1000 * US + 10 * 20 * US
    )


def test_the_hosts_time_is_scaled_until_the_step_takes_as_long_as_untraced() -> None:
    made = replay(10, 30, 20)
    wanted = 10 * (15 * US + LAUNCH_LATENCY_NS + 20 * US + RETURN_LATENCY_NS)
    assert scale_for(made, wanted) == pytest.approx(0.5, abs=0.01)


def test_one_wait_at_the_end_of_a_busy_step_saves_next_to_nothing() -> None:
    (share,) = saved_shares(replay(1, 30, 20, first=5000), 0.0, True)
    assert share < 0.01


def test_many_waits_behind_a_queue_save_all_the_idle_time() -> None:
    made = replay(40, 30, 20, first=2000)
    whole = length_ns(made, 1.0)
    (share,) = saved_shares(made, 0.0, True)
    assert share == pytest.approx(1 - (LAUNCH_LATENCY_NS + 2000 * US + 40 * 20 * US) / whole)


def test_two_waits_in_a_row_share_what_only_both_together_save() -> None:
    one = replay(20, 30, 20, first=2000)
    doubled = Replay(
        steps=1,
        before_ns=tuple(v for b, d in zip(one.before_ns, one.dur_ns, strict=True)
                        for v in ((b, 0) if d < 0 else (b,))),
        asking_ns=(0,) * 61,
        site=(-1, *(-1, 0, 1) * 20),
        dur_ns=tuple(v for d in one.dur_ns for v in ((d, d) if d < 0 else (d,))),
        stream=(0,) * 61,
        stays=(False, False),
    )  # fmt: skip
    first, second = saved_shares(doubled, 0.0, True)
    assert first == pytest.approx(second)
    assert first + second > 0.2
