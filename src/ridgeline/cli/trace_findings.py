"""What holds a traced program back: drawn from a study and its traces, kept beside the cache.

Drawing them reads every operator again, so that of a long trace the middle steps are looked at, and
the answer to the same question is kept where the study is. What it depends on beside the trace is
in its name (the code of the diagnosis, the folder sources are looked for in) or beside it (the time
of each file it names).
"""

import hashlib
from collections.abc import Callable, Sequence
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
from ridgeline.trace.reading import cache as kept
from ridgeline.trace.study import study_one
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import middle_part

MAX_WINDOW_DIFFERENCE_SHARE = 0.02
"""Two windows whose lengths differ by less than this share give the same figures to two digits."""


class _Drawn(Struct, frozen=True, kw_only=True):
    findings: Findings
    sources: dict[str, int]
    """Files the findings are in, with the time they were last changed; 0: not there."""


def drawn(
    study: TraceStudy,
    traces: Sequence[Trace],
    paths: Sequence[Path],
    steps: str | None,
    cache: bool,
    say: Callable[[str], None],
) -> Findings:
    """Never fails: a diagnosis that cannot be drawn is among its own problems."""
    entry = kept.find(paths[0]) if cache and len(paths) == 1 else None
    question = _question(steps)
    before = entry.answer(question, _Drawn) if entry is not None else None
    if before is not None and before.sources == _stamps(before.sources, traces):
        return before.findings
    say("looking for causes")
    found = _draw(study, traces, steps)
    if entry is not None and not found.problems:
        files = dict.fromkeys((f.file for f in found.findings if f.file), 0)
        entry.remember(question, _Drawn(findings=found, sources=_stamps(files, traces)))
    return found


def _draw(study: TraceStudy, traces: Sequence[Trace], steps: str | None) -> Findings:
    attempts = Attempts()
    alone = traces[0] if len(traces) == 1 and steps is None else None
    cut = attempts.part("a part of it", lambda: middle_part(alone)) if alone is not None else None
    # whole steps: the device's activity begins after the first step's copies were asked for
    marked = alone is not None and bool(study.window.steps)
    within, chosen = cut if cut is not None else (traces[0], "all" if marked else "")
    about = study if not chosen else study_one(within, links_of(within), chosen, for_findings=True)
    looked_at = traces if not chosen else (within,)
    case = attempts.part("the case", lambda: case_of_trace(about, looked_at, attempts))
    found = findings(case, attempts) if case is not None else Findings()
    if chosen and case is not None:
        # answers cover the whole window, so that their figures match the headline and the tables
        told = attempts.part("the answers", lambda: answers(as_studied(case, study)))
        basis = (
            _basis(about, study) if chosen == "all" else f"steps {chosen} of {study.window.steps}"
        )
        found = replace(found, answers=told or (), basis=basis)
    return replace(found, problems=tuple(attempts.failures))


def _basis(about: TraceStudy, study: TraceStudy) -> str:
    """Return which steps the findings cover, if their shares differ from those of the tables; else
    "". Tables begin with the device's first work, and findings need whole steps."""
    if abs(about.window.ns - study.window.ns) <= MAX_WINDOW_DIFFERENCE_SHARE * study.window.ns:
        return ""
    steps = units.plural(about.window.steps, "whole step")
    return f"{steps}, {units.seconds(about.window.ns / 1e9)} from the mark of the first step"


def _stamps(files: dict[str, int], traces: Sequence[Trace]) -> dict[str, int]:
    roots = (Path(), Path.cwd(), Path(traces[0].origin.path).resolve().parent)
    return {file: _changed([root / file for root in roots]) for file in files}


def _changed(paths: Sequence[Path]) -> int:
    for path in paths:
        try:
            return path.stat().st_mtime_ns
        except (OSError, ValueError):
            continue
    return 0


def _question(steps: str | None) -> str:
    text = f"{kept.fingerprint()} {code_fingerprint()} {steps} {Path.cwd()}"
    return "findings-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
