"""What trying changes came to, as one JSON document: the record, and before it the ladder a rung a
row. Figures are in the unit their name ends with; ratios are before over after, of what `measured`
names; null is "not measured"."""

from typing import Any

import msgspec

from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Optimized, Total
from ridgeline.records.parity import Parity
from ridgeline.report.finite import finite
from ridgeline.report.optimized_chain import cumulative
from ridgeline.report.optimized_doubt import doubts, remark
from ridgeline.report.optimized_ladder import (
    Line,
    better,
    confirmed,
    lines,
    of_ratio,
    titles,
    verdict,
)
from ridgeline.report.optimized_next import next_command
from ridgeline.report.optimized_words import headline
from ridgeline.report.reasons import explain, explain_earlier

COLUMNS = (
    *("kind", "changes", "title", "status", "verdict", "ratio", "ci_low", "ci_high", "level"),
    *("pairs", "parity", "parity_why", "step_ms", "before_ms", "baseline_ratio", "memory_bytes"),
    *("memory_before_bytes", "compile_s", "break_even_steps", "without_ratio", "without_ci_low"),
    *(
        "without_ci_high",
        "bound",
        "bound_exceeded",
        "alters",
        "beside",
        "spent_s",
        "kept",
        "reason",
        "reason_code",
        "earlier",
    ),
)
"""Of a row of the ladder, in this order."""


def document(found: Optimized) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.to_builtins(found)
    del whole["with_batch"]
    whole["stopped_reason"] = whole["stopped"]
    whole["stopped"] = explain(found.stopped)
    for row, rung in zip(whole["rungs"], found.rungs, strict=True):
        row["why"] = explain(rung.reason)
        row["earlier"] = explain_earlier(rung.earlier)
    written = found.written
    made = {
        "schema": found.schema,
        "command": found.command,
        "summary": headline(found).text,
        "confirmed": confirmed(found),
        "doubts": [text for text in (*doubts(found), remark(found)) if text],
        "ladder": ladder(found),
        **{key: value for key, value in whole.items() if key not in ("schema", "command")},
        "total": {
            "like_for_like": _total(found, found.total),
            "with_batch": _total(found, found.with_batch),
        },
        "baseline_ms": found.baseline_ms or None,
        "baseline_bytes": found.baseline_bytes or None,
        "patched_script": written.files[0] if written is not None and written.files else None,
        "diff": written.diff if written is not None else "",
        "next": next_command(found)[1],
    }
    return finite(made)  # type: ignore[no-any-return]


def ladder(found: Optimized) -> list[dict[str, Any]]:
    """The unchanged program, then itself against itself, then every change there is."""
    measured = bool(found.baseline_ms)
    first = _row(
        kind="baseline", title="baseline", verdict="SAME" if measured else "NOT_TRIED",
        ratio=1.0 if measured else None, baseline_ratio=1.0 if measured else None,
        step_ms=found.baseline_ms or None, memory_bytes=found.baseline_bytes or None,
        reason="the unchanged program",
    )  # fmt: skip
    control = found.control
    second = _row(
        kind="control",
        title="A/A control",
        verdict=of_ratio(control) if control is not None else "NOT_TRIED",
        **_ratio(control),
        reason="the unchanged program against itself",
    )
    made = [first, second, *(_line(found, line) for line in lines(found))]
    return finite(made)  # type: ignore[no-any-return]


def _line(found: Optimized, line: Line) -> dict[str, Any]:
    rung = line.rung
    measured = rung.ratio is not None or rung.step_ms is not None
    without = next((r.without for r in line.rungs if r.without is not None), None)
    return _row(
        kind="rung",
        changes=list(line.fixes),
        title=titles(line.rungs),
        status=rung.status,
        verdict=verdict(rung),
        **_ratio(rung.ratio),
        **_parity(rung.parity),
        step_ms=rung.step_ms,
        before_ms=rung.before_ms,
        baseline_ratio=cumulative(found, rung),
        memory_bytes=rung.peak_bytes,
        memory_before_bytes=rung.peak_before_bytes,
        compile_s=rung.compile_s if measured else None,
        break_even_steps=_pays(found, rung.pays_after) if line.kept else None,
        **{f"without_{key}": value for key, value in _ratio(without, short=True).items()},
        bound=rung.bound,
        bound_exceeded=rung.bound_exceeded,
        alters=rung.alters,
        beside=list(rung.beside),
        spent_s=rung.spent_s or None,
        kept=line.kept,
        reason=explain(rung.reason),
        reason_code=rung.reason.code,
        earlier=explain_earlier(rung.earlier) or None,
    )


def _row(**known: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"changes": [], "beside": [], "kept": False, **known}
    return {name: made.get(name) for name in COLUMNS}


def _ratio(ratio: Ratio | None, short: bool = False) -> dict[str, Any]:
    names = ("ci_low", "ci_high") if short else ("ci_low", "ci_high", "pairs", "level")
    if ratio is None:
        return dict.fromkeys(("ratio", *names))
    return {"ratio": ratio.value, **{name: getattr(ratio, name) for name in names}}


def _parity(parity: Parity | None) -> dict[str, Any]:
    if parity is None:
        return {"parity": None, "parity_why": None}
    return {"parity": parity.equality, "parity_why": parity.why}


def _total(found: Optimized, total: Total | None) -> dict[str, Any] | None:
    if total is None:
        return None
    return {
        **_ratio(total.ratio),
        "confirmed": better(total),
        "changes": list(total.fixes),
        "before_ms": total.before_ms,
        "after_ms": total.after_ms,
        "before_samples_s": total.before_samples_s,
        "after_samples_s": total.after_samples_s,
        **_parity(total.parity),
        "parity_evidence": msgspec.to_builtins(total.parity),
        "memory_before_bytes": total.peak_before_bytes or None,
        "memory_bytes": total.peak_bytes or None,
        "compile_s": total.compile_s,
        "break_even_steps": _pays(found, total.pays_after),
        "applied": msgspec.to_builtins(total.applied),
    }


def _pays(found: Optimized, steps: int | None) -> int | None:
    """0: at once. Of memory there is nothing that steps would win back."""
    return steps if steps is not None or found.measured == "peak memory" else 0
