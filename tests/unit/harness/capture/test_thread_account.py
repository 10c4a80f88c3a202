"""The kernel's account of a thread, added up over windows."""

import threading
import time

import pytest

from ridgeline.harness.capture.step_times import ThreadAccount, read_account


class _Kernel:
    now = 0
    processor = 0
    queued = 0

    def pass_by(self, wall: int, processor: int, queued: int) -> None:
        self.now += wall
        self.processor += processor
        self.queued += queued

    def account(self) -> tuple[int, int]:
        return self.processor, self.queued


def _made() -> tuple[ThreadAccount, _Kernel]:
    kernel = _Kernel()
    return ThreadAccount(lambda: kernel.now, kernel.account), kernel


def test_windows_of_a_kind_are_added_without_the_time_between_them() -> None:
    account, kernel = _made()
    for _ in range(2):
        kernel.pass_by(500, 500, 0)
        account.begin("light")
        kernel.pass_by(100, 20, 70)
        account.end()
        account.begin("traced")
        kernel.pass_by(40, 40, 0)
        account.end()
    light, traced = account.of("light"), account.of("traced")
    assert light is not None
    assert traced is not None
    assert (light.wall_ns, light.processor_ns, light.queued_ns) == (200, 40, 140)
    assert (light.processor_share, light.queued_share) == (0.2, 0.7)
    assert (traced.wall_ns, traced.queued_ns) == (80, 0)


def test_a_window_that_ends_on_another_thread_does_not_count() -> None:
    account, kernel = _made()
    account.begin("light")
    kernel.pass_by(100, 100, 0)
    other = threading.Thread(target=account.end)
    other.start()
    other.join()
    account.end()
    assert account.of("light") is None


def test_without_an_account_of_the_kernel_the_times_are_unknown() -> None:
    account = ThreadAccount(time.perf_counter_ns, lambda: None)
    account.begin("light")
    account.end()
    assert account.of("light") is None


def test_the_kernels_account_grows_with_work_and_not_with_sleep() -> None:
    before = read_account()
    if before is None:
        pytest.skip("the kernel keeps no account of threads here")
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < 30_000_000:
        pass
    worked = read_account()
    time.sleep(0.05)
    slept = read_account()
    assert worked is not None
    assert slept is not None
    assert worked[0] - before[0] >= 20_000_000
    assert slept[0] - worked[0] < 20_000_000
