"""Small made-up comparisons: verdicts that nobody measured."""

from typing import Any

from ridgeline.records.comparison import (
    Candidate,
    Comparison,
    Control,
    Drift,
    Estimate,
    OrderEffect,
    Outliers,
    Pair,
    Results,
    Surroundings,
    Variant,
    VerdictCode,
)
from ridgeline.records.facts import because
from ridgeline.statistics.samples import summarize

EVEN = Estimate(
    ratio=1.0, ci_low=0.99, ci_high=1.01, level=0.95, p_value=1.0, rounds=10,
    method="made up", autocorrelation=0.0, within_low=0.99, within_high=1.01,
)  # fmt: skip
REASON = because(VerdictCode.TOO_FEW_ROUNDS, rounds=3, needed=6)
EQUAL = Results(status="equal", method="made up", strength="strong", detail="")


def variant(name: str) -> Variant:
    samples = (1e6,) * 10
    return Variant(
        name=name, samples_ns=samples, summary=summarize(samples), outliers=Outliers(),
        block_calls=10, cpu_median_ns=1e6, clock="wall",
    )  # fmt: skip


def candidate(verdict: Any, name: str = "fast", goal_met: bool | None = None) -> Candidate:
    return Candidate(
        variant=variant(name), verdict=verdict, reason=REASON, estimate=EVEN, results=EQUAL,
        goal_met=goal_met,
    )  # fmt: skip


def comparison(*candidates: Candidate, goal: Any = "speed", broken: Any = ()) -> Comparison:
    return Comparison(
        baseline=variant("slow"), control=Control(estimate=EVEN, floor=0.01, differs=False),
        candidates=candidates, unit="call", mode="one process", cache="warm", goal=goal,
        threshold=0.02, alpha=0.05, looks=(10,), stopped="all rounds", rounds=10, budget_s=1.0,
        spent_s=1.0, seed=0, drift=Drift(share=0.0, significant=False),
        order=OrderEffect(share=0.0, significant=False),
        surroundings=Surroundings(device="cpu", threads=1, cores=1), broken=broken,
    )  # fmt: skip


def pair(name: str, found: Comparison) -> Pair:
    return Pair(name=name, title="", comparison=found)
