"""What holds a traced program back: the findings of a trace, kept beside its cached study."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.answers import answers
from ridgeline.diagnosis.build_case import as_studied, case_of_trace
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.stored_case import code_fingerprint
from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceStudy
from ridgeline.trace.links import links_of
from ridgeline.trace.reading import cache as study_cache
from ridgeline.trace.reading.cache import fingerprint
from ridgeline.trace.study import study_one
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import middle_part

Say = Callable[[str], None]
MAX_WINDOW_DIFFERENCE_SHARE = 0.02
"""Two windows whose lengths differ by less than this share give the same figures to two digits."""


def diagnose_trace(
    study: TraceStudy,
    traces: Sequence[Trace],
    paths: Sequence[Path],
    steps: str | None,
    cache: bool,
    say: Say = lambda text: None,
) -> Findings:
    """Return what holds the traced program back. Never fails: what could not be diagnosed is among
    the problems of the result.

    A diagnosis reads every operator again. In a long trace it therefore covers the middle steps,
    and the findings are stored beside the cached study. They are used again for the same question
    (the same code of the diagnosis, steps and working folder) while no source file they name has
    changed.
    """
    entry = study_cache.find(paths[0]) if cache and len(paths) == 1 else None
    question = _question(steps)
    stored = entry.answer(question, _StoredFindings) if entry is not None else None
    if stored is not None and stored.sources == _change_times(stored.sources, traces):
        return stored.findings
    say("looking for causes")
    causes = _diagnose(study, traces, steps)
    if entry is not None and not causes.problems:
        files = dict.fromkeys((f.file for f in causes.findings if f.file), 0)
        stored = _StoredFindings(findings=causes, sources=_change_times(files, traces))
        entry.remember(question, stored)
    return causes


class _StoredFindings(Struct, frozen=True, kw_only=True):
    findings: Findings
    sources: dict[str, int]
    """The files that findings name, with the time of their last change in ns; 0 if there is no such
    file."""


def _diagnose(study: TraceStudy, traces: Sequence[Trace], steps: str | None) -> Findings:
    attempts = Attempts()
    whole = traces[0] if len(traces) == 1 and steps is None else None
    part = attempts.part("a part of it", lambda: middle_part(whole)) if whole is not None else None
    # The tables begin with the device's first work; findings need whole steps, from mark to mark.
    has_marks = whole is not None and bool(study.window.steps)
    trace, chosen = part if part is not None else (traces[0], "all" if has_marks else "")
    studied = study if not chosen else study_one(trace, links_of(trace), chosen, for_findings=True)
    diagnosed = traces if not chosen else (trace,)
    case = attempts.part("the case", lambda: case_of_trace(studied, diagnosed, attempts))
    causes = findings(case, attempts) if case is not None else Findings()
    if chosen and case is not None:
        # The answers cover the whole window, so that their figures match the headline and tables.
        all_answers = attempts.part("the answers", lambda: answers(as_studied(case, study)))
        basis = (
            _basis(studied, study) if chosen == "all" else f"steps {chosen} of {study.window.steps}"
        )
        causes = replace(causes, answers=all_answers or (), basis=basis)
    return replace(causes, problems=tuple(attempts.failures))


def _basis(diagnosed: TraceStudy, study: TraceStudy) -> str:
    """Return which steps the findings cover; "" if they last as long as the window of the
    tables."""
    difference_ns = abs(diagnosed.window.ns - study.window.ns)
    if difference_ns <= MAX_WINDOW_DIFFERENCE_SHARE * study.window.ns:
        return ""
    steps = units.plural(diagnosed.window.steps, "whole step")
    return f"{steps}, {units.seconds(diagnosed.window.ns / 1e9)} from the mark of the first step"


def _change_times(files: dict[str, int], traces: Sequence[Trace]) -> dict[str, int]:
    """Return when each file was last changed, in ns; 0 if it is in none of the folders in which
    sources are looked for."""
    folders = (Path(), Path.cwd(), Path(traces[0].origin.path).resolve().parent)
    changed_ns = dict.fromkeys(files, 0)
    for file in files:
        for folder in folders:
            with suppress(OSError, ValueError):
                changed_ns[file] = (folder / file).stat().st_mtime_ns
                break
    return changed_ns


def _question(steps: str | None) -> str:
    """Return the name under which findings are stored: a hash of what they depend on."""
    text = f"{fingerprint()} {code_fingerprint()} {steps} {Path.cwd()}"
    return "findings-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
