"""Ctrl-C reaches the tests wherever they run: a shell starts what it puts in the background with
that signal ignored, and so would be every program they start. Tests of compiled code are skipped
where torch itself cannot compile. Drawn examples may take long: a busy machine is no defect."""

import importlib.util
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

NOT_TESTED = "NOT TESTED"
"""In the reason of a skipped test whose absence everybody should see."""

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch = importlib.util.find_spec("torch")
    if item.get_closest_marker("compiles") and torch is not None and " " in str(torch.origin):
        pytest.skip("torch.compile does not quote the path it is installed in, which has a space")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name loudly what a machine without a browser did not test."""
    reasons = {
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reasons):
        if NOT_TESTED in reason:
            terminalreporter.write_line(reason, red=True, bold=True)
