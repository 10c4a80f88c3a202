"""`ridgeline.optimize`: fixes tried on a step function, for notebooks and tests."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from ridgeline.errors import UsageError
from ridgeline.fixes.catalog import whole_step_graph
from ridgeline.fixes.fix import Registered, registered
from ridgeline.fixes.live_objects import loader_arguments, with_settings
from ridgeline.harness.capture import live
from ridgeline.harness.capture.seams import begin, end
from ridgeline.harness.capture.tracing import kineto_silenced, pack
from ridgeline.integrations.run_lifecycle import begin_run
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.candidates import Candidate, allowed_fixes, attention_edits, candidates
from ridgeline.optimization.diagnosis import Diagnosis, read_diagnosis
from ridgeline.optimization.function_bench import FunctionBench
from ridgeline.optimization.function_program import Batches, StepSubject
from ridgeline.optimization.function_race import FunctionRaceProcess
from ridgeline.optimization.function_state import SavedState, everything_restored
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.measure import MEASURES
from ridgeline.optimization.race import Race, Standing
from ridgeline.optimization.race_search import Racing
from ridgeline.optimization.search import Progress
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Goal, Optimized, Rung, Total
from ridgeline.records.race import RacePlan
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import Settings, Status, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Asked
from ridgeline.report.notebook import ShownAsPage
from ridgeline.report.reasons import explain
from ridgeline.units import parse_seconds

if TYPE_CHECKING:
    import torch

    from ridgeline.report.document import Document

WATCHED_STEPS = 8
MIN_TRIAL_STEPS, MAX_TRIAL_STEPS = 16, 300
TRIAL_S = 0.7
"""Time of the timed steps of a trial. Nothing has to be started for a trial in this process, so
that many short trials are better than a few long ones."""
MIN_DIAGNOSED_STEPS, MAX_DIAGNOSED_STEPS = 20, 80
"""Steps that are diagnosed: some to settle, ten timed, three traced, and the rest timed again."""
MAX_DIAGNOSIS_S = 20.0
"""Above the minimum no more steps are diagnosed after this time: slow steps are soon known."""
_NEEDS_PROCESS = ("affinity", "kept-memory")
"""Fixes that need a process of their own, besides those that are environment variables."""


class Result(ShownAsPage):
    """Holds what `ridgeline.optimize` found. `print(result)` shows it, a notebook shows its page,
    and `optimized` is the record."""

    def __init__(self, optimized: Optimized) -> None:
        self.optimized = optimized

    @property
    def total(self) -> Total | None:
        """All kept fixes together against the step as it was; None if nothing was kept."""
        return self.optimized.total

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Every fix, with what became of it and why."""
        return self.optimized.rungs

    @property
    def confirmed(self) -> bool:
        """Whether something was kept, and all of it together was better and equal once more."""
        return self.optimized.is_confirmed

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the kept fixes. Each was better and equal when it was tried; `confirmed` says
        whether all of them together are."""
        return tuple(rung.fix for rung in self.rungs if rung.status == "kept")

    def document(self) -> "Document":
        from ridgeline.report.views.optimized import document

        return document(self.optimized)


def optimize(
    step: Callable[..., Any],
    *,
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | None" = None,
    loader: Iterable[Any],
    budget: str | float = "2m",
    keep_exact: bool = False,
    goal: Goal = "speed",
    batch: bool = False,
    allow: str | Sequence[str] = (),
    quiet: bool = False,
) -> Result:
    """Try what a specialist would try on a step function, and keep what is proven.

    The step is diagnosed first. Then the fixes that could help (precision, compilation, data
    loading, fused updates and others) are tried one after the other. A fix is kept if the step is
    faster with it and computes the same losses, gradients and updates. At the end all kept fixes
    are confirmed together.

    Every trial begins in the state that model, optimizer, loader and random numbers have now, and
    that state is restored when the call returns. The result says what to change; nothing stays
    applied.

        def step(model, optimizer, batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()

        result = ridgeline.optimize(step, model=model, optimizer=optimizer, loader=loader)
        print(result)          # what was kept, the speedup with its interval, what to write
        result.kept            # ("autocast", "compile")
        result.total.ratio     # the speedup of all of it: value, ci_low, ci_high

    Args:
        step: `step(model, optimizer, batch)` takes one training step, and `step(model, batch)` one
            step of inference. `step(batch)` may close over whatever it needs.
        model: The module that the step calls.
        optimizer: The optimizer that trains it; None for inference.
        loader: A DataLoader, a list of batches, or anything that can be iterated again and again.
        budget: Time limit for the whole call, such as "90s", "10m" or a number of seconds.
        keep_exact: Try only fixes that keep results to the bit: nothing that alters rounding or
            random draws.
        goal: What is to become smaller: the time of a step ("speed") or of a sample
            ("throughput"), the peak of memory ("memory"), or the energy of a sample ("energy").
        batch: Also try larger batches. They train differently, and are reported apart.
        allow: Names of fixes that alter what is computed and may be tried, such as
            "int8-dynamic".
        quiet: Print nothing to stderr meanwhile.

    Returns:
        A `Result` with the kept fixes, every fix that was tried or skipped with the reason, and
        the proof. In a notebook it shows itself as a page.

    Raises:
        UsageError: An argument makes no sense; the message says what was expected.

    Whatever the step raises in its first, unchanged trial is raised here.
    """
    import torch

    may = allowed_fixes([allow] if isinstance(allow, str) else allow)
    if keep_exact and may.names:
        raise UsageError(f"keep_exact and allow={may.names}: one or the other")
    if goal not in get_args(Goal):
        raise UsageError(f"goal {goal!r} is none of {', '.join(get_args(Goal))}")
    settings = SearchSettings(
        goal=goal, keep_exact=keep_exact, batch=batch, allow=may.names, as_arguments=True
    )
    seconds = parse_seconds("budget", budget)
    _check_alone(torch)
    subject = StepSubject(torch, step, model, optimizer, loader)
    with (
        tempfile.TemporaryDirectory(prefix="ridgeline-", ignore_cleanup_errors=True) as folder,
        _progress(quiet) as progress,
    ):
        return Result(_search(torch, subject, Path(folder), settings, seconds, progress))


def _search(
    torch: Any,
    subject: StepSubject,
    home: Path,
    settings: SearchSettings,
    seconds: float,
    progress: Progress,
) -> Optimized:
    deadline = Deadline(seconds)
    state = SavedState(torch, (subject.model, subject.optimizer), subject.step, subject.loader)
    progress.doing("diagnosing the step")
    diagnosis = diagnose_step(torch, subject, home, state)
    edits, no_attention = attention_edits(diagnosis.findings)
    timed_steps = round(1e3 * TRIAL_S / max(diagnosis.step_ms, 1e-3))
    bench = FunctionBench(
        torch, subject, home / "trials", deadline=deadline, watch=WATCHED_STEPS,
        steps=WATCHED_STEPS
        + min(max(timed_steps, MIN_TRIAL_STEPS - WATCHED_STEPS), MAX_TRIAL_STEPS),
        least_s=MEASURES[settings.goal].min_s, state=state, functions={"sdpa": edits},
    )  # fmt: skip
    fixes = [_for_function(fix, no_attention) for fix in registered()]

    def ask(kept: Sequence[Asked], standing: Standing | None = None) -> list[Candidate]:
        ground = ladder.search.ground_now(diagnosis.ground, standing)
        return candidates(ground, diagnosis.findings, fixes, goal=settings.goal, kept=kept)

    def make_race(left_s: Callable[[], float]) -> Race:
        plan = RacePlan(trains=bench.is_trained, functions=edits)
        return Race(
            lambda: FunctionRaceProcess(torch, subject, plan, home / "race", state, bench.left_s),
            left_s,
        )

    racing = Racing(make_race, bench.take_compiled) if settings.goal == "speed" else None
    ladder = Ladder(bench, ask, settings, progress, racing)
    optimized = ladder.climb(f"{subject.name}()")
    return replace(
        optimized, form="function", device=diagnosis.summary.device, trials=bench.taken,
        spent_s=deadline.spent_s(),
    )  # fmt: skip


def _for_function(one: Registered, no_attention: Reason | None) -> Registered:
    """Return the fix as it is for a step function, whose process runs already."""
    if one.fix.id == whole_step_graph.FIX.id:
        return replace(one, reason_to_skip=whole_step_graph.reason_to_skip_function)
    needs_process = one.variables is not None or one.fix.id in _NEEDS_PROCESS
    reason = no_attention if one.fix.id == "sdpa" else None
    reason = because(Skip.NEEDS_A_PROCESS) if needs_process else reason
    if reason is None:
        return one
    return replace(one, reason_to_skip=lambda ground: one.reason_to_skip(ground) or reason)


def _check_alone(torch: Any) -> None:
    if live.session is not None:
        raise UsageError(
            "another run records this process",
            "call it outside `ridgeline run` and `with ridgeline.profile()`",
        )
    distributed = torch.distributed
    together = distributed.is_available() and distributed.is_initialized()
    if together and distributed.get_world_size() > 1:
        raise UsageError("several processes train together", "use `ridgeline optimize script.py`")


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show on stderr what is done now, if it is a terminal, and a line for each settled fix."""
    if quiet:
        yield Progress()
        return

    def settled(rung: Rung) -> None:
        if rung.status != "not tried":
            options = ", ".join(f"{name} {value}" for name, value in rung.options.items())
            title = f"{rung.title} ({options})" if options else rung.title
            print(f"  {rung.status}: {title}: {explain(rung.reason)}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield Progress(settled=settled)
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield Progress(doing=lambda text: status.update(f"[dim]{text}"), settled=settled)


def diagnose_step(torch: Any, subject: StepSubject, home: Path, state: SavedState) -> Diagnosis:
    """Diagnose a step function as a run would be: some steps are timed, a few traced, and the same
    conclusions drawn. What the step raises is raised here, and its state is restored."""
    directory = RunDirectory.make(home, "function")
    settings = Settings(steps=2 * MIN_DIAGNOSED_STEPS, trace_steps=3, quiet=True)
    begin_run(directory, Target(kind="block", name=subject.name), settings)
    _use_profiler_once(torch)
    with everything_restored(torch, state):
        before = _parameter_sums(subject)
        compiled = _record(torch, subject, directory, settings)
        moved = _parameter_sums(subject) != before
    pack(directory)
    diagnosis = read_diagnosis(directory, subject.name)
    ground = diagnosis.ground
    if not ground.modules:
        raise UsageError("the step called no module: neither the model given nor another")
    if ground.optimizers and not subject.trains:
        raise UsageError(f"the step trains, with {ground.optimizers[0].name}", "say optimizer= too")
    if moved:
        raise UsageError(
            "the step changes the model's parameters, and no optimizer was given",
            "train with one of torch.optim, and say optimizer=",
        )
    # Dynamo remembers what was compiled anywhere in this process, trials of ours included.
    modules = subject.model.modules()
    compiled = compiled or any(
        hasattr(one, "_orig_mod") or one._compiled_call_impl for one in modules
    )
    return replace(
        diagnosis,
        ground=replace(ground, trains=subject.trains, device=subject.device, compiled=compiled),
    )


def _use_profiler_once(torch: Any) -> None:
    """Use torch's profiler before our functions are installed. It knows calls of modules by the
    code object that they had at its first use; had it met ours, later profiles of the user's would
    name no module."""
    profiler = torch.profiler
    if torch.autograd._profiler_enabled() or sys.getprofile() is not None:
        return
    with (
        contextlib.suppress(RuntimeError),
        kineto_silenced(torch),
        profiler.profile(activities=[profiler.ProfilerActivity.CPU], with_stack=True),
    ):
        pass


def _record(torch: Any, subject: StepSubject, directory: RunDirectory, settings: Settings) -> bool:
    """Record steps into the directory, and return whether anything was compiled meanwhile."""
    loader = subject.loader
    if subject.has_loader:
        arguments = loader_arguments(torch, loader)
        loader = with_settings(loader, arguments, arguments)
    batches = Batches(loader)
    session = begin(torch, str(directory.path), settings)
    ended: tuple[Status, str] = ("raised", "")
    began = time.monotonic()
    try:
        for taken in range(MAX_DIAGNOSED_STEPS):
            slow = taken >= MIN_DIAGNOSED_STEPS and time.monotonic() - began > MAX_DIAGNOSIS_S
            if slow or session.progress.off:
                break
            subject.call(next(batches))
            if not subject.trains:
                session.user_ended_step()
        ended = ("finished", "")
    finally:
        batches.close()
        end(session, *ended)
    return session.progress.compiling.seen


def _parameter_sums(subject: StepSubject) -> list[float]:
    """Return the sums of parameters that nothing should change; none if the step trains."""
    if subject.trains:
        return []
    return [float(one.detach().double().sum()) for one in subject.model.parameters()]
