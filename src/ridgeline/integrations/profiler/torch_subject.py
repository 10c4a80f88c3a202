"""Profiles a torch module: `ridgeline.cost.counting` counts its work, `ridgeline.measure` measures
it.

The forward pass is profiled as inference (eval mode, no gradients), the backward pass as training.
Modes, buffers, gradients and random numbers are restored afterwards.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from ridgeline.cost.counting import Account, count
from ridgeline.cost.counting.parameters import count_parameters
from ridgeline.cost.counting.passes import backward_from, device_of, differentiable, preserved
from ridgeline.cost.study.placement import ceiling_dtype, place
from ridgeline.errors import RidgelineError
from ridgeline.integrations.profiler.subject import (
    COURSE_ROOF,
    Backward,
    Footprint,
    Roof,
    Shape,
    Source,
    Work,
    apply_loss,
    batch_of,
    median,
    one_sample,
    time_ms,
)
from ridgeline.machine import ceilings
from ridgeline.records.cost import Cost

_SAMPLE_DIMS_OF_CONVOLUTION = {"1d": 2, "2d": 3, "3d": 4}


class TorchSubject:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._counted: list[tuple[Any, bool, Account]] = []

    def parameter_count(self) -> int:
        return count_parameters(self._module).total

    def parameter_bytes(self) -> int:
        return count_parameters(self._module).parameter_bytes

    def gradient_bytes(self) -> int:
        return sum(p.numel() * p.itemsize for p in self._module.parameters() if p.requires_grad)

    def example(self, shape: Shape) -> torch.Tensor:
        """Return random numbers or token ids, whichever the module takes."""
        device = device_of(self._module)
        floating = (p.dtype for p in self._module.parameters() if p.is_floating_point())
        dtype = next(floating, torch.get_default_dtype())
        # A separate generator leaves the random numbers of the program as they are.
        generator = torch.Generator(device if device.type != "meta" else "cpu").manual_seed(7)
        real = generator.device
        numbers = torch.randn(shape, dtype=dtype, device=real, generator=generator).to(device)
        tokens = torch.zeros(shape, dtype=torch.long, device=device)
        looks_up = isinstance(self._first_leaf(), (torch.nn.Embedding, torch.nn.EmbeddingBag))
        first, second = (tokens, numbers) if looks_up else (numbers, tokens)
        try:
            self._account(first)
        except Exception as error:
            try:
                self._account(second)
            except Exception:  # the first error is about the likelier kind of input
                raise error from None
            return second
        return first

    def forward(self, example: Any) -> Callable[[], Any]:
        args, kwargs = _arguments(example)

        def run() -> Any:
            with torch.no_grad():
                return self._module(*args, **kwargs)

        return run

    def time_forward(self, example: Any, warmup: int, iterations: int) -> tuple[float, ...]:
        run, synchronize = self.forward(example), self._synchronize(example)
        with preserved(self._module, training=False):
            return time_ms(run, warmup, iterations, synchronize)

    def count_shape(self, shape: Shape) -> Work:
        sample = one_sample(shape, self._sample_dims()) if self._batch_dim(shape) == 0 else shape
        if sample != shape:
            try:
                return self.count_input(self.example(sample))
            except Exception:  # a module may insist on its batch size
                pass
        return self.count_input(self.example(shape))

    def count_input(self, example: Any) -> Work:
        cost = self._account(example).cost
        total = cost.phases["forward"]
        # A module without products (a ReLU, a norm) reports its elementwise FLOPs.
        flops = total.flops or total.all_flops
        ops: dict[str, int] = {}
        for op in cost.ops:
            if op.phase == "forward":
                spent = op.totals.flops if total.flops else op.totals.all_flops
                ops[op.op] = ops.get(op.op, 0) + spent
        ops = {name: spent for name, spent in ops.items() if spent}
        return Work(flops, total.flops, total.bytes, self._batch(example), ops)

    def footprint(self, example: Any) -> Footprint:
        memory = self._account(example).memory
        try:
            trained = self._account(example, training=True).memory
        except RuntimeError:  # autograd refuses this forward pass: use what is alive in inference
            trained = memory
        static = memory.parameters_bytes + memory.buffers_bytes + memory.inputs_bytes
        peak, source = self._peak_bytes(example, static, memory.peak_bytes)
        activations = trained.inputs_bytes + trained.activations_bytes
        return Footprint(memory.parameters_bytes, activations, peak, source)

    def time_backward(
        self, example: Any, loss: Callable[..., Any] | None, warmup: int, iterations: int
    ) -> Backward | None:
        args, kwargs = _arguments(example)
        synchronize = self._synchronize(example)
        forward_ms, backward_ms = [], []
        with preserved(self._module, training=True):
            for _ in range(warmup + iterations):
                synchronize()
                start = perf_counter()
                output = self._module(*args, **kwargs)
                synchronize()
                forward_ms.append((perf_counter() - start) * 1e3)
                target = output if loss is None else apply_loss(loss, output, torch.zeros_like)
                if not differentiable(target):
                    return None
                synchronize()
                start = perf_counter()
                backward_from(target)
                synchronize()
                backward_ms.append((perf_counter() - start) * 1e3)
                self._module.zero_grad(set_to_none=True)
        counted = self._account(example, training=True).cost.phases
        spent = counted["backward"].flops + counted["recompute"].flops
        return Backward(
            median(tuple(forward_ms[warmup:])), median(tuple(backward_ms[warmup:])), spent
        )

    def roof(self, example: Any) -> Roof:
        return machine_roof(device_of(self._module), self._account(example).cost)

    def _account(self, example: Any, training: bool = False) -> Account:
        for known, trained, account in self._counted:
            if known is example and trained == training:
                return account
        args, kwargs = _arguments(example)
        account = count(self._module, args, kwargs, training=training)
        self._counted.append((example, training, account))
        return account

    def _peak_bytes(self, example: Any, static: int, predicted: int) -> tuple[int, Source]:
        from ridgeline.measure.peak import measure_peak

        device = str(device_of(self._module, *_arguments(example)))
        run = self.forward(example)
        try:
            with preserved(self._module, training=False):
                run()  # the first call allocates what later ones reuse: workspaces, lazy buffers
                return measure_peak(run, device, static, "inference").peak_bytes, "measured"
        except RidgelineError:  # no such measurement here (meta tensors, a profiler running)
            return predicted, "estimated"

    def _synchronize(self, example: Any) -> Callable[[], None]:
        device = device_of(self._module, *_arguments(example))
        if device.type in ("cpu", "meta"):
            return lambda: None
        wait: Callable[[], None] = torch.get_device_module(device).synchronize
        return wait

    def _first_leaf(self) -> torch.nn.Module:
        leaves = (m for m in self._module.modules() if not any(m.children()))
        return next(leaves, self._module)

    def _sample_dims(self) -> int:
        name = type(self._first_leaf()).__name__
        return _SAMPLE_DIMS_OF_CONVOLUTION.get(name[-2:], 1) if name.startswith("Conv") else 1

    def _batch_dim(self, shape: Shape) -> int:
        """Return which dimension is the batch. Recurrent and attention modules of torch have the
        sequence first unless `batch_first` is set."""
        module = self._module
        if isinstance(module, (torch.nn.TransformerEncoder, torch.nn.TransformerDecoder)):
            module = module.layers[0]
        if isinstance(module, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)):
            module = module.self_attn
        return 1 if len(shape) == 3 and getattr(module, "batch_first", None) is False else 0

    def _batch(self, example: Any) -> int:
        args, kwargs = _arguments(example)
        tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
        shape = tuple(next(tensors, torch.empty(())).shape)
        if self._batch_dim(shape) == 1:
            return shape[1]
        return batch_of(shape, self._sample_dims())


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of an example: a tuple holds positional
    arguments, a mapping holds keywords, and None stands for no argument."""
    if isinstance(example, dict) or hasattr(example, "keys"):
        return (), dict(example)
    if isinstance(example, tuple):
        return example, {}
    return (() if example is None else (example,)), {}


def machine_roof(device: torch.device, cost: Cost) -> Roof:
    """Return the measured ceilings of a device. Measuring takes some seconds, once for each
    machine. A device that cannot be measured (meta, mps) gets the machine that the course assumes,
    and `source` says so."""
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    dtype = ceiling_dtype(cost.dtype, tf32)
    try:
        machine = ceilings(str(device), [dtype])
    except RidgelineError:
        return COURSE_ROOF
    product = machine.ceiling("matmul", dtype) or machine.doubtful_ceiling("matmul", dtype)
    traffic = machine.ceiling("copy") or machine.doubtful_ceiling("copy")
    if product is None or traffic is None:
        return COURSE_ROOF
    busy = "" if product.state == traffic.state == "usable" else ", while the machine was busy"
    limit = place(cost, ("forward",), machine, None, tf32=tf32).bottleneck
    return Roof(
        flops_per_s=product.value,
        bytes_per_s=traffic.value,
        source=f"{product.source}: {machine.name}, {dtype}{busy}",
        limit=limit.removesuffix("-bound"),
    )
