"""The session of a race: the program's own loop runs, and at the ends of its steps candidates are
switched and timed.

The measuring is a generator that is resumed when a step of the program ends; each `yield` in it is
one step. The steps train one model under changing fixes, so nothing that they compute is a result.

A program that writes text by `generate` of transformers is raced by requests and not by tokens: the
cache of a request was filled under one set of fixes, and may be of no use to another.
"""

import random
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import Any

import msgspec

from ridgeline.harness.capture import live
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.capture.session import MAX_FAULTS, Session
from ridgeline.harness.capture.step_boundaries import End
from ridgeline.harness.capture.step_times import read_queued
from ridgeline.harness.capture.text_generation import follow_generate
from ridgeline.harness.race.carried_state import CarriedState
from ridgeline.harness.race.feeds import Feeds
from ridgeline.harness.race.layers import Layers
from ridgeline.harness.race.requests import Requests
from ridgeline.harness.race.rescue import Rescue, words_of
from ridgeline.records.race import RaceBlock, RaceMember, RaceMessage, RacePlan, RaceRequest
from ridgeline.records.run import Settings
from ridgeline.records.trial import Asked

MIN_WARM_UP_STEPS = 3
"""Steps of the baseline before the first request: lazy initialisation is over by then."""
MAX_SET_UP_STEPS = 24
"""Steps that a new candidate takes at most before it is timed."""
MAX_COMPILED_VARIANTS = 64
"""Limit of torch.compile for the code of one function: each candidate that compiles has code of its
own for it."""


