"""A real thread samples a slow line that runs now and then; the lengths of steps are made up."""

import sys
import threading
from collections.abc import Iterator
from time import monotonic, perf_counter_ns

import pytest

from ridgeline.harness.capture.pause_watch import MAX_WATCHED_STEP, MIN_KNOWN_STEPS, PauseWatch

MS = 1_000_000
DEADLINE_S = 20.0


class Program:
    """The step in progress, as the watch is told of it."""

    def __init__(self) -> None:
        self.index = 0
        self.began_ns = perf_counter_ns()
        self.phase = "other"
        self.thread: int | None = threading.get_ident()

    def current(self) -> tuple[int, int, str, int | None]:
        return self.index, self.began_ns, self.phase, self.thread


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def watch(program: Program) -> Iterator[PauseWatch]:
    made = PauseWatch(program.current)
    yield made
    made.stop()


def even_steps(watch: PauseWatch, count: int = MIN_KNOWN_STEPS, dur_ns: int = 2 * MS) -> None:
    for _ in range(count):
        watch.step_ended(dur_ns, rest_ns=dur_ns // 4)


def wait_here(watch: PauseWatch) -> int:
    """Stay in a late step until it was sampled, and return the line that was running."""
    end = monotonic() + DEADLINE_S
    line = sys._getframe().f_lineno + 1
    while not watch.seen() and monotonic() < end:
        pass
    return line


def test_even_steps_are_never_watched(watch: PauseWatch) -> None:
    even_steps(watch, 100)
    watch.start()
    assert not watch.watching


def test_a_long_forward_does_not_count_as_a_pause(watch: PauseWatch) -> None:
    even_steps(watch)
    watch.step_ended(200 * MS, rest_ns=MS // 2)
    assert not watch.watching


def test_a_step_that_was_only_timed_is_a_pause_if_it_is_far_longer(watch: PauseWatch) -> None:
    even_steps(watch)
    watch.only_timed(10 * MS)
    assert not watch.watching
    watch.only_timed(100 * MS)
    assert watch.watching


def test_after_a_pause_the_line_of_the_next_is_seen(watch: PauseWatch, program: Program) -> None:
    even_steps(watch)
    watch.step_ended(100 * MS, rest_ns=98 * MS)
    program.index, program.began_ns = 30, perf_counter_ns()
    line = wait_here(watch)
    watch.stop()
    look = watch.seen()[0]
    assert look.step == 30
    assert look.phase == "other"
    file, at, function = look.frames[0].rsplit(":", 2)
    assert (file, function) == (__file__, "wait_here")
    assert abs(int(at) - line) <= 1
    assert look.frames[1].endswith(":test_after_a_pause_the_line_of_the_next_is_seen")
    assert look.seconds > 0


def test_steps_that_are_not_late_are_not_sampled(watch: PauseWatch, program: Program) -> None:
    even_steps(watch, dur_ns=3_600_000 * MS)
    watch.paused()
    watch.stop()
    assert watch.seen() == ()


def test_the_sampling_thread_can_be_stopped_and_started_again(
    watch: PauseWatch, program: Program
) -> None:
    even_steps(watch)
    watch.paused()
    watch.stop()
    assert not watch.watching
    watch.start()
    program.index, program.began_ns = 7, perf_counter_ns()
    wait_here(watch)
    assert {look.step for look in watch.seen()} == {7}


def test_a_system_without_a_thread_to_spare_leaves_the_program_unwatched(
    watch: PauseWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> None:
        raise RuntimeError("can't start new thread")

    even_steps(watch)
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    watch.paused()
    assert not watch.watching


def test_the_thread_ends_after_the_steps_that_are_sampled(
    watch: PauseWatch, program: Program
) -> None:
    def wait_for(threads: int) -> None:
        end = monotonic() + DEADLINE_S
        while len(sys._current_frames()) != threads and monotonic() < end:
            pass
        assert len(sys._current_frames()) == threads

    before = len(sys._current_frames())
    even_steps(watch)
    watch.paused()
    wait_for(before + 1)
    program.index = MAX_WATCHED_STEP + 1
    wait_for(before)
    watch.stop()
    watch.paused()
    assert not watch.watching
