"""A run in progress: turns the calls of the seams into phases, counts and ends of steps.

Everything here runs inside the user's program, between its own lines. Each entry point is guarded:
an error of ours is recorded, after a few of them the seams do nothing more, and the program goes
on.
"""

import contextlib
import sys
import weakref
from pathlib import Path
from threading import get_ident
from typing import Any

from ridgeline.harness.capture import live
from ridgeline.harness.capture.inventory import Root
from ridgeline.harness.capture.places import user_function
from ridgeline.harness.capture.progress import MIN_SETTLE_STEPS, Progress
from ridgeline.harness.capture.step_boundaries import Anchor, End
from ridgeline.harness.capture.step_counts import NOTHING, Amount, BackwardReach, batch_amount
from ridgeline.harness.capture.step_times import BACKWARD, FORWARD, INPUT, OPTIMIZER, QUIET
from ridgeline.harness.capture.tracing import end_without_kineto
from ridgeline.records.run import Settings, Status

MAX_FAULTS = 5
"""After this many errors of ours the seams do nothing more."""


class StopAfter(SystemExit):
    """Raised at the end of the last requested step, so that the program ends as by sys.exit(0)."""


class Session:
    """The recording of this process. The methods of a seam come in pairs: the value that the first
    returns is passed to the second; None means that the call is not recorded."""

    def __init__(
        self, torch: Any, directory: Path, settings: Settings, rank: int, world: int
    ) -> None:
        self.progress = Progress(torch, directory, settings, rank, world)
        self.gate = self.progress.gate
        self._torch = torch
        self._jit_traces = torch._C._get_tracing_state
        self._stop_after = settings.stop_after
        self._stop_after_ns = 1e9 * settings.stop_after_s if world == 1 else 0.0
        self._timeline = self.progress.timeline
        self._stepping = self.progress.stepping
        self._optimizer_depth = 0
        self.has_nested_optimizers = False
        """Whether an optimizer's step called the step of its parent class: hooks see both."""
        self._in_backward = False
        self._ends_after_backward = End.NO
        self._reach = BackwardReach(torch)
        self._batch = NOTHING
        """Size of the batches that loaders handed out and no module was called with yet."""
        self._handed: tuple[int, Any] = (0, None)
        """The id of the loader that handed out the last batch, and a weak reference to its
        iterator."""
        self._followed = LiveOptimizers(self._stepping.anchor)
        self._eval_trains = self._eval_with_grad = self._train_mode_seen = False
        self._stopped = False
        self._faults = 0
        self.progress.recording.workers_sample(directory)
        self.progress.recording.memory.watch()

    def input_begins(self, iterator: Any) -> Any:
        if self.progress.off or not self._is_training_thread():
            return None
        try:
            if self._optimizer_depth:  # an optimizer step raised, so that its end was not seen
                self._optimizer_depth = 0
                self._timeline.unwind()
            end = self._stepping.input_begins()
            if end is not End.NO:
                self.progress.end_step(end)
            self._timeline.enter(INPUT)
            self.progress.loaders.wait_begins()
        except Exception as error:
            return self._note_fault("input", error)
        return iterator

    def input_seen(self, iterator: Any, batch: Any) -> Any:
        try:
            if not self.progress.off and self._is_training_thread():
                self.progress.loaders.handed_out(iterator, self.progress.index)
                size = getattr(iterator._index_sampler, "batch_size", None)
                known = size if type(size) is int else None
                self._hand_out(iterator, batch_amount(self._torch, batch, known))
        except Exception as error:
            self._note_fault("input", error)
        return batch

    def input_ends(self, token: Any) -> None:
        if token is not None and not self.progress.off:
            self._leave("input")

    def loader_made(self, loader: Any) -> None:
        """Note that a thread of the program has made a DataLoader."""
        if self.progress.off:
            return
        try:
            self.progress.loaders.made(loader)
        except Exception as error:
            self._note_fault("loader", error)

    def child_starts(self, process: Any) -> None:
        """Note that the program starts a process of its own."""
        if self.progress.off:
            return
        try:
            self.progress.children.started(process)
        except Exception as error:
            self._note_fault("child", error)

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self.progress.off or self._jit_traces() is not None:
            return None  # torch.jit.trace would record our operations on tensors
        try:
            grad = self._torch.is_grad_enabled()
            training = grad and (module.training or self._eval_trains)
            if not self._is_training_thread(trains=training):
                return None
            self.progress.compiling.watch()
            root = self.progress.roots.of(module)
            model = bool(root.parameters) or not grad  # else a loss or a single activation
            if grad and model:
                self._train_mode_seen |= module.training
                self._eval_with_grad |= not module.training
            if training and model and not self._in_closure:
                end = self._stepping.training_forward_begins()
                if end is not End.NO:
                    self.progress.end_step(end)
            self._note_call(root, id(module), training, model, args, kwargs)
            self._timeline.enter(FORWARD if training else QUIET)
            self.gate.closed = True
            return (id(module), training, model, id(sys.exc_info()[1]))
        except Exception as error:
            return self._note_fault("forward", error)

    def call_ends(self, token: Any) -> None:
        if token is None or self.progress.off:
            return
        self.gate.closed = False
        try:
            self._timeline.leave()
            who, training, model, handled = token  # `handled`: an exception caught before the call
            if training:
                raised = id(sys.exc_info()[1]) != handled  # its batch was used all the same
                self.progress.counts.trained.ends(0 if raised else self._reach.next_node())
            if model:
                end = self._stepping.call_done(who, training)
                if end is not End.NO:
                    self.progress.end_step(end)
        except Exception as error:
            self._note_fault("forward", error)
            return
        self._stop_if_due()

    def backward_begins(self, tensors: Any) -> Any:
        if self.progress.off or not self._is_training_thread(trains=True):
            return None
        try:
            counts = self.progress.counts
            if self._eval_with_grad and not (self._train_mode_seen or self._eval_trains):
                self._eval_trains = True  # a model fine-tuned in eval mode
                counts.count_quiet_as_training()
                self.progress.roots.count_quiet_as_training()
                self._timeline.count_quiet_as_training()
            counts.backwards += 1
            if self._can_run_operators():
                self.progress.clearing.backward_begins()
            counts.trained.backward(lambda calls: self._reach.reached_calls(tensors, calls))
            counts.loss, counts.loss_divisor = self.progress.losses.of_backward(
                tensors, self._number
            )
            self._timeline.enter(BACKWARD)
            self._in_backward = self.gate.closed = True
        except Exception as error:
            return self._note_fault("backward", error)
        return True

    def backward_ends(self, token: Any) -> None:
        if token is None or self.progress.off:
            return
        self._in_backward = self.gate.closed = False
        try:
            self._timeline.leave()
            self.progress.clearing.backward_ended()
            self._stepping.backward_done()
            later, self._ends_after_backward = self._ends_after_backward, End.NO
            if later is not End.NO:
                self.progress.end_step(later)
        except Exception as error:
            self._note_fault("backward", error)
            return
        if later is not End.NO:
            self._stop_if_due()

    def optimizer_begins(self, optimizer: Any, *rest: Any) -> None:
        if not self.progress.detailed:  # the step is only timed, and this is all it costs
            self._optimizer_depth += 1
            return
        if self.progress.off:
            self._wake()
        if self.progress.off or not (self._in_backward or self._is_training_thread(trains=True)):
            return
        try:
            self._optimizer_depth += 1
            if self._optimizer_depth == 1:
                self._timeline.enter(OPTIMIZER)
                found_inf = getattr(optimizer, "found_inf", None)  # set by a scaler for fused steps
                if found_inf is not None:
                    self.progress.counts.overflow = self._number(found_inf)
        except Exception as error:
            self._note_fault("optimizer", error)

    def optimizer_ends(self, optimizer: Any, *rest: Any) -> None:
        if not self.progress.detailed and self._timed_only(optimizer):
            return
        mine = not self.progress.off and (self._in_backward or self._is_training_thread())
        if not mine or not self._optimizer_depth:
            return
        try:
            self._optimizer_depth -= 1
            if self._optimizer_depth:  # a subclass that calls its parent's step
                self.has_nested_optimizers = True
                return
            self._timeline.leave()
            self.progress.counts.optimizer_steps += 1
            self.progress.optimizers.stepped(optimizer)
            if self._can_run_operators():
                self.progress.clearing.stepped(optimizer)
            else:
                self.progress.clearing.pass_over()
            end = self._stepped(optimizer)
            if self._in_backward:  # a profiler started or stopped inside a backward crashes
                self.progress.needs_every_step = True
                if end not in (End.NO, End.EARLIER) and self._ends_after_backward is End.NO:
                    self._ends_after_backward = end
                return
            if end is not End.NO:
                self.progress.end_step(end)
        except Exception as error:
            self._note_fault("optimizer", error)
            return
        self._stop_if_due()

    def _timed_only(self, optimizer: Any) -> bool:
        """End a step that is only timed, and return True. Return False if another optimizer than
        the anchor has stepped, which needs every detail."""
        try:
            if self._optimizer_depth > 1:  # a subclass that calls its parent's step
                self._optimizer_depth -= 1
                return True
            if id(optimizer) != self._stepping.anchor.optimizer_id:
                self.progress.detail_every_step()
                return False
            self._optimizer_depth = 0
            self.progress.time_step()
        except Exception as error:
            self._note_fault("optimizer", error)
            return True
        self._stop_if_due()
        return True

    def scale_begins(self, scaler: Any, outputs: Any) -> Any:
        """Note the loss that a gradient scaler is about to multiply: users know the loss before
        scaling."""
        if self.progress.off or not self._is_training_thread(trains=True):
            return None
        try:
            self.progress.losses.before_scaling(outputs, self._number(outputs))
        except Exception as error:
            return self._note_fault("scaler", error)
        return True

    def scale_seen(self, scaler: Any, scaled: Any) -> Any:
        self.progress.losses.scaled(scaled)
        return scaled

    def scaler_begins(self, scaler: Any, optimizer: Any) -> Any:
        if self.progress.off or not self._is_training_thread(trains=True):
            return None
        self.progress.recording.scaler = True
        if not self.progress.needs_every_step and getattr(
            optimizer, "_step_supports_amp_scaling", False
        ):
            self.progress.detail_every_step()  # the optimizer itself decides whether to skip
        counts = self.progress.counts
        return (optimizer, counts, counts.optimizer_steps, self.progress.index)

    def scaler_ends(self, token: Any) -> None:
        """End the step even if the scaler did not call the optimizer."""
        if token is None or self.progress.off:
            return
        try:
            optimizer, counts, before, index = token
            if self.progress.index == index and counts.optimizer_steps == before:
                counts.skipped = True
                end = self._stepped(optimizer)
                if end is not End.NO:
                    self.progress.end_step(end)
        except Exception as error:
            self._note_fault("scaler", error)
            return
        self._stop_if_due()

    def zero_grad_begins(self, optimizer: Any) -> Any:
        if self.progress.off or not self._is_training_thread():
            return None
        try:
            self._timeline.enter(OPTIMIZER)
        except Exception as error:
            return self._note_fault("zero_grad", error)
        return True

    def zero_grad_ends(self, token: Any) -> None:
        if token is not None and not self.progress.off:
            self._leave("zero_grad")

    def profiler_begins(self, profiler: Any) -> Any:
        try:
            self.progress.pauses.stop()
            tracing = self.progress.recording.tracing
            if tracing.running and not tracing.starting:
                self.progress.yield_to_profiler()
        except Exception as error:
            self._note_fault("profiler", error)
        return None

    def user_ended_step(self) -> None:
        if self.progress.off:
            return
        try:
            self.progress.detail_every_step()
            self.progress.end_step(self._stepping.user_ended_step())
        except Exception as error:
            self._note_fault("ridgeline.step", error)
            return
        self._stop_if_due()

    def region_begins(self, name: str) -> Any:
        self.progress.detail_every_step()
        record = self._torch.profiler.record_function(name)
        record.__enter__()
        return (name, self.progress.clock(), record)

    def region_ends(self, token: Any) -> None:
        name, began, record = token
        record.__exit__(None, None, None)
        regions = self.progress.counts.regions
        regions[name] = regions.get(name, 0) + self.progress.clock() - began

    def farewell(self, ended: Status, why: str) -> bool:
        """Note that the program, or the block, is over. Return whether that could be written."""
        if ended == "raised":
            self.progress.note_shortage()
        ended = "stopped" if self._stopped and ended == "finished" else ended
        return self.progress.farewell(ended, why)

    def forked(self) -> None:
        """Stop recording in a forked child of the program."""
        self.progress.stop()
        live.listener = None
        tracing = self.progress.recording.tracing
        if tracing.running and sys.getprofile() is not None:
            sys.setprofile(None)  # else the profiler's hook would go on collecting
        if tracing.used:
            with contextlib.suppress(Exception):  # another C library has no on_exit
                end_without_kineto()

    def _leave(self, phase: str) -> None:
        try:
            self._timeline.leave()
        except Exception as error:
            self._note_fault(phase, error)

    def _hand_out(self, iterator: Any, given: Amount) -> None:
        """Add a batch to those handed out and not used yet. An earlier batch does not count if it
        was only a probe: its iterator, of the same loader, was discarded."""
        loader, (before, from_iterator) = id(iterator._index_sampler), self._handed
        have = self._batch
        if have.samples and not (before == loader and from_iterator() is None):
            given = Amount(have.samples + given.samples, have.tokens + given.tokens)
        self._batch, self._handed = given, (loader, weakref.ref(iterator))

    @property
    def _in_closure(self) -> bool:
        """Whether a closure is running inside `optimizer.step(closure)`. However often the closure
        is called, it is one step."""
        return self._optimizer_depth > 0

    def _stepped(self, optimizer: Any) -> End:
        self._followed.meet(optimizer)
        return self._stepping.optimizer_stepped(id(optimizer))

    def _is_training_thread(self, trains: bool = False) -> bool:
        """Return whether the calling thread is the one that trains. That is the first thread seen;
        as long as nothing has trained, a training call on another thread (`trains`) replaces it."""
        here, owner = get_ident(), self.progress.thread
        if owner == here:
            return True
        if owner is None or (trains and not self._stepping.trains):
            self.progress.thread = here
            return True
        return False

    def _note_call(
        self, root: Root, who: int, training: bool, model: bool, args: Any, kwargs: Any
    ) -> None:
        counts = self.progress.counts
        calls = counts.trained if training else counts.quiet
        if model:
            self.progress.loaders.used(training)
        batch, self._batch = self._batch, NOTHING
        calls.forwards += model
        given = NOTHING
        if model and not (batch.samples or calls.fetched):  # no loader: count the module's inputs
            given = batch_amount(self._torch, (*args, *kwargs.values()))
        if model or batch.samples:
            calls.begins(who, given, batch, self._reach.next_node())
        first = not root.calls and (training or not root.quiet_calls)
        if training:
            root.calls += 1
        else:
            root.quiet_calls += 1
        if first:
            self._first_call(root, args, kwargs)
        if not (training or root.evaluation_place):
            root.evaluation_place = user_function()

    def _first_call(self, root: Root, args: Any, kwargs: Any) -> None:
        self.progress.roots.describe(root, args, kwargs)
        if root.cuda_index is not None:
            self.progress.on_device(root.cuda_index)
        for kind in ("cuda", "cpu"):
            if self._torch.is_autocast_enabled(kind):
                dtype = str(self._torch.get_autocast_dtype(kind)).removeprefix("torch.")
                self.progress.recording.autocast.add(f"{kind} {dtype}")

    def _can_run_operators(self) -> bool:
        """Return whether our own operators would go unnoticed: no trace runs, and the program has
        no dispatch mode or function mode on."""
        own = self._torch._C
        return not (
            self.progress.recording.tracing.running
            or own._len_torch_dispatch_stack()
            or own._len_torch_function_stack()
        )

    def _number(self, tensors: Any) -> Any:
        if self.progress.recording.tracing.running:
            return None  # the trace would show our copy to the host
        try:
            return self.progress.losses.note(tensors)
        except Exception:
            return None  # a tensor class of the program's own

    def _wake(self) -> None:
        if self._stepping.mode == "call" and self._faults < MAX_FAULTS and not self._stopped:
            self.progress.wake()

    def _stop_if_due(self) -> None:
        try:
            is_due = self._took_enough_steps() or self._took_long_enough()
        except Exception as error:
            self._note_fault("the end after enough steps", error)
            is_due = False
        if is_due:
            self._stopped = True
            self.progress.stopping()
            raise StopAfter(0)

    def _took_enough_steps(self) -> bool:
        return 0 < self._stop_after <= self.progress.index

    def _took_long_enough(self) -> bool:
        limit_ns = self._stop_after_ns
        if not limit_ns or self.progress.index < MIN_SETTLE_STEPS:
            return False
        spent_ns = self.progress.spent_ns
        return spent_ns > 2 * limit_ns or (spent_ns > limit_ns and self.progress.is_traced)

    def _note_fault(self, where: str, error: Exception) -> None:
        """Record an error of ours, which the program must not notice."""
        self.progress.recording.fault(where, error)
        self._faults += 1
        self.gate.closed = False
        if self._faults >= MAX_FAULTS:
            self.progress.stop()


class LiveOptimizers:
    """Tells the anchor when an optimizer has been deleted, because its id may then be reused."""

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor
        self._alive: dict[int, Any] = {}

    def meet(self, optimizer: Any) -> None:
        who = id(optimizer)
        if who in self._alive:
            return

        def gone(_: Any) -> None:
            self._alive.pop(who, None)
            self._anchor.gone(who)

        with contextlib.suppress(TypeError):  # a class without weak references
            self._alive[who] = weakref.ref(optimizer, gone)
