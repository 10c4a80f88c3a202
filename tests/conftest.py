"""Ctrl-C reaches the tests wherever they run: a shell starts what it puts in the background with
that signal ignored, and so would be every program they start. Tests of compiled code are skipped
where torch itself cannot compile."""

import importlib.util
import signal

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch = importlib.util.find_spec("torch")
    if item.get_closest_marker("compiles") and torch is not None and " " in str(torch.origin):
        pytest.skip("torch.compile does not quote the path it is installed in, which has a space")
