"""A comparison as one JSON document. Figures are in the unit their name ends with; ratios are the
baseline's time over the candidate's; null is "not measured", or not a number."""

from typing import Any, get_args

import msgspec

from ridgeline.records.comparison import (
    Arm,
    Candidate,
    Comparison,
    Estimate,
    Pair,
    PairFolder,
    Results,
    Skipped,
)
from ridgeline.records.facts import Verdict
from ridgeline.report.comparison_headline import judged
from ridgeline.report.finite import finite

SCHEMA = "ridgeline.comparison/1"
FOLDER_SCHEMA = "ridgeline.pairs/1"

_SUMMARY = ("median", "mean", "std", "min", "max", "iqr", "p95", "p99")
_ANSWER = ("summary", "verdict", "ratio", "ci_low", "ci_high", "why", "goal_met", "results",
           "guards")  # fmt: skip


def document(c: Comparison) -> dict[str, Any]:
    """With exactly one candidate its answer stands at the top as well."""
    candidates = [_candidate(c, k) for k in c.candidates]
    answer = {key: candidates[0][key] for key in _ANSWER} if len(candidates) == 1 else {}
    levels = [k.estimate.level for k in c.candidates] or [c.control.estimate.level]
    found = {
        "schema": SCHEMA,
        **answer,
        "control": {
            **_interval(c.control.estimate),
            "floor": c.control.floor,
            "differs": c.control.differs,
        },
        "baseline": _arm(c.baseline),
        "candidates": candidates,
        "broken": [_named(b) for b in c.broken],
        "goal": c.goal,
        "threshold": c.threshold,
        "alpha": c.alpha,
        "level": min(levels),
        "looks": list(c.looks),
        "rounds": c.rounds,
        "stopped": c.stopped,
        "mode": c.mode,
        "unit": c.unit,
        "cache": c.cache,
        "drift": msgspec.to_builtins(c.drift),
        "order_effect": msgspec.to_builtins(c.order),
        "surroundings": msgspec.to_builtins(c.surroundings),
        "budget_s": c.budget_s,
        "spent_s": c.spent_s,
        "seed": c.seed,
        "notes": list(c.notes),
        "samples": {
            key: {"count": len(arm.samples_ns), "unit": "ns", "values": list(arm.samples_ns)}
            for key, arm in samples(c)
        },
    }
    return finite(found)  # type: ignore[no-any-return]


def samples(c: Comparison) -> list[tuple[str, Arm]]:
    """Each arm under a name of its own: "baseline", "control", then the candidates' names."""
    named = [("baseline", c.baseline)]
    if c.control_arm is not None:
        named.append(("control", c.control_arm))
    for k in c.candidates:
        name, taken = k.arm.name, {key for key, _ in named}
        number = 2
        while name in taken:
            name, number = f"{k.arm.name} ({number})", number + 1
        named.append((name, k.arm))
    return named


def folder_document(f: PairFolder) -> dict[str, Any]:
    pairs = [_skipped(p) if isinstance(p, Skipped) else _pair(p) for p in f.pairs]
    verdicts = [k["verdict"] for p in pairs for k in _measured(p)]
    statuses = [p["status"] for p in pairs]
    return {
        "schema": FOLDER_SCHEMA,
        "folder": f.folder,
        "found": max(f.found, len(pairs)),
        "interrupted": f.interrupted,
        "counts": {
            "pairs": len(pairs),
            **{status: statuses.count(status) for status in ("MEASURED", "SKIP", "BROKEN")},
            **{verdict: verdicts.count(verdict) for verdict in get_args(Verdict)},
            "goals_met": sum(bool(k["goal_met"]) for p in pairs for k in _measured(p)),
        },
        "pairs": pairs,
    }


def _measured(pair: dict[str, Any]) -> list[dict[str, Any]]:
    return pair["comparison"]["candidates"] if pair["comparison"] else []


_OF_PAIR = ("summary", "verdict", "ratio", "ci_low", "ci_high", "why", "goal_met", "memory_ratio",
            "throughput_ratio", "first_call_ms", "pays_after", "pays", "results")  # fmt: skip


def _pair(pair: Pair) -> dict[str, Any]:
    """A pair's answer beside its name where it has one candidate; more are in `comparison`."""
    whole = document(pair.comparison)
    only = whole["candidates"][0] if len(whole["candidates"]) == 1 else {}
    return {
        "name": pair.name,
        "title": pair.title,
        "status": "MEASURED",
        "reason": "",
        "hint": "",
        "goal": pair.comparison.goal,
        **{key: only.get(key) for key in _OF_PAIR},
        "comparison": whole,
    }


def _named(skipped: Skipped) -> dict[str, Any]:
    fields = ("name", "status", "reason", "hint")
    return {field: getattr(skipped, field) for field in fields}


def _skipped(pair: Skipped) -> dict[str, Any]:
    return {
        **_named(pair),
        "title": "",
        "goal": None,
        **dict.fromkeys(_OF_PAIR),
        "comparison": None,
    }


def _candidate(c: Comparison, k: Candidate) -> dict[str, Any]:
    return {
        "name": k.arm.name,
        "summary": judged(c, k).text,
        "verdict": k.verdict,
        **_interval(k.deciding),
        "decided_by": k.decided_by or None,
        "by_clock": _interval(k.estimate),
        "by_processor_time": _interval(k.processor_estimate) if k.processor_estimate else None,
        "why": k.why,
        "goal_met": k.goal_met,
        "results": _results(k.results),
        "guards": [msgspec.to_builtins(g) for g in k.guards],
        "cpu_ratio": k.cpu_ratio,
        "memory_ratio": k.memory_ratio,
        "throughput_ratio": k.throughput_ratio,
        "pays_after": k.pays_after,
        "pays": k.pays,
        **_arm(k.arm),
    }


def _interval(estimate: Estimate) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(estimate)
    return found


def _results(results: Results) -> dict[str, Any]:
    return {**msgspec.to_builtins(results), "ok": results.ok}


def _arm(arm: Arm) -> dict[str, Any]:
    summary = arm.summary
    items = None
    if arm.items is not None and summary.median_ns > 0:
        items = arm.items / (summary.median_ns / 1e9)
    return {
        "name": arm.name,
        **{f"{n}_ms": _ms(getattr(summary, f"{n}_ns")) for n in _SUMMARY},
        "median_ci_low_ms": _ms(summary.ci_low_ns),
        "median_ci_high_ms": _ms(summary.ci_high_ns),
        "sample_count": summary.count,
        "refused": list(summary.refused),
        "calls_per_sample": arm.block_calls,
        "cpu_median_ms": _ms(arm.cpu_median_ns),
        "clock": arm.clock,
        "first_call_ms": _ms(arm.first_call_ns),
        "warmup_ms": _ms(arm.warmup_ns),
        "warmup_calls": arm.warmup_calls,
        "steady": arm.steady,
        "recompiles": arm.recompiles,
        "peak_bytes": arm.peak_bytes,
        "peak_method": arm.peak_method,
        "items": arm.items,
        "items_per_second": items,
        "discarded": arm.discarded,
        "outliers": msgspec.to_builtins(arm.outliers),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
