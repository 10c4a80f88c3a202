"""Notes where the program is while a step takes much longer than the others.

A checkpoint, an evaluation or a slow line of Python that runs only now and then makes one long step
among short ones. The hooks see the length of that step and nothing else, because the program calls
none of the torch functions that have a hook. So a thread of ours samples the program's stack. It
runs only in a program that has paused before, and only while steps are timed. It reads the stack
only once a step is already late. A program with even steps never gets the thread.
"""

import _thread
import os
import random
import sys
from collections.abc import Callable
from itertools import islice
from statistics import median
from time import perf_counter_ns

from ridgeline.harness.capture.places import user_frames
from ridgeline.harness.capture.stack_sampling import block_signals
from ridgeline.records.run import PauseSeen

MIN_PAUSE_NS = 5_000_000
"""A step must be late by this much to count as a pause. A step that is late by less may have lost
the processor for one time slice of the scheduler."""
MIN_PAUSE_SHARE = 0.25
"""A step must be late by this share of the usual step to count as a pause."""
MIN_KNOWN_STEPS = 8
"""Number of timed steps after which their usual length is taken to be known."""
MAX_KNOWN_STEPS = 32
"""Number of latest steps whose median is the usual length."""
SAMPLE_EVERY_S = 0.01
"""Time between two samples of the stack while a step is late."""
MIN_SLEEP_S = 0.02
"""Shortest sleep while no step is late: waking up costs the program about 20 µs, so 0.1 % at most.
"""
MAX_WATCHED_STEP = 2_000
"""Index of the last step that is sampled. The default windows end long before, unless steps are
very short; under `--full` the thread must not stay for the whole run."""
MAX_RECORDS = 500
MAX_FRAMES = 12
STOP_WAIT_S = 2.0


class PauseWatch:
    """Learns the usual length of a step, and starts the sampling thread after the first pause."""

    def __init__(self, current: Callable[[], tuple[int, int, str, int | None]]) -> None:
        """`current` returns facts of the step in progress: its index, when it began (ns), the phase
        it is in, and the id of the thread that trains."""
        self._current = current
        self._durations: list[int] = []
        self._rests: list[int] = []
        self._max_rest_ns = 0
        self.late_after_ns = 0
        """A step that lasts longer than this is late; 0 while the usual length is not known."""
        self._paused = False
        self._seen: dict[tuple[int, str, tuple[str, ...]], int] = {}
        self._gate: _thread.LockType | None = None
        self._done: _thread.LockType | None = None
        self._pid = 0
        self._random = random.Random()  # the program's random numbers stay the same

    @property
    def watching(self) -> bool:
        return self._gate is not None

    def step_ended(self, dur_ns: int, rest_ns: int) -> None:
        """Note that a timed step has ended. `rest_ns` is its time outside input, forward, backward
        and optimizer."""
        if self.late_after_ns and rest_ns > self._max_rest_ns:
            self.paused()
            return  # a step with a pause does not count for the usual length
        self._durations.append(dur_ns)
        self._rests.append(rest_ns)
        if len(self._durations) > MAX_KNOWN_STEPS:
            del self._durations[0], self._rests[0]
        if len(self._durations) >= MIN_KNOWN_STEPS:
            usual = round(median(self._durations))
            margin = max(round(MIN_PAUSE_SHARE * usual), MIN_PAUSE_NS)
            self.late_after_ns = usual + margin
            self._max_rest_ns = round(median(self._rests)) + margin

    def only_timed(self, dur_ns: int) -> None:
        """Note that a step has ended of which only the length is known. It may be long for any
        reason, so it counts as a pause only from twice the limit on."""
        if dur_ns > 2 * self.late_after_ns > 0:
            self.paused()

    def paused(self) -> None:
        """Note that a step was late for a reason that no phase explains."""
        self._paused = True
        self.start()

    def start(self) -> None:
        """Start the sampling thread, if the program has paused before."""
        if not self._paused or self.watching or self._is_over(self._current()[0]):
            return
        gate, done = _thread.allocate_lock(), _thread.allocate_lock()
        gate.acquire()
        done.acquire()
        try:
            # Not a threading.Thread: the program's list and count of threads stay as they are.
            _thread.start_new_thread(self._run, (gate, done))
        except RuntimeError:  # the system gives no more threads
            self._paused = False
            return
        self._gate, self._done, self._pid = gate, done, os.getpid()

    def _is_over(self, step: int) -> bool:
        return step > MAX_WATCHED_STEP or len(self._seen) >= MAX_RECORDS

    def stop(self) -> None:
        """End the thread. A forked child has no such thread, and nothing is done there."""
        gate, done, self._gate, self._done = self._gate, self._done, None, None
        if gate is None or done is None or self._pid != os.getpid():
            return
        gate.release()
        done.acquire(timeout=STOP_WAIT_S)

    def forget(self) -> None:
        """Drop what is known of the steps so far: they turned out not to be steps."""
        self._seen.clear()
        self._durations.clear()
        self._rests.clear()
        self.late_after_ns = 0

    def seen(self) -> tuple[PauseSeen, ...]:
        """Return where the program was seen in late steps, and for how long."""
        return tuple(
            PauseSeen(step=step, phase=phase, frames=frames, seconds=round(ns / 1e9, 6))
            for (step, phase, frames), ns in dict(self._seen).items()
        )

    # ------------------------------------------------------------ on the sampling thread

    def _run(self, gate: _thread.LockType, done: _thread.LockType) -> None:
        try:
            block_signals()
            self._watch(gate)
        except BaseException:  # nothing of ours may show in the program: it goes on unwatched
            self._paused = False
        finally:
            done.release()

    def _watch(self, gate: _thread.LockType) -> None:
        wait_s, looked_ns = MIN_SLEEP_S, perf_counter_ns()
        while not gate.acquire(timeout=wait_s * self._random.uniform(2 / 3, 4 / 3)):
            now = perf_counter_ns()
            index, began_ns, phase, thread = self._current()
            if self._is_over(index):
                return
            left_ns = began_ns + self.late_after_ns - now
            if left_ns > 0 or thread is None:
                wait_s = max(left_ns / 1e9, MIN_SLEEP_S)
            else:
                # A call that keeps the interpreter's lock is seen once, when it is over.
                frames = tuple(islice(user_frames(sys._current_frames().get(thread)), MAX_FRAMES))
                key = (index, phase, frames)
                spent = now - max(looked_ns, began_ns)
                if frames:
                    self._seen[key] = self._seen.get(key, 0) + spent
                wait_s = SAMPLE_EVERY_S
            looked_ns = now
