"""How much of a window the system works for the program."""

from time import process_time_ns

from ridgeline.harness.capture.step_times import SystemTime


class _Clock:
    now = 0
    spent = 0.0

    def pass_by(self, seconds: float, in_system: float) -> None:
        self.now += round(seconds * 1e9)
        self.spent += in_system


def _timed() -> tuple[SystemTime, _Clock]:
    clock = _Clock()
    return SystemTime(lambda: clock.now, lambda: clock.spent), clock


def test_the_share_refers_to_the_window_only() -> None:
    system, clock = _timed()
    clock.pass_by(10.0, 8.0)
    system.begin()
    clock.pass_by(4.0, 1.0)
    system.end()
    clock.pass_by(10.0, 8.0)
    system.end()
    assert system.share == 0.25


def test_windows_are_added_up_unless_one_begins_anew() -> None:
    system, clock = _timed()
    for spent in (1.0, 3.0):
        system.begin()
        clock.pass_by(4.0, spent)
        system.end()
    assert system.share == 0.5
    system.begin(anew=True)
    clock.pass_by(10.0, 1.0)
    system.end()
    assert system.share == 0.1


def test_without_a_window_the_share_is_unknown() -> None:
    system, clock = _timed()
    clock.pass_by(1.0, 1.0)
    system.end()
    assert system.share is None
    system.begin()
    system.end()  # at once
    assert system.share is None


def test_only_time_in_the_kernel_counts() -> None:
    """By the processor's own clock, so that others on the machine do not count."""
    system = SystemTime(process_time_ns)
    system.begin()
    began = process_time_ns()
    with open("/dev/zero", "rb", buffering=0) as zeros:
        while process_time_ns() - began < 5e8:
            zeros.read(2**24)
    system.end()
    assert system.share is not None
    assert system.share > 0.5
