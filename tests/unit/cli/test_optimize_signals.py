"""Signals that end a search."""

import os
import signal
from collections.abc import Iterator

import pytest

from ridgeline.cli.optimize import end_like_ctrl_c

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_closed_terminal_and_a_polite_kill_end_the_search_as_ctrl_c_does(
    number: signal.Signals,
) -> None:
    signal.signal(number, lambda *of: pytest.fail("the handler from before was called"))
    end_like_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_under_nohup_the_search_goes_on() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_like_ctrl_c()
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
