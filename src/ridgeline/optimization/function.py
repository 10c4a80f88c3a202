"""`ridgeline.optimize`: changes tried on a step function, for notebooks and tests."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.errors import TargetError, UsageError
from ridgeline.fixes.catalog import whole_step_graph
from ridgeline.fixes.fix import Registered, registered
from ridgeline.harness.capture import live
from ridgeline.harness.capture.seams import begin, end
from ridgeline.harness.capture.tracing import held_back, pack
from ridgeline.integrations.run_lifecycle import begin_run
from ridgeline.measure.deadline import Deadline
from ridgeline.optimization.agenda import Wants
from ridgeline.optimization.candidates import Candidate, allowed, candidates, rewritten
from ridgeline.optimization.diagnosis import ground_of
from ridgeline.optimization.function_bench import FunctionBench
from ridgeline.optimization.function_program import (
    Batches,
    Subject,
    loader_arguments,
    with_settings,
)
from ridgeline.optimization.function_state import AsItWas, Kept
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.measure import MEASURES
from ridgeline.optimization.search import Voice
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Goal, Optimized, Rung, Total
from ridgeline.records.run import Settings, Status, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Asked
from ridgeline.report.reasons import explain, verdict_reason
from ridgeline.units import parse_seconds

WATCHED = 8
LEAST_STEPS, MOST_STEPS = 16, 300
TRIAL_S = 0.7
"""Of timed steps. Nothing has to be started for a trial in this process, so that many short ones
are better than a few long ones."""
_A_PROCESS = ("affinity", "kept-memory")
"""Beside those that are variables of the environment."""
_NEEDS_A_PROCESS = "it needs a process of its own: use `ridgeline optimize script.py`"


class Result:
    """What trying came to; `print` it. `optimized` is the whole record."""

    def __init__(self, optimized: Optimized) -> None:
        self.optimized = optimized

    @property
    def total(self) -> Total | None:
        """All that was kept against the step as it was; None: nothing was kept."""
        return self.optimized.total

    @property
    def rungs(self) -> tuple[Rung, ...]:
        return self.optimized.rungs

    @property
    def confirmed(self) -> bool:
        """Something was kept, and the whole of it was better and equal once more."""
        return self.optimized.is_confirmed

    @property
    def kept(self) -> tuple[str, ...]:
        """Each better and equal when it was tried; whether all of it is: `confirmed`."""
        return tuple(rung.fix for rung in self.rungs if rung.status == "kept")

    def __str__(self) -> str:
        from ridgeline.report.renderers import terminal
        from ridgeline.report.views.optimized import document

        return terminal.render_text(document(self.optimized), 120).strip("\n")

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """In a notebook."""
        from ridgeline.report.renderers import markdown
        from ridgeline.report.views.optimized import document

        return markdown.render(document(self.optimized))


def optimize(
    step: Callable[..., Any],
    *,
    model: Any,
    optimizer: Any = None,
    loader: Iterable[Any],
    budget: str | float = "2m",
    keep_exact: bool = False,
    goal: Goal = "speed",
    batch: bool = False,
    allow: Sequence[str] = (),
    quiet: bool = False,
) -> Result:
    """Try what a specialist would on a step, and keep what is proven.

    `step(model, optimizer, batch)` takes one training step; `step(model, batch)`, without an
    optimizer, one of inference; so may `step(batch)`, which closes over what it needs. `loader` is
    a DataLoader, or anything that can be gone through again and again. Each trial starts from the
    state in which model, optimizer, loader and random numbers are now, and leaves them so: what was
    kept is told, not put on. `batch`: the batch size may grow, in a column of its own. `allow`:
    names of changes that alter what is computed, as int8-dynamic.
    """
    import torch

    may = allowed([allow] if isinstance(allow, str) else allow)
    if keep_exact and may.names:
        raise UsageError(f"keep_exact and allow={may.names}: one or the other")
    wants = Wants(
        goal=_goal(goal), keep_exact=keep_exact, batch=batch, allow=may.names, as_arguments=True
    )
    seconds = parse_seconds("budget", budget)
    _alone(torch)
    subject = Subject(torch, step, model, optimizer, loader)
    with (
        tempfile.TemporaryDirectory(prefix="ridgeline-", ignore_cleanup_errors=True) as folder,
        _voice(quiet) as voice,
    ):
        return Result(_climbed(torch, subject, Path(folder), wants, seconds, voice))


def _climbed(
    torch: Any, subject: Subject, home: Path, wants: Wants, seconds: float, voice: Voice
) -> Optimized:
    deadline = Deadline(seconds)
    kept = Kept(torch, (subject.model, subject.optimizer), subject.step, subject.loader)
    voice.say("looking at the step as it is")
    found = diagnosis(torch, subject, home, kept)
    edits, no_attention = rewritten(found.findings)
    bench = FunctionBench(
        torch, subject, home / "trials", deadline=deadline, watch=WATCHED,
        steps=_steps(found.step_ms), least_s=MEASURES[wants.goal].least_s, kept=kept,
        functions={"sdpa": edits},
    )  # fmt: skip

    fixes = [_here(one, no_attention) for one in registered()]

    def ask(on: Sequence[Asked]) -> list[Candidate]:
        return candidates(found.ground, found.findings, fixes, goal=wants.goal, kept=on)

    optimized = Ladder(bench, ask, wants, voice).climb(f"{subject.name}()")
    return replace(
        optimized, form="function", device=found.device, trials=bench.taken,
        spent_s=deadline.spent_s(),
    )  # fmt: skip


def _here(one: Registered, no_attention: str) -> Registered:
    """As it is where the step is a function and the process runs already."""
    if one.fix.id == whole_step_graph.FIX.id:
        return replace(one, reason_to_skip=whole_step_graph.reason_to_skip_function)
    if one.variables is not None or one.fix.id in _A_PROCESS:
        return replace(
            one, reason_to_skip=lambda ground: one.reason_to_skip(ground) or _NEEDS_A_PROCESS
        )
    if one.fix.id == "sdpa":
        return replace(
            one, reason_to_skip=lambda ground: one.reason_to_skip(ground) or no_attention
        )
    return one


def _steps(step_ms: float) -> int:
    timed = round(1e3 * TRIAL_S / max(step_ms, 1e-3))
    return WATCHED + min(max(timed, LEAST_STEPS - WATCHED), MOST_STEPS)


def _goal(goal: Goal) -> Goal:
    if goal not in get_args(Goal):
        raise UsageError(f"goal {goal!r} is none of {', '.join(get_args(Goal))}")
    return goal


def _alone(torch: Any) -> None:
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
def _voice(quiet: bool) -> Iterator[Voice]:
    """What is done now where stderr is a terminal; what was settled, a line each, on stderr."""
    if quiet:
        yield Voice()
        return

    def tell(rung: Rung) -> None:
        if rung.status != "not tried":
            told = ", ".join(f"{name} {value}" for name, value in rung.options.items())
            title = f"{rung.title} ({told})" if told else rung.title
            print(f"  {rung.status}: {title}: {explain(rung.reason)}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield Voice(tell=tell)
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield Voice(say=lambda text: status.update(f"[dim]{text}"), tell=tell)


MAX_DIAGNOSED_STEPS, MIN_DIAGNOSED_STEPS = 80, 20
"""Settled, ten timed, three traced, and the rest timed again."""
MOST_S = 20.0
"""A step that takes seconds is known well enough by fewer of them."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    ground: Ground
    findings: tuple[Finding, ...] = ()
    step_ms: float
    device: str = ""


