"""Hand-made comparisons: nothing in them was measured."""

from math import sin
from typing import Any

from msgspec.structs import replace

from ridgeline.records.comparison import (
    Candidate,
    Comparison,
    Control,
    Drift,
    Estimate,
    Guard,
    OrderEffect,
    Outliers,
    Pair,
    PairFolder,
    Results,
    Skipped,
    Surroundings,
    Variant,
    VerdictCode,
)
from ridgeline.records.facts import because
from ridgeline.records.latency import Summary


def estimate(
    ratio: float = 1.31, low: float = 1.27, high: float = 1.35, **changed: Any
) -> Estimate:
    values: dict[str, Any] = {
        "ratio": ratio, "ci_low": low, "ci_high": high, "level": 0.983, "p_value": 0.0004,
        "rounds": 60, "method": "bootstrap over 60 rounds", "autocorrelation": 0.1,
        "within_low": low, "within_high": high,
    }  # fmt: skip
    return Estimate(**{**values, **changed})


def samples(median_ns: float, rounds: int = 60) -> tuple[float, ...]:
    """Wobbling about the median, with one stall at the end."""
    wobble = [median_ns * (1 + 0.02 * sin(7.3 * i) + 0.01 * sin(1.7 * i)) for i in range(rounds)]
    return (*wobble[:-1], 3 * median_ns) if rounds else ()


def variant(name: str = "fast.py:step", median_ns: float = 9.4e6, **changed: Any) -> Variant:
    values: dict[str, Any] = {
        "name": name,
        "samples_ns": samples(median_ns),
        "summary": Summary(
            count=60, median_ns=median_ns, ci_low_ns=0.99 * median_ns, ci_high_ns=1.01 * median_ns,
            mean_ns=median_ns, std_ns=0.05 * median_ns, min_ns=0.9 * median_ns,
            max_ns=3 * median_ns, iqr_ns=0.02 * median_ns,
        ),
        "outliers": Outliers(severe_high=1),
        "block_calls": 2,
        "cpu_median_ns": 1.9 * median_ns,
        "clock": "wall",
    }  # fmt: skip
    return Variant(**{**values, **changed})


def results(**changed: Any) -> Results:
    values: dict[str, Any] = {
        "status": "equal", "method": "float64 reference", "strength": "strong",
        "detail": "worst error 1.2e-07 of 3.6e-07 allowed, over 4,096 numbers",
        "compared": 4096, "worst_error": 1.2e-7, "allowed_error": 3.6e-7, "baseline_error": 1.2e-7,
    }  # fmt: skip
    return Results(**{**values, **changed})


def weak(reason: str = "only the shapes could be compared") -> Results:
    return results(strength="weak", method="tolerances of float32", reasons=(reason,))


FASTER = because(
    VerdictCode.BEYOND_THRESHOLD, ratio=1.31, ci_low=1.27, ci_high=1.35, threshold=0.02
)
SAME = because(VerdictCode.WITHIN_THRESHOLD, ci_low=0.99, ci_high=1.01, threshold=0.02)
OPEN = because(VerdictCode.REACHES_ONE, ci_low=0.991, ci_high=1.046, rounds_factor=4)
GUARDS = (
    Guard(name="cached replay", outcome="passed"),
    Guard(name="mutated inputs", outcome="passed"),
    Guard(name="roofline floor", outcome="not looked for", detail="no ceiling is known"),
)


def candidate(
    name: str = "fast.py:step",
    verdict: str = "FASTER",
    figure: Estimate | None = None,
    *,
    median_ns: float = 9.4e6,
    of_variant: dict[str, Any] | None = None,
    **changed: Any,
) -> Candidate:
    values: dict[str, Any] = {
        "variant": variant(name, median_ns, **(of_variant or {})),
        "verdict": verdict,
        "reason": FASTER,
        "estimate": figure or estimate(),
        "results": results(),
        "guards": GUARDS,
        "goal_met": {"FASTER": True, "UNDECIDED": None}.get(verdict, False),
    }
    return Candidate(**{**values, **changed})


def comparison(*candidates: Candidate, **changed: Any) -> Comparison:
    values: dict[str, Any] = {
        "baseline": variant("slow.py:step", 12.3e6),
        "control": Control(estimate=estimate(1.001, 0.993, 1.009), floor=0.008, differs=False),
        "candidates": candidates or (candidate(),),
        "unit": "call",
        "mode": "one process",
        "cache": "warm",
        "goal": "speed",
        "threshold": 0.02,
        "alpha": 0.05,
        "looks": (30, 60, 120, 240),
        "stopped": "decided",
        "rounds": 60,
        "budget_s": 60.0,
        "spent_s": 15.2,
        "seed": 7,
        "drift": Drift(share=0.01, significant=False),
        "order": OrderEffect(share=0.002, significant=False),
        "surroundings": Surroundings(device="Paper CPU", threads=2, cores=4, load_1min=0.4,
                                     versions={"torch": "2.13.0"}),
    }  # fmt: skip
    return Comparison(**{**values, **changed})


def undecided(**changed: Any) -> Comparison:
    unsure = candidate(
        verdict="UNDECIDED",
        figure=estimate(1.018, 0.991, 1.046),
        median_ns=12.1e6,
        reason=OPEN,
    )
    return comparison(unsure, **{"stopped": "budget", "rounds": 120, "spent_s": 60.1, **changed})


def saving_memory(**changed: Any) -> Comparison:
    """3.2 times less memory for 4 % speed."""
    saved = candidate(
        "lean.py:step",
        "SLOWER",
        estimate(0.96, 0.95, 0.97),
        median_ns=12.8e6,
        of_variant={"peak_bytes": 370 * 2**20, "peak_method": "allocator"},
        memory_ratio=3.238,
        goal_met=True,
    )
    heavy = variant("slow.py:step", 12.3e6, peak_bytes=1198 * 2**20, peak_method="allocator")
    return comparison(saved, **{"goal": "memory", "baseline": heavy, **changed})


def folder() -> PairFolder:
    compiled = candidate(
        "optimized_regional_compile.py",
        figure=estimate(2.1, 2.04, 2.17),
        of_variant={"first_call_ns": 39e9},
        pays="after 1,900 calls",
        pays_after=1900,
        results=weak("the input is the same in every call"),
    )
    wrong = candidate(
        verdict="INVALID",
        figure=estimate(150.0, 140.0, 160.0),
        reason=because(VerdictCode.RESULTS_DIFFER, detail="worst error 0.3, 1e-06 allowed"),
        results=results(status="different"),
    )
    return PairFolder(
        folder="examples/pairs",
        pairs=(
            Pair(name="attention", title="Attention written out", comparison=comparison()),
            Pair(name="bandwidth", title="Strided reads", comparison=undecided()),
            Pair(name="checkpointing", title="All activations", comparison=saving_memory()),
            Pair(name="epilogue", title="Two kernels", comparison=comparison(wrong)),
            Skipped(name="precision", status="SKIP", reason="fp8 needs a GPU of Hopper or later",
                    hint="run it on one"),
            Pair(name="regional_compile", title="Eager", comparison=comparison(compiled)),
            Skipped(name="dataloader", status="BROKEN",
                    reason="workload() raised ValueError: no such folder"),
        ),
    )  # fmt: skip


def with_names(name: str) -> Comparison:
    """Everything a user can name, named so."""
    whole = comparison(
        candidate(
            name,
            "UNDECIDED",
            reason=because(VerdictCode.RESULTS_DIFFER, detail=f"why {name}"),
            results=weak(f"weak {name}"),
        )
    )
    return replace(whole, baseline=variant(f"base {name}"), notes=(f"note {name}",))
