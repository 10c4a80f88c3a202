"""A step function looked at as a run would be: some steps timed, a few traced, and the same
conclusions drawn; afterwards everything is as it was."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.errors import TargetError, UsageError
from ridgeline.harness.capture.seams import begin, end
from ridgeline.harness.capture.tracing import held_back, pack
from ridgeline.integrations.run_lifecycle import begin_run
from ridgeline.optimization.function_bench import AsItWas
from ridgeline.optimization.function_loader import Batches, arguments, with_settings
from ridgeline.optimization.function_state import Kept
from ridgeline.optimization.function_subject import Subject
from ridgeline.optimization.ground_of import ground_of
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.run import Settings, Status, Target
from ridgeline.records.run_directory import RunDirectory

MOST_STEPS, LEAST_STEPS = 80, 20
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
    settings = Settings(steps=2 * LEAST_STEPS, trace_steps=3, quiet=True)
    begin_run(directory, Target(kind="block", name=subject.name), settings)
    _profiler_meets_torchs_own(torch)
    with AsItWas(torch, kept):
        before = _sums(subject)
        compiled = _watched(torch, subject, directory, settings)
        moved = _sums(subject) != before
    pack(directory)
    summary, case = concluded_case(directory)
    if case is None or not summary.step.median_ms:
        raise TargetError(f"{subject.name}: {summary.verdict.sentence.removeprefix('unknown: ')}")
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
        given = arguments(torch, loader)
        loader = with_settings(loader, given, given)
    batches = Batches(loader)
    session = begin(torch, str(directory.path), settings)
    ended: tuple[Status, str] = ("raised", "")
    began = time.monotonic()
    try:
        for taken in range(MOST_STEPS):
            if session.progress.off or (taken >= LEAST_STEPS and time.monotonic() - began > MOST_S):
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