def diagnosis(torch: Any, subject: Subject, home: Path, kept: Kept) -> Diagnosis:
    """What the step raises is the user's to see."""
    directory = RunDirectory.make(home, "function")
    settings = Settings(steps=2 * MIN_DIAGNOSED_STEPS, trace_steps=3, quiet=True)
    begin_run(directory, Target(kind="block", name=subject.name), settings)
    _profiler_meets_torchs_own(torch)
    with AsItWas(torch, kept):
        before = _sums(subject)
        compiled = _watched(torch, subject, directory, settings)
        moved = _sums(subject) != before
    pack(directory)
    summary, case = concluded_case(directory)
    if case is None or not summary.step.median_ms:
        raise TargetError(f"{subject.name}: {verdict_reason(summary.verdict)}")
    seen = ground_of(case, summary.findings.findings)
    if not seen.modules:
        raise UsageError("the step called no module: neither the model given nor another")
    if seen.optimizers and not subject.trains:
        raise UsageError(f"the step trains, with {seen.optimizers[0].name}", "say optimizer= too")
    if moved:
        raise UsageError(
            "the step changes the model's parameters, and no optimizer was given",
            "train with one of torch.optim, and say optimizer=",
        )
    ground = replace(
        seen,
        trains=subject.trains,
        device=subject.device,
        # Dynamo remembers what was compiled anywhere in this process, trials of ours included.
        compiled=compiled or _compiled(subject.model),
    )
    return Diagnosis(
        ground=ground,
        findings=tuple(summary.findings.findings),
        step_ms=summary.step.median_ms,
        device=summary.device,
    )


def _profiler_meets_torchs_own(torch: Any) -> None:
    """torch's profiler knows calls of modules by the code object they had when it was first used.
    Had it met ours, which are taken off again, later profiles of the user's would name no module.
    """
    profiler = torch.profiler
    if torch.autograd._profiler_enabled() or sys.getprofile() is not None:
        return
    with (
        contextlib.suppress(RuntimeError),
        held_back(torch),
        profiler.profile(activities=[profiler.ProfilerActivity.CPU], with_stack=True),
    ):
        pass


def _watched(torch: Any, subject: Subject, directory: RunDirectory, settings: Settings) -> bool:
    """Whether anything was compiled meanwhile."""
    loader = subject.loader
    if subject.has_loader:
        given = loader_arguments(torch, loader)
        loader = with_settings(loader, given, given)
    batches = Batches(loader)
    session = begin(torch, str(directory.path), settings)
    ended: tuple[Status, str] = ("raised", "")
    began = time.monotonic()
    try:
        for taken in range(MAX_DIAGNOSED_STEPS):
            if session.progress.off or (
                taken >= MIN_DIAGNOSED_STEPS and time.monotonic() - began > MOST_S
            ):
                break
            subject.call(next(batches))
            if not subject.trains:
                session.said_step()
        ended = ("finished", "")
    finally:
        batches.close()
        end(session, *ended)
    return session.progress.compiling.seen


def _sums(subject: Subject) -> list[float]:
    """Of parameters that nothing is to change."""
    if subject.trains:
        return []
    return [float(one.detach().double().sum()) for one in subject.model.parameters()]


def _compiled(model: Any) -> bool:
    return any(hasattr(one, "_orig_mod") or one._compiled_call_impl for one in model.modules())