class RaceSession(Session):
    def __init__(
        self, torch: Any, directory: Path, plan: RacePlan, requests: Requests,
        end: Callable[[], None],
    ) -> None:  # fmt: skip
        """`end` ends the program, and is called when the race is over."""
        settings = Settings(full=True, trace_steps=0, stop_after=0)
        super().__init__(torch, directory, settings, rank=0, world=1)
        self.progress.needs_every_step = True
        self.progress.recording.sample = _nothing  # type: ignore[method-assign]
        self._end_step = self.progress.end_step
        self.progress.end_step = self._step_ended  # type: ignore[method-assign]
        self._plan = plan
        self._end = end
        self.feeds = Feeds(torch)
        self.layers = Layers(torch, plan.functions)
        self.measuring = Measuring(torch, requests, plan.seed, self)
        self.carried = CarriedState(torch)
        self.rescue = Rescue(torch, self)
        self._steps = iter(self.measuring.steps())
        self._input_began_ns = 0
        self._rescued: Exception | None = None
        """The error for which a candidate was given up before its call had ended."""
        self._open_requests = 0
        """Calls of `generate` that have not returned yet."""

    def begin(self) -> None:
        """Listen to the program from now on."""
        config: Any = import_module("torch._dynamo.config")
        config.recompile_limit = max(config.recompile_limit, MAX_COMPILED_VARIANTS)
        Seams(self._torch, self).put_on()
        self.feeds.install()
        self.rescue.install()
        live.follow_forks()
        live.session = live.listener = self

    def leave(self) -> None:
        """Put back what `begin` and the candidates have put into the process."""
        self.layers.use(())
        self.feeds.close()
        self.feeds.end_copies()
        self.rescue.take_off()

    def end_steps_when_told(self) -> None:
        """End a step where `user_ended_step` is called, and nowhere else."""
        self._stepping.mode = "said"

    def race_by_requests(self) -> None:
        """Take a call of `generate` for a step."""
        follow_generate(self._request_begins, self._request_ended)

    def input_begins(self, iterator: Any) -> Any:
        self._input_began_ns = time.perf_counter_ns()
        return super().input_begins(iterator)

    def input_ends(self, token: Any) -> None:
        self.measuring.input_ns += time.perf_counter_ns() - self._input_began_ns
        super().input_ends(token)

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if not self.progress.off and self._jit_traces() is None:
            in_training = module.training or self._eval_trains
            trains = self._torch.is_grad_enabled() and in_training
            if trains or not self._plan.trains:
                self._apart(self.layers.call_begins, module, args, kwargs)
                if self._plan.trains and not self.measuring.is_ready:
                    self._apart(self.carried.follow, module)
                if not self._plan.trains:
                    self.feeds.trained()
        return super().call_begins(module, args, kwargs)

    def backward_begins(self, tensors: Any) -> Any:
        self.feeds.trained()
        return super().backward_begins(tensors)

    def call_ends(self, token: Any) -> None:
        error = sys.exc_info()[1]
        if token is not None and isinstance(error, Exception) and id(error) != token[-1]:
            self._give_up(error)  # before the call ends, and with it perhaps the step
        super().call_ends(token)

    def is_program_calling(self) -> bool:
        return not (self.gate.closed or self.progress.off)

    def given(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self.carried.cast(args, kwargs)

    def gives_up(self, error: Exception) -> bool:
        self._give_up(error)
        is_rescued, self._rescued = self._rescued is error, None
        return is_rescued

    def _give_up(self, error: Exception) -> None:
        if self.layers.on and not self.measuring.is_base_on():
            self._rescued = error
            self._optimizer_depth = 0
            self._apart(self.measuring.give_up, words_of(error))

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        self.layers.meet(optimizer)
        self.rescue.guard_update(optimizer)
        super().optimizer_begins(optimizer, *rest)

    def _can_run_operators(self) -> bool:
        """Return False: a race does not check gradients, because the check would be timed."""
        return False

    def _step_ended(self, end: End) -> None:
        compile_ns = self.progress.compiling.ns
        self._end_step(end)
        if end is End.EARLIER or (self._plan.trains and self._stepping.mode == "call"):
            return
        self.measuring.compile_ns += compile_ns
        if self._open_requests == 0:
            self._go_on()

    def _request_begins(self) -> None:
        self._open_requests += 1

    def _request_ended(self) -> None:
        self._open_requests -= 1
        if self._open_requests == 0 and not self.progress.off:
            self.measuring.compile_ns += self.progress.compiling.ns
            self._go_on()

    def _go_on(self) -> None:
        """Let the measuring go on to the next step."""
        self.layers.step_ended()
        self.measuring.steps_taken += 1
        self._apart(next, self._steps)
        self.measuring.compile_ns = 0

    def _apart(self, do: Any, *given: Any) -> None:
        """Do our own work without counting its calls as the program's."""
        closed, self.gate.closed = self.gate.closed, True
        try:
            do(*given)
        except Exception as error:
            self.measuring.answer(RaceMessage(fault=f"{type(error).__name__}: {error}"[:300]))
            self._end()
        finally:
            self.gate.closed = closed

    def _note_fault(self, where: str, error: Exception) -> None:
        super()._note_fault(where, error)
        if self._faults >= MAX_FAULTS:
            self.measuring.answer(RaceMessage(fault=f"{where}: {error}"[:300]))
            self._end()

    def end(self) -> None:
        """End the program: the race is over."""
        self.feeds.close()
        self._end()


class Measuring:
    """Measures what the requests ask for."""

    def __init__(self, torch: Any, requests: Requests, seed: int, session: RaceSession) -> None:
        self._torch = torch
        self._requests = requests
        self._session = session
        self._shuffle = random.Random(seed).shuffle
        self._set_up: set[bytes] = set()
        self._given_up: set[bytes] = set()
        """Sets of fixes, by their keys, under which the program raised."""
        self._on: tuple[RaceRequest, int] | None = None
        """The request and the index of the set that is on; None: no fix is on."""
        self.is_ready = False
        """Whether the program takes steady steps."""
        self.compile_ns = 0
        """Time that the step which has just ended spent compiling."""
        self.input_ns = 0
        """Time of the current block spent waiting for the loader."""
        self.steps_taken = 0
        """Steps that the program has taken."""
        self.answer = requests.answer

    def steps(self) -> Iterator[None]:
        yield from self._until_steady(MIN_WARM_UP_STEPS)
        began_ns = self._now_ns()
        yield
        self.is_ready = True
        self._session.carried.settle()
        self.answer(RaceMessage(ready=True, step_ns=self._now_ns() - began_ns))
        while not (request := (yield from self._next_request())).end:
            for number, fixes in enumerate(request.sets):
                if self._requests.is_waiting():
                    break
                yield from self._set_up_member(request, number, fixes)
            else:
                yield from self._rounds(request)
            self._use(())
            self.answer(RaceMessage(measured=request.number))
        self._session.end()
        yield

    def _now_ns(self) -> int:
        """Return the time by the host's clock once the device has done all its work."""
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        return time.perf_counter_ns()

    def _until_steady(self, least: int) -> Iterator[None]:
        """Take at least so many steps, and until two in a row compile nothing."""
        quiet = 0
        for taken in range(1, MAX_SET_UP_STEPS + 1):
            yield
            quiet = 0 if self.compile_ns else quiet + 1
            if taken >= least and quiet >= min(least, 2):
                return

    def _next_request(self) -> Generator[None, None, RaceRequest]:
        while (request := self._requests.take()) is None:
            yield
        return request

    def _use(self, fixes: tuple[Asked, ...]) -> None:
        self._session.feeds.use(self._session.layers.use(fixes))

    def _begin(self, request: RaceRequest, number: int) -> None:
        """Put a set on. If the process dies under it, the last message tells that it was on."""
        began = _member(request, number, began=True, steps=self.steps_taken)
        self.answer(RaceMessage(member=began))
        self._on = request, number
        self._use(request.sets[number])

    def is_base_on(self) -> bool:
        """Return whether the set that is on is what the others are compared with. Without it there
        is nothing to measure, and the process may end."""
        assert self._on is not None
        request, number = self._on
        return request.sets[number] == request.sets[0]

    def give_up(self, error: str) -> None:
        """Take off the set that is on, for good."""
        assert self._on is not None
        request, number = self._on
        self._given_up.add(_key(request.sets[number]))
        self._use(())
        self.answer(RaceMessage(member=_member(request, number, error=error)))

    def _set_up_member(
        self, request: RaceRequest, number: int, fixes: tuple[Asked, ...]
    ) -> Iterator[None]:
        """Apply a set of fixes for the first time, and let it compile."""
        key, began_ns, compile_ns = _key(fixes), time.perf_counter_ns(), 0
        if key not in self._set_up:
            self._set_up.add(key)
            self._begin(request, number)
            for _ in self._until_steady(request.set_up_steps):
                yield
                compile_ns += self.compile_ns
                if key in self._given_up:
                    return
            if self._session.feeds.active is not None:
                for _ in range(self._session.feeds.steps_ahead()):
                    yield
        if key not in self._given_up:
            self._note_member(request, number, fixes, began_ns, compile_ns)

    def _note_member(
        self, request: RaceRequest, number: int, fixes: tuple[Asked, ...], began_ns: int,
        compile_ns: int,
    ) -> None:  # fmt: skip
        outcomes = [layer.program.outcome() for layer in self._session.layers.of(fixes)]
        member = _member(
            request, number,
            applied=tuple(one for applied, _ in outcomes for one in applied),
            not_applied=tuple(one for _, missing in outcomes for one in missing),
            compile_s=compile_ns / 1e9, setup_s=(time.perf_counter_ns() - began_ns) / 1e9,
        )  # fmt: skip
        self.answer(RaceMessage(member=member))

    def _rounds(self, request: RaceRequest) -> Iterator[None]:
        order = list(range(len(request.sets)))
        for number in range(request.rounds):
            self._shuffle(order)
            blocks = []
            for member in order:
                if _key(request.sets[member]) in self._given_up:
                    continue
                self._begin(request, member)
                for _ in range(request.skipped_steps):
                    yield
                block = _Block(self._torch, self, self._session.feeds)
                for _ in range(request.block_steps):
                    yield
                    block.compile_ns += self.compile_ns
                block.end()
                if _key(request.sets[member]) not in self._given_up:
                    blocks.append((member, block))
            for member, block in blocks:
                self.answer(RaceMessage(block=block.record(request, member, number)))
            if self._requests.is_waiting():
                return


def _key(fixes: tuple[Asked, ...]) -> bytes:
    return msgspec.json.encode(fixes, order="sorted")


def _member(request: RaceRequest, number: int, **facts: Any) -> RaceMember:
    return RaceMember(request=request.number, member=number, **facts)


class _Block:
    """Consecutive steps that are timed, by the device's clock if there is one."""

    def __init__(self, torch: Any, measuring: Measuring, feeds: Feeds) -> None:
        self._torch = torch
        self._measuring = measuring
        self._feeds = feeds
        self._restarts = feeds.restarts
        self._workers = 0
        self._on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.compile_ns = 0
        measuring.input_ns = 0
        if self._on_device:
            torch.cuda.reset_peak_memory_stats()
        self._began = self._marks()
        self._ended = self._began
        self._input_ns = self._peak_bytes = 0

    def _marks(self) -> tuple[int, tuple[int, int], Any]:
        event = None
        if self._on_device:
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
        return time.perf_counter_ns(), (get_ident(), read_queued(self._torch) or 0), event

    def end(self) -> None:
        self._ended = self._marks()
        self._restarts = self._feeds.restarts - self._restarts
        self._workers = self._feeds.workers()
        self._input_ns = self._measuring.input_ns
        if self._on_device:
            self._peak_bytes = self._torch.cuda.max_memory_allocated()

    def record(self, request: RaceRequest, member: int, number: int) -> RaceBlock:
        (wall, queued, event), (wall_end, queued_end, event_end) = self._began, self._ended
        wall_ns = wall_end - wall
        same_thread = queued[0] == queued_end[0]
        if event is not None:
            event_end.synchronize()
            wall_ns = round(1e6 * event.elapsed_time(event_end))
        return RaceBlock(
            request=request.number, member=member, round=number, steps=request.block_steps,
            wall_ns=wall_ns, queued_ns=queued_end[1] - queued[1] if same_thread else 0,
            input_ns=self._input_ns, workers=self._workers, peak_bytes=self._peak_bytes,
            compile_ns=self.compile_ns, restarts=self._restarts,
        )  # fmt: skip


def _nothing(makes_batches: bool = False) -> None:
    pass
