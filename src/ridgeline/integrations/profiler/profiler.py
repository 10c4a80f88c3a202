"""`Profiler`: the profiler of the TinyTorch course, for torch modules and NumPy objects.

Names, arguments, defaults and keys are those of the course. Values that the course estimates are
measured or counted here; docs/profiler.md lists the differences.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ridgeline.errors import UsageError
from ridgeline.integrations.profiler import layers
from ridgeline.integrations.profiler.layers import (
    convolution_flops,
    element_count,
    linear_flops,
    stack_count,
)
from ridgeline.integrations.profiler.subject import (
    COURSE_ROOF,
    Footprint,
    Shape,
    Subject,
    Timer,
    Work,
    as_mb,
    bottleneck,
    median,
    one_sample,
    rates,
    roofline,
    subject_of,
)

if TYPE_CHECKING:
    from ridgeline.records.latency import Summary
from collections.abc import Sequence

import numpy as np

from ridgeline.integrations.profiler.layers import array_of

T = TypeVar("T")


def _asked_shape(given: Any) -> Shape:
    """Return the sizes that a person gave. A tensor or an array stands for its own shape."""
    try:
        return tuple(int(size) for size in getattr(given, "shape", given))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{given!r} is not the shape of an input", "give its sizes, for example (32, 784)"
        ) from error


class Profiler:
    """Finds a model's parameters, FLOPs, memory and latency. As a context manager it times its
    block and leaves the milliseconds in `elapsed`."""

    def __init__(self) -> None:
        self.measurements: dict[str, Any] = {}
        """The latest result of each method, under the name of the method."""
        self.operation_counts: defaultdict[str, int] = defaultdict(int)
        """FLOPs of one sample in the latest count, by operator (torch) or layer type (NumPy)."""
        self.memory_tracker: Footprint | None = None
        self.last_samples_ms: tuple[float, ...] = ()
        """Each timed pass behind the latest latency, in order."""
        self._timer = Timer()

    def __enter__(self) -> "Profiler":
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.elapsed = self._timer.stop()

    def count_parameters(self, model: Any) -> int:
        """Return the number of parameters. Parameters that share a storage count once."""
        return self._keep("count_parameters", subject_of(model).parameter_count())

    def count_flops(self, model: Any, input_shape: Shape) -> int:
        """Return the FLOPs of a forward pass of one sample, whatever the batch size."""
        work = subject_of(model).count_shape(_asked_shape(input_shape))
        self._note_work(work)
        return self._keep("count_flops", work.flops_per_sample)

    def measure_memory(self, model: Any, input_shape: Shape) -> dict[str, float]:
        """Return the memory of a forward pass on a random input of this shape, in MiB."""
        subject = subject_of(model)
        return self._memory(subject, subject.example(_asked_shape(input_shape)))

    def measure_latency(
        self, model: Any, input_tensor: Any, warmup: int = 10, iterations: int = 100
    ) -> float:
        """Return the median time of a forward pass in milliseconds; `last_samples_ms` has each
        pass."""
        return self._latency(subject_of(model), input_tensor, warmup, iterations)

    def latency_summary(self) -> "Summary":
        """Return the median of the latest latency with its interval, its spread and percentiles."""
        from ridgeline.statistics.samples import summarize

        return summarize([sample * 1e6 for sample in self.last_samples_ms])

    def profile_layer(self, layer: Any, input_shape: Shape) -> dict[str, Any]:
        """Profile one layer on a random input: size, work, memory and speed."""
        subject = subject_of(layer)
        example = subject.example(_asked_shape(input_shape))
        work = subject.count_input(example)
        self._note_work(work)
        latency_ms = self._latency(subject, example, warmup=3, iterations=10)
        speed = rates(work.flops, latency_ms, as_mb(work.bytes), COURSE_ROOF)
        profile = {
            "layer_type": type(layer).__name__,
            "parameters": subject.parameter_count(),
            "flops": work.flops_per_sample,
            "latency_ms": latency_ms,
            "gflops_per_second": speed["gflops_per_second"],
            **self._memory(subject, example),
        }
        return self._keep("profile_layer", profile)

    def profile_forward_pass(self, model: Any, input_tensor: Any) -> dict[str, Any]:
        """Profile a forward pass on this input. `flops` is that of one sample; rates are of the
        batch."""
        subject = subject_of(model)
        work = subject.count_input(input_tensor)
        self._note_work(work)
        latency_ms = self._latency(subject, input_tensor, warmup=5, iterations=20)
        roof = subject.roof(input_tensor)
        speed = rates(work.flops, latency_ms, as_mb(work.bytes), roof)
        measured_rates = speed["gflops_per_second"], speed["memory_bandwidth_mbs"]
        profile = {
            "parameters": subject.parameter_count(),
            "flops": work.flops_per_sample,
            "latency_ms": latency_ms,
            **self._memory(subject, input_tensor),
            **speed,
            **bottleneck(*measured_rates, roof),
            "peak_source": self.memory_tracker.source if self.memory_tracker else "estimated",
            "batch_size": work.batch,
            "batch_flops": work.flops,
            "matmul_flops": round(work.products / work.batch),
            "moved_memory_mb": as_mb(work.bytes),
            **roofline(*measured_rates, roof),
        }
        return self._keep("profile_forward_pass", profile)

    def profile_backward_pass(
        self, model: Any, input_tensor: Any, _loss_fn: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """Profile a forward and a backward pass. The backward pass starts at `_loss_fn(output)`, or
        at a gradient of ones. If the model has none, it is estimated, as `backward_source` says."""
        forward = self.profile_forward_pass(model, input_tensor)
        subject = subject_of(model)
        timed = subject.time_backward(input_tensor, _loss_fn, warmup=2, iterations=10)
        forward_ms = forward["latency_ms"] if timed is None else timed.forward_ms
        backward = self._estimate_backward_costs(forward["flops"], forward_ms)
        if timed is not None:
            backward["backward_latency_ms"] = timed.backward_ms
            if timed.flops is not None:
                backward["backward_flops"] = round(timed.flops / forward["batch_size"])
        gradient_mb = as_mb(subject.gradient_bytes())
        total_flops = forward["flops"] + backward["backward_flops"]
        total_ms = forward_ms + backward["backward_latency_ms"]
        held_mb = forward["parameter_memory_mb"] + forward["activation_memory_mb"]
        speed = rates(total_flops * forward["batch_size"], total_ms, 0.0, COURSE_ROOF)
        profile = {
            "forward_flops": forward["flops"],
            "forward_latency_ms": forward_ms,
            "forward_memory_mb": forward["peak_memory_mb"],
            **backward,
            "gradient_memory_mb": gradient_mb,
            "total_flops": total_flops,
            "total_latency_ms": total_ms,
            "total_memory_mb": held_mb + gradient_mb,
            "total_gflops_per_second": speed["gflops_per_second"],
            "optimizer_memory_estimates": self._estimate_optimizer_memory(gradient_mb),
            "memory_efficiency": forward["memory_efficiency"],
            "bottleneck": forward["bottleneck"],
            "backward_source": "estimated" if timed is None else "measured",
        }
        return self._keep("profile_backward_pass", profile)

    # The tests of the course call these methods by name, with these keyword arguments.

    def _count_layer_parameters(self, layer: Any) -> int:
        return sum(map(element_count, layers.weight_and_bias(layer)))

    def _count_linear_flops(self, model: Any, input_shape: Shape) -> int:
        return linear_flops(model, one_sample(tuple(input_shape), 1))

    def _count_conv_flops(self, model: Any, input_shape: Shape) -> int:
        dims = layers.convolution_dims(model) + 1
        return convolution_flops(model, one_sample(tuple(input_shape), dims))

    def _count_sequential_flops(self, model: Any, input_shape: Shape) -> int:
        if not layers.stack(model):  # a torch Sequential has no `.layers`
            return self.count_flops(model, input_shape)
        sample = one_sample(tuple(input_shape), layers.sample_dims(model))
        return stack_count(layers.stack(model), sample).flops

    def _calculate_parameter_memory(self, model: Any) -> float:
        return as_mb(subject_of(model).parameter_bytes())

    def _calculate_memory_efficiency(self, useful_memory_mb: float, peak_memory_mb: float) -> float:
        return min(useful_memory_mb / max(peak_memory_mb, 0.001), 1.0)

    def _compute_derived_metrics(
        self, flops: float, latency_ms: float, peak_memory_mb: float
    ) -> dict[str, float]:
        return rates(flops, latency_ms, peak_memory_mb, COURSE_ROOF)

    def _analyze_bottleneck(
        self, gflops_per_second: float, memory_bandwidth_mbs: float
    ) -> dict[str, Any]:
        return bottleneck(gflops_per_second, memory_bandwidth_mbs, COURSE_ROOF)

    def _estimate_backward_costs(
        self, forward_flops: int, forward_latency_ms: float
    ) -> dict[str, Any]:
        """Return twice the forward costs: the gradient of the input and that of the weights each
        take a product as large as the forward one."""
        return {
            "backward_flops": 2 * forward_flops,
            "backward_latency_ms": 2 * forward_latency_ms,
        }

    def _estimate_optimizer_memory(self, gradient_memory_mb: float) -> dict[str, float]:
        state = 2 * gradient_memory_mb
        return {"sgd": 0, "adam": state, "adamw": state}

    def _latency(self, subject: Subject, example: Any, warmup: int, iterations: int) -> float:
        self.last_samples_ms = subject.time_forward(example, warmup, iterations)
        return self._keep("measure_latency", median(self.last_samples_ms))

    def _memory(self, subject: Subject, example: Any) -> dict[str, float]:
        footprint = subject.footprint(example)
        self.memory_tracker = footprint
        parameters, activations = (
            as_mb(footprint.parameter_bytes),
            as_mb(footprint.activation_bytes),
        )
        peak = as_mb(footprint.peak_bytes)
        memory = {
            "parameter_memory_mb": parameters,
            "activation_memory_mb": activations,
            "peak_memory_mb": peak,
            "memory_efficiency": self._calculate_memory_efficiency(parameters + activations, peak),
        }
        return self._keep("measure_memory", memory)

    def _note_work(self, work: Work) -> None:
        per_sample = {op: round(flops / work.batch) for op, flops in work.ops.items()}
        self.operation_counts = defaultdict(int, per_sample)

    def _keep(self, name: str, result: T) -> T:
        self.measurements[name] = result
        return result


def quick_profile(
    model: Any, input_tensor: Any, profiler: Profiler | None = None
) -> dict[str, Any]:
    """Profile one forward pass, print the main figures, and return all of them."""
    profile = (profiler or Profiler()).profile_forward_pass(model, input_tensor)
    print(f"Parameters: {profile['parameters']:,}")
    print(f"FLOPs:      {profile['flops']:,} per sample")
    print(f"Latency:    {profile['latency_ms']:.3f} ms")
    print(f"Memory:     {profile['peak_memory_mb']:.2f} MB peak")
    print(f"Bottleneck: {profile['bottleneck']}")
    print(f"Efficiency: {profile['computational_efficiency'] * 100:.1f}%")
    return profile


_THRESHOLDS = {"0001": 0.001, "001": 0.01, "01": 0.1}


def analyze_weight_distribution(
    model: Any, percentiles: Sequence[float] = (10, 25, 50, 75, 90)
) -> dict[str, Any]:
    """Return statistics of the absolute weights; `below_threshold_*` are percentages. The weights
    are those of `parameters()`, else `.weight` alone, as in the course. Without weights the result
    is `{"error": …}`."""
    if callable(getattr(model, "parameters", None)):
        held = list(model.parameters())
    else:
        held = [model.weight] if hasattr(model, "weight") else []
    arrays = [array for array in map(array_of, held) if array is not None and array.size]
    if not arrays:
        return {"error": "No weights found"}
    size = np.abs(np.concatenate([array.ravel() for array in arrays]).astype(np.float64))
    return {
        "total_weights": int(size.size),
        "mean": float(size.mean()),
        "std": float(size.std()),
        "min": float(size.min()),
        "max": float(size.max()),
        **{f"percentile_{p}": float(np.percentile(size, p)) for p in percentiles},
        **{
            f"below_threshold_{name}": float(np.mean(size < limit) * 100)
            for name, limit in _THRESHOLDS.items()
        },
    }
