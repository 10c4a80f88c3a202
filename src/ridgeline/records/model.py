"""One model studied: what it costs, what it takes, where it stands, what it grows like."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.cost import Cost, MeasuredPeak, Memory, Parameters
from ridgeline.records.latency import Generation, Latency
from ridgeline.records.machine import CeilingState, Device

Form = Literal["constant", "linear", "quadratic", "power"]


class Law(Struct, frozen=True, kw_only=True):
    """A cost as a function of one size n.

    constant a · linear a + b·n · quadratic a + b·n + c·n² · power a·n^k
    """

    form: Form
    coefficients: tuple[float, ...]
    """(a,), (a, b), (a, b, c) or (a, k), in the order written above."""
    equation: str
    """For reading, with the unit of the values: "1.2 ms + 0.31 ms·n"."""
    r_squared: float
    worst_relative_error: float
    """Of the law at the points it was fitted to."""
    points: int
    """Distinct sizes."""
    exact: bool = False
    """The values are whole numbers and the law gives each to within 1e-9, the one left out of the
    fit included: a count, not a measurement."""


Bottleneck = Literal["compute-bound", "memory-bound", "overhead-bound"]


class Placement(Struct, frozen=True, kw_only=True):
    """Where the work stands against the machine's ceilings, and the numbers that decided it.

    Times are floors. All arithmetic and all memory traffic (`…_floor_ms`); each operator by the
    longer of its two, kept apart by which that is (`…_limited_ms`); and the cost of issuing every
    operator. The class is the largest of the last three.
    """

    bottleneck: Bottleneck
    dtype: str
    flops_per_second: float | None
    """Achieved; None where nothing was timed."""
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
    """GPU only: the host was still issuing when the device had done its work."""
    ceiling_state: CeilingState = "usable"
    """If not "usable", the ceilings may be too low, the class may be wrong, and there is no share
    of the ceiling."""

    @property
    def roofline_ms(self) -> float:
        """Each operator by its longer side, one after the other."""
        return self.compute_limited_ms + self.memory_limited_ms


class SweepPoint(Struct, frozen=True, kw_only=True):
    size: int
    flops: int
    peak_bytes: int
    median_ms: float | None
    note: str = ""


class Sweep(Struct, frozen=True, kw_only=True):
    """One dimension varied, a cost law fitted, the next size predicted and then measured."""

    dimension: Literal["batch", "seq"]
    points: tuple[SweepPoint, ...]
    laws: dict[str, Law]
    """By quantity: flops, peak_bytes, median_ms."""
    next_size: int
    predicted: dict[str, float]
    observed: dict[str, float]
    notes: tuple[str, ...] = ()


class Fit(Struct, frozen=True, kw_only=True):
    """The largest batch whose predicted peak stays within a budget, and the first that does not."""

    budget_bytes: int
    mode: Literal["inference", "training"]
    batch: int
    """0: not even one sample fits."""
    peak_bytes: int
    next_batch: int
    next_peak_bytes: int
    passes: int


class ModelReport(Struct, frozen=True, kw_only=True):
    target: str
    model: str
    """Class of the module."""
    inputs: tuple[str, ...]
    """Each as the command line would write it: "32x3x224x224:float32"."""
    samples: int
    """Size of the batch dimension."""
    mode: Literal["inference", "training"]
    device: Device
    parameters: Parameters
    cost: Cost
    """Of the mode asked for; in inference the backward comes from a training pass."""
    inference_memory: Memory
    training_memory: Memory | None
    measured_peak: MeasuredPeak | None
    latency: Latency | None
    latency_missing: str
    """Why there is no latency; "" where there is one."""
    placement: Placement
    notes: tuple[str, ...]
    sweep: Sweep | None = None
    fit: Fit | None = None
    generation: Generation | None = None

    @property
    def memory(self) -> Memory:
        if self.mode == "training" and self.training_memory is not None:
            return self.training_memory
        return self.inference_memory
