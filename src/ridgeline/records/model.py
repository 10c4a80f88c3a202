"""The study of one model: cost, memory, latency, roofline placement, and growth with a size."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.cost import PHASES, Cost, MeasuredPeak, Memory, OpCost, Parameters, Totals
from ridgeline.records.facts import Reason
from ridgeline.records.latency import Generation, Latency
from ridgeline.records.machine import CeilingState, Device
from ridgeline.records.memory_plan import PlannedFit
from ridgeline.records.trace import RooflineRow

Form = Literal["constant", "linear", "quadratic", "power"]


class Law(Struct, frozen=True, kw_only=True):
    """A law that gives a cost as a function of one size n:

    constant a · linear a + b·n · quadratic a + b·n + c·n² · power a·n^k
    """

    form: Form
    coefficients: tuple[float, ...]
    """(a,), (a, b), (a, b, c) or (a, k), in the order written above."""
    equation: str
    """The law as text, with the unit of the values: "1.2 ms + 0.31 ms·n"."""
    r_squared: float
    worst_relative_error: float
    """The largest relative error at the points that the law was fitted to."""
    points: int
    """The number of distinct sizes."""
    exact: bool = False
    """Whether the values are counts: whole numbers that the law gives to within 1e-9, including one
    that was left out of the fit."""


Bottleneck = Literal["compute-bound", "memory-bound", "overhead-bound"]


class Placement(Struct, frozen=True, kw_only=True):
    """The roofline class of the work on a machine, and the numbers that decided it.

    The times are lower bounds: of all arithmetic and of all memory traffic (`…_floor_ms`); of the
    operators limited by arithmetic and of those limited by memory (`…_limited_ms`), each by the
    longer of its two bounds; and of issuing every operator (`overhead_ms`). The class is the
    largest of the last three.
    """

    bottleneck: Bottleneck
    dtype: str
    flops_per_second: float | None
    """The rate that was reached; None if nothing was timed."""
    bytes_per_second: float | None
    percent_of_ceiling: float | None
    ceiling_flops: float
    ceiling_bytes: float
    ceiling_source: str
    ridge_intensity: float
    intensity: float
    compute_floor_ms: float
    memory_floor_ms: float
    compute_limited_ms: float
    memory_limited_ms: float
    overhead_ms: float
    operators: int
    measured_ms: float | None
    host_limited: bool
    """GPUs only: whether the host was still issuing work when the device had finished."""
    ceiling_state: CeilingState = "usable"
    """If not "usable", the ceilings may be too low, the class may be wrong, and there is no share
    of the ceiling."""

    @property
    def roofline_ms(self) -> float:
        """The sum over all operators of the longer of their two bounds."""
        return self.compute_limited_ms + self.memory_limited_ms


class SweepPoint(Struct, frozen=True, kw_only=True):
    """One size of a sweep."""

    size: int
    flops: int
    peak_bytes: int
    median_ms: float | None
    note: str = ""


class Sweep(Struct, frozen=True, kw_only=True):
    """A sweep over one dimension: the points, the fitted laws, and the next size, both predicted
    and measured."""

    dimension: Literal["batch", "seq"]
    points: tuple[SweepPoint, ...]
    laws: dict[str, Law]
    """The law of each quantity: flops, peak_bytes, median_ms."""
    next_size: int
    predicted: dict[str, float]
    observed: dict[str, float]
    notes: tuple[str, ...] = ()


class Fit(Struct, frozen=True, kw_only=True):
    """The largest batch whose predicted peak stays within a budget, and the first that does not."""

    budget_bytes: int
    mode: Literal["inference", "training"]
    batch: int
    """The largest batch; 0 if not even one sample fits."""
    peak_bytes: int
    next_batch: int
    next_peak_bytes: int
    passes: int


class ModelReport(Struct, frozen=True, kw_only=True):
    """The result of `ridgeline model`."""

    target: str
    model: str
    """The class name of the module."""
    inputs: tuple[str, ...]
    """Each input as on the command line: "32x3x224x224:float32"."""
    samples: int
    """The size of the batch dimension."""
    mode: Literal["inference", "training"]
    device: Device
    parameters: Parameters
    cost: Cost
    """The cost in the mode asked for. In inference, the backward comes from a training pass."""
    inference_memory: Memory
    training_memory: Memory | None
    measured_peak: MeasuredPeak | None
    latency: Latency | None
    latency_missing: str
    """Why there is no latency; "" if there is one."""
    placement: Placement
    notes: tuple[str, ...]
    disturbances: tuple[Reason, ...] = ()
    """What may have disturbed the latency, with a code of `Disturbance`."""
    sweep: Sweep | None = None
    fit: Fit | None = None
    planned: PlannedFit | None = None
    """How a training step fits the budget of `fit`."""
    generation: Generation | None = None

    @property
    def memory(self) -> Memory:
        """The memory in the mode asked for."""
        if self.mode == "training" and self.training_memory is not None:
            return self.training_memory
        return self.inference_memory

    @property
    def samples_per_s(self) -> float:
        """Return the rate at the median latency; 0 if no latency was measured."""
        return self.samples / (self.latency.summary.median_ns / 1e9) if self.latency else 0.0

    @property
    def operators(self) -> tuple[RooflineRow, ...]:
        """The operators of the mode asked for, each at the most that the ceilings allow: none was
        timed alone. The times are lower bounds, the longest first."""
        sums: dict[tuple[str, str, str], Totals] = {}
        modules: dict[tuple[str, str, str], str] = {}
        for op in self._counted:
            key = op.op, op.phase, op.dtype
            sums[key] = sums.get(key, Totals()) + op.totals
            modules.setdefault(key, op.module)
        whole = sum(self._floor_ns(totals) for totals in sums.values()) or 1.0
        rows = [
            self._floor_row(op, phase, dtype, modules[op, phase, dtype], totals, whole)
            for (op, phase, dtype), totals in sums.items()
            if totals.bytes
        ]
        return tuple(sorted(rows, key=lambda row: -row.device_ns))

    @property
    def module_floor_ns(self) -> dict[str, float]:
        """The least time of each module, with all modules inside it, by its path."""
        floors: dict[str, float] = {}
        for op in self._counted:
            names = op.module.split(".") if op.module else []
            for depth in range(len(names) + 1):
                path = ".".join(names[:depth])
                floors[path] = floors.get(path, 0.0) + self._floor_ns(op.totals)
        return floors

    @property
    def _counted(self) -> list[OpCost]:
        phases = PHASES if self.mode == "training" else PHASES[:1]
        return [op for op in self.cost.ops if op.phase in phases]

    def _floor_ns(self, totals: Totals) -> float:
        place = self.placement
        compute_s = totals.all_flops / place.ceiling_flops if place.ceiling_flops else 0.0
        memory_s = totals.bytes / place.ceiling_bytes if place.ceiling_bytes else 0.0
        return 1e9 * max(compute_s, memory_s)

    def _floor_row(
        self, op: str, phase: str, dtype: str, module: str, totals: Totals, whole: float
    ) -> RooflineRow:
        place, ns = self.placement, self._floor_ns(totals)
        intensity = totals.all_flops / totals.bytes
        is_compute = intensity > place.ridge_intensity
        known = place.ceiling_state == "usable"
        return RooflineRow(
            op=op,
            shape=phase,
            dtype=dtype,
            count=max(totals.calls, 1),
            device_ns=round(ns),
            share=ns / whole,
            flops=totals.all_flops / max(totals.calls, 1),
            bytes=totals.bytes / max(totals.calls, 1),
            flops_s=min(place.ceiling_flops, intensity * place.ceiling_bytes),
            bytes_s=totals.bytes / (ns / 1e9) if ns else 0.0,
            intensity=intensity,
            bound=("compute" if is_compute else "memory") if known else "",
            module=module,
        )
