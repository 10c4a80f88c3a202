"""The session of a trial: a run with fixes applied, whose first steps are watched and whose other
steps are timed."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.fixes.fix import find_fix
from ridgeline.fixes.program import Program
from ridgeline.harness.capture import live
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.capture.session import MAX_FAULTS, Session
from ridgeline.harness.capture.step_boundaries import End
from ridgeline.harness.trials.function_edits import rewrite
from ridgeline.harness.trials.loader_queue import QueueWatch
from ridgeline.harness.trials.process_memory import ON_DEVICE
from ridgeline.harness.trials.random_draws import LoaderDraws, NoDropout
from ridgeline.harness.trials.timed_steps import EnergyMeter
from ridgeline.harness.trials.watched_steps import Watch
from ridgeline.harness.usercode.forked_work import FORK_MARK, DirectWork, ForkedWork
from ridgeline.records.run import Settings
from ridgeline.records.trial import Plan


class TrialSession(Session):
    def __init__(
        self, torch: Any, directory: Path, plan: Plan, program: Program, rank: int, world: int
    ) -> None:
        settings = Settings(full=True, trace_steps=0, stop_after=plan.steps, steps=plan.steps)
        super().__init__(torch, directory, settings, rank, world)
        self.program = program
        self.watch = Watch(torch, plan.watch, self._work(directory))
        self.meter = EnergyMeter(torch)
        self.queue = QueueWatch()
        self.over: Callable[[], None] | None = None
        """Ends the program; called when its last step has ended."""
        self._not_steps = 0
        """How many were counted as steps and were none: see `_only_calls`."""
        self.plan = plan
        self.directory = directory
        self.loader_draws = LoaderDraws(torch)
        self._jitter = plan.jitter
        self.steps = plan.steps
        """How many steps are taken at least."""
        self._timed_ns = 0
        """When the first timed step began; 0 before that."""
        self._awaited: Any = None
        """The module whose outputs are to be noted when it returns."""
        self.progress.needs_every_step = True  # every trial pays the same
        # A program whose loader waits would be sampled, and slowed, and its candidates would not.
        self.progress.recording.sample = _nothing  # type: ignore[method-assign]
        self._end_step = self.progress.end_step
        self.progress.end_step = self._step_ended  # type: ignore[method-assign]

    def _work(self, directory: Path) -> DirectWork:
        return ForkedWork(self._torch, directory / FORK_MARK)

    def begin(self, *, sees_outputs: bool) -> None:
        """Apply the fixes of the plan, and listen to the program from now on: with `sees_outputs`
        also to what its modules return, which is all that a program without training computes."""
        self.loader_draws.install()
        self._set_draws()
        apply_fixes(self.program, self.plan)
        (OutputSeams if sees_outputs else Seams)(self._torch, self).put_on()
        live.follow_forks()
        live.session = live.listener = self

    def _set_draws(self) -> None:
        """Make the program draw random numbers as the plan says."""
        if self.plan.draws != "own":
            setattr(import_module("torch._inductor.config"), "fallback_random", True)  # noqa: B010
        if self.plan.draws == "none":
            no_dropout = NoDropout(self._torch)
            no_dropout.install()
            if not any(find_fix(one.fix).fix.slot == "compile" for one in self.plan.fixes):
                self.watch.no_dropout = no_dropout  # calls of a compiled model are not seen

    def input_seen(self, iterator: Any, batch: Any) -> Any:
        self._guarded(self.queue.batch_taken, iterator, self.progress.index)
        return super().input_seen(iterator, batch)

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if not self.progress.off and self._jit_traces() is None:
            in_training = module.training or self._eval_trains
            trains = self._torch.is_grad_enabled() and in_training
            if trains or not self.plan.trains:
                if trains and self._stepping.ends_with_forward and not self._in_closure:
                    self._guarded(self._end_before, module)
                if self._jitter and next(module.parameters(), None) is not None:
                    self._guarded(self._perturb, module)
                if self.watch.over:
                    self._guarded(self.watch.later.called, args, kwargs)
                else:
                    self._apart(self.watch.call, module, args, kwargs)
                self.program.call_begins(module, args, kwargs)
                self._apart(self.watch.changed, module)
        token = super().call_begins(module, args, kwargs)
        if token is not None and not (self.plan.trains or self.watch.over):
            self._awaited = module
        return token

    def call_ends(self, token: Any) -> None:
        if token is not None and not (self.progress.off or self.watch.over):
            self._apart(self.watch.call_ended)
        super().call_ends(token)

    def _can_run_operators(self) -> bool:
        """Return False: a trial does not check gradients, because the check would be timed."""
        return False

    def _end_before(self, module: Any) -> None:
        """End the step before this call, so that its inputs are counted in their own step."""
        if next(module.parameters(), None) is not None and self._is_training_thread(trains=True):
            self.progress.end_step(self._stepping.training_forward_begins())

    def call_returned(self, module: Any, value: Any) -> Any:
        """Note what an outermost module returns, before the call ends and with it perhaps the
        step."""
        if self._awaited is module:
            self._awaited = None
            self._guarded(self.watch.returned, value)
        return value

    def backward_begins(self, tensors: Any) -> Any:
        self._guarded(self.watch.backward, tensors)
        return super().backward_begins(tensors)

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if self._optimizer_depth == 0:
            self._guarded(self.watch.update, optimizer)
        super().optimizer_begins(optimizer, *rest)

    def scaler_begins(self, scaler: Any, optimizer: Any) -> Any:
        self._guarded(self.watch.scaled, scaler)
        return super().scaler_begins(scaler, optimizer)

    def scaler_ends(self, token: Any) -> None:
        if token is not None:
            _, counts, before, index = token
            if self.progress.index == index and counts.optimizer_steps == before:
                self.watch.skipped()
        super().scaler_ends(token)

    def _step_ended(self, end: End) -> None:
        if end is End.DROP:
            self.watch.begin_again()
        elif end is End.MERGE:
            self.watch.merge_into_this()
        elif end is End.EARLIER:
            self.watch.merge_steps()
        compiled = self.progress.compiling.ns > 0
        self._end_step(end)
        if self._only_calls:
            self._not_steps = self.progress.index
        elif self.progress.index <= self._not_steps:  # counted from the start again
            self._not_steps = 0
        if end is not End.EARLIER and not self._only_calls:
            was_over = self.watch.over
            if was_over:
                self.watch.later.step_ended(self.progress.index - 1)
            self._apart(self.watch.step_ended)
            if self.watch.over and not was_over:
                self._guarded(self.meter.prepare)
                self._guarded(self._mark_device)
                self.progress.timeline.restart(self.progress.clock())
                self.progress.system.begin(anew=True)
            self.program.step_ended()
            if self.watch.later.looked is None:
                self._guarded(self._read_meter, compiled)
                self._look_if_due()

    def _read_meter(self, compiled: bool) -> None:
        """Begin after the step that follows the last watched one, which is not timed, and begin
        again after a step that compiles."""
        taken, first = self._taken, self.plan.watch + 1
        if taken == first or (taken > first and compiled):
            self._timed_ns = self.progress.clock()
            self.meter.begin(taken)
        elif taken > first:
            self.meter.ended(taken, taken >= self.steps - 1 and not self.goes_on)

    def _look_if_due(self) -> None:
        """Note the parameters before the last step, which shows whether they still move."""
        due = self.plan.watch < self.steps <= self._taken + 1
        if due and self.watch.over and not self.goes_on:
            self.progress.system.end()
            self._apart(self.watch.later.look, self.progress.index)
            self.progress.timeline.restart(self.progress.clock())

    def _mark_device(self) -> None:
        if self._torch.cuda.is_initialized():
            (self.directory / ON_DEVICE).touch()

    @property
    def goes_on(self) -> bool:
        """Whether the timed steps have not taken long enough yet, however many they are."""
        passed_s = (self.progress.clock() - self._timed_ns) / 1e9
        return self._timed_ns > 0 and passed_s < self.plan.least_s

    @property
    def _taken(self) -> int:
        return self.progress.index - self._not_steps

    def _note_fault(self, where: str, error: Exception) -> None:
        super()._note_fault(where, error)
        if self._faults >= MAX_FAULTS and self.over is not None:
            self.over()  # nothing is counted any more, and the program would run to its end

    @property
    def _only_calls(self) -> bool:
        """Whether no backward has come yet in a program that trains: it calls a cell once per
        token, or a policy once per move, and what is counted as steps are parts of the first that
        trains."""
        return self.plan.trains and self._stepping.mode == "call"

    def _stop_if_due(self) -> None:
        due = self._taken >= self.steps and not self._only_calls
        if due and not self.goes_on and self.over is not None and not self.watch.waits:
            self._stopped = True
            self.over()

    def _perturb(self, module: Any) -> None:
        """Move each element of the parameters by the planned part of itself, up or down, without
        drawing from the program's own random numbers."""
        torch, size, self._jitter = self._torch, self._jitter, 0.0
        generator = torch.Generator("cpu").manual_seed(0)
        with torch.no_grad(), self.watch.uncounted():
            for parameter in module.parameters():
                if parameter.is_floating_point():
                    # The program may have made another device the default.
                    up = torch.randint(0, 2, parameter.shape, generator=generator, device="cpu")
                    up = up * 2 - 1
                    parameter.mul_(1 + size * up.to(parameter.device, parameter.dtype))

    def _apart(self, do: Any, *given: Any) -> None:
        """Do our own work without counting its calls as the program's."""
        closed, self.gate.closed = self.gate.closed, True
        try:
            self._guarded(do, *given)
        finally:
            self.gate.closed = closed

    def _guarded(self, do: Any, *given: Any) -> None:
        try:
            do(*given)
        except Exception as error:
            self.watch.problems.append(f"{type(error).__name__}: {error}"[:200])


def apply_fixes(program: Program, plan: Plan) -> None:
    """Apply the fixes of a plan; one that raises is noted as not applied."""
    for one in plan.fixes:
        try:
            find_fix(one.fix).apply(program, one.options)
        except Exception as error:
            program.failed(one.fix, error)
    if plan.functions:
        rewrite(program, "sdpa", plan.functions)


def _nothing(makes_batches: bool = False) -> None:
    pass


class OutputSeams(Seams):
    """The seams of a program that does not train: they also see what its modules return."""

    def __init__(self, torch: Any, session: TrialSession) -> None:
        super().__init__(torch, session)
        self._see_call = session.call_returned
