"""A model report made up by hand: small numbers, every part present."""

from typing import Any

from ridgeline.records.cost import (
    Cost,
    LiveTensor,
    MeasuredPeak,
    Memory,
    ModuleCost,
    OpCost,
    Parameters,
    Phase,
    Totals,
    Unformulated,
)
from ridgeline.records.latency import Generation, Latency, Summary, TokenTimes
from ridgeline.records.machine import Device
from ridgeline.records.model import Fit, Law, ModelReport, Placement, Sweep, SweepPoint

FORWARD = Totals(calls=3, macs=500, flops=1000, all_flops=1100, bytes=400, skipped_flops=100)
BACKWARD = Totals(calls=5, macs=900, flops=1800, all_flops=2000, bytes=900)
PHASES: dict[Phase, Totals] = {
    "forward": FORWARD, "recompute": Totals(), "backward": BACKWARD, "optimizer": Totals(),
}  # fmt: skip

COST = Cost(
    backend="fake",
    phases=PHASES,
    ops=(
        OpCost(op="aten::mm", module="a", phase="forward", dtype="float32",
               totals=Totals(calls=1, macs=200, flops=400, all_flops=400, bytes=100),
               formulated=True),
        OpCost(op="aten::mm", module="b", phase="forward", dtype="float32",
               totals=Totals(calls=2, macs=300, flops=600, all_flops=700, bytes=300),
               formulated=True),
        OpCost(op="my::op", module="b", phase="backward", dtype="float32",
               totals=Totals(calls=1, bytes=90), formulated=False),
    ),
    modules=(
        ModuleCost(path="", type="Net", calls=1, parameters=30, phases=PHASES),
        ModuleCost(path="a", type="Linear", calls=2, parameters=10,
                   phases={"forward": Totals(macs=200, flops=400)}, activation_bytes=64),
    ),
    coverage_percent=93.1,
    unformulated=(Unformulated(op="my::op", calls=1, bytes=90),),
    dtype="float32",
    notes=("counted with care",),
)  # fmt: skip


def memory(mode: Any = "inference", **changed: Any) -> Memory:
    values: dict[str, Any] = {
        "mode": mode, "source": "predicted", "backend": "fake", "parameters_bytes": 120,
        "buffers_bytes": 0, "inputs_bytes": 40, "gradients_bytes": 0, "optimizer_bytes": 0,
        "activations_bytes": 80, "temporaries_bytes": 8, "peak_bytes": 248,
        "largest_at_peak": (
            LiveTensor(kind="activations", bytes=80, shape=(4, 5), dtype="float32",
                       op="aten::mm", module="a"),
        ),
    }  # fmt: skip
    return Memory(**{**values, **changed})


def summary(median_ns: float = 2e6, **changed: Any) -> Summary:
    values: dict[str, Any] = {
        "count": 40, "median_ns": median_ns, "ci_low_ns": 0.9 * median_ns,
        "ci_high_ns": 1.1 * median_ns, "mean_ns": median_ns, "std_ns": 0.0, "min_ns": median_ns,
        "max_ns": median_ns, "iqr_ns": 0.0, "refused": ("p95 needs 100 samples, there are 40",),
    }  # fmt: skip
    return Summary(**{**values, **changed})


LATENCY = Latency(
    summary=summary(), samples_ns=(2e6, 2e6), block_calls=3, warmup_ns=(9e6,), steady=True,
    clock="wall", wall_median_ns=2e6, warnings=("the machine was busy",),
)  # fmt: skip


def placement(**changed: Any) -> Placement:
    values: dict[str, Any] = {
        "bottleneck": "memory-bound", "dtype": "float32", "flops_per_second": 5e5,
        "bytes_per_second": 2e5, "percent_of_ceiling": 0.05, "ceiling_flops": 1e9,
        "ceiling_bytes": 1e8, "ceiling_source": "measured", "ridge_intensity": 10.0,
        "intensity": 2.5, "compute_floor_ms": 0.2, "memory_floor_ms": 1.1,
        "compute_limited_ms": 0.2, "memory_limited_ms": 1.0, "overhead_ms": 0.5,
        "operators": 3, "measured_ms": 2.0, "host_limited": False,
    }  # fmt: skip
    return Placement(**{**values, **changed})


LAW = Law(form="linear", coefficients=(0.0, 2.0), equation="2 FLOP·n", r_squared=1.0,
          worst_relative_error=0.0, points=2, exact=True)  # fmt: skip
SWEEP = Sweep(
    dimension="batch", points=(SweepPoint(size=1, flops=2, peak_bytes=3, median_ms=None),
                               SweepPoint(size=2, flops=4, peak_bytes=3, median_ms=None)),
    laws={"flops": LAW}, next_size=4, predicted={"flops": 8.0}, observed={"flops": 8.0},
)  # fmt: skip
FIT = Fit(budget_bytes=1024, mode="inference", batch=7, peak_bytes=1000, next_batch=8,
          next_peak_bytes=1100, passes=4)  # fmt: skip
TOKENS = TokenTimes(positions=(4, 5), samples_ns=((1e6, 1e6),), summary=summary(1e6), growth_ns=0.0)
GENERATION = Generation(
    batch=1, prompt_tokens=4, tokens=2, first_token_ms=3.0, first_token=summary(3e6),
    uncached_token_ms=1.0, uncached=TOKENS, clock="wall", notes=("it takes no cache",),
)  # fmt: skip


def report(**changed: Any) -> ModelReport:
    values: dict[str, Any] = {
        "target": "net.py:build",
        "model": "Net",
        "inputs": ("4x5:float32",),
        "samples": 4,
        "mode": "inference",
        "device": Device(kind="cpu", index=0, name="Paper CPU", memory_bytes=2**30),
        "parameters": Parameters(
            total=30, trainable=20, frozen=10, tied=5, buffers=2, parameter_bytes=120,
            buffer_bytes=8, by_dtype={"float32": 30},
        ),
        "cost": COST,
        "inference_memory": memory(),
        "training_memory": memory(
            "training", gradients_bytes=80, optimizer_bytes=160, peak_bytes=900, optimizer="adamw"
        ),
        "measured_peak": MeasuredPeak(
            mode="inference", peak_bytes=300, static_bytes=160, method="allocations"
        ),
        "latency": LATENCY,
        "latency_missing": "",
        "placement": placement(),
        "notes": ("the machine was busy",),
        "sweep": SWEEP,
        "fit": FIT,
        "generation": GENERATION,
    }  # fmt: skip
    return ModelReport(**{**values, **changed})
