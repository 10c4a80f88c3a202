"""Tensors in a few numbers, on the host and in double precision, so that two trials can be
compared."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.harness.usercode.forked_work import DirectWork, SharedStore
from ridgeline.records.trial import TensorPrint

MAX_SAMPLED_ELEMENTS = 65_536
"""Elements of a tensor kept to see how far it moved: a copy of a whole model may not fit."""
BLOCKS, NUMBERS_PER_BLOCK = 12, 2
"""How a sketch is made: with 24 numbers a tensor, the distance of two is known to a quarter. Twelve
blocks of neighbours separate what is stored in one tensor: queries, keys and values, or the four
gates of a cell."""
MAX_OUTPUTS, DIRECTIONS = 8, 4
MAX_GLANCED_ELEMENTS = 16_384
"""Elements of an output that are sketched on its device: the signs take 0.1 MB there."""
HOST_PART_ELEMENTS, DEVICE_PART_ELEMENTS = 2**20, 2**23
"""Elements whose norm is taken at once. A norm in double precision makes a copy: 8 MB on a host."""
MIN_MASK_VALUE = 1e3
"""Masks are of -1e4, -65504, -1e9 or a type's lowest number; `inference_outputs` decides whether
such values are a mask."""
MASK_FACTS = 6
"""Numbers about a possible mask: how many elements are not finite; of those below MIN_MASK_VALUE
the number, the norm and the largest; of the other finite ones the least and the largest."""
MAX_TENSORS = 2_000
"""Parameters and buffers that are printed, of all models together."""


def norm(torch: Any, tensor: Any) -> float:
    tensor, double = _dense(tensor), torch.float64
    values = tensor if tensor.is_floating_point() else tensor.to(double)
    return float(torch.linalg.vector_norm(values, dtype=double))


def sampled(torch: Any, tensor: Any) -> Any:
    """Return elements at equal distances, on the host and in double precision."""
    flat = _dense(tensor.detach()).reshape(-1)
    if flat.numel() > MAX_SAMPLED_ELEMENTS:
        flat = flat[:: flat.numel() // MAX_SAMPLED_ELEMENTS]
    return flat.to("cpu", torch.float64, copy=True)


def printed(torch: Any, name: str, tensor: Any, start: Any, *, buffer: bool) -> TensorPrint:
    """Return the print of a tensor; `start` is what `sampled` gave of it before the first step."""
    now = sampled(torch, tensor)
    scale = math.sqrt(tensor.numel() / max(now.numel(), 1))
    same = now.shape == start.shape
    return TensorPrint(
        name=name,
        norm=norm(torch, tensor.detach()),
        projection=float((now * _direction(torch, name, now.numel())).sum()),
        moved=float((now - start).norm()) * scale if same else math.nan,
        numel=tensor.numel(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        buffer=buffer,
        sketch=_sketch(torch, name, now - start, scale) if same else (),
    )


def gradient(torch: Any, name: str, tensor: Any, factor: float) -> TensorPrint:
    """Return the print of a gradient; `factor` undoes what a gradient scaler multiplied it by."""
    values = sampled(torch, tensor) * factor
    scale = math.sqrt(tensor.numel() / max(values.numel(), 1))
    size = norm(torch, tensor) * factor
    return TensorPrint(
        name=name,
        norm=size,
        projection=0.0,
        moved=size,
        numel=tensor.numel(),
        sketch=_sketch(torch, name, values, scale),
    )


def of_outputs(torch: Any, outputs: Any) -> tuple[float, ...]:
    """Return for each output tensor its norm and its projection, in turn, on a few directions."""
    numbers = []
    for at, tensor in enumerate(floating(torch, outputs)):
        flat = sampled(torch, tensor)
        size = float(flat.norm())
        for number in range(DIRECTIONS):
            along = _direction(torch, f"output {at}.{number}", flat.numel())
            numbers += [size, float((flat * along).sum())]
    return tuple(numbers)


def signs(torch: Any, device: Any) -> Any:
    """Return the signs for `glanced`. They are the same for every tensor, and drawn once."""
    generator = torch.Generator("cpu").manual_seed(_seed("signs", MAX_GLANCED_ELEMENTS))
    drawn = torch.randint(0, 2, (MAX_GLANCED_ELEMENTS,), generator=generator, device="cpu")
    return (drawn * 2 - 1).to(device, _widest(torch, device))


def glanced(torch: Any, tensor: Any, signs: Any) -> Any:
    """Return, on the tensor's device and without waiting for it, the norm and the sketch, the
    `MASK_FACTS`, and the sketch without the mask."""
    flat = _dense(tensor.detach()).reshape(-1)
    # An odd distance: every 16th element of rows of 4 would be the first column alone.
    apart = -(-flat.numel() // MAX_GLANCED_ELEMENTS) | 1
    wide = _widest(torch, flat.device)
    some = flat[::apart].to(wide)
    scale = math.sqrt(flat.numel() / max(some.numel(), 1))
    signed = signs[: some.numel()].to(some.device, wide) * scale

    def sketch(chosen: Any) -> Any:
        return _block_sums(torch, torch.where(chosen, some, 0.0) * signed)

    size, *facts = _mask_facts(torch, flat, wide)
    whole, usual = sketch(some.isfinite()), sketch(some.abs() < MIN_MASK_VALUE)
    return torch.cat([size.reshape(1), whole, torch.stack(facts), usual])


def _mask_facts(torch: Any, flat: Any, wide: Any) -> list[Any]:
    """Return the norm of what is finite, and `MASK_FACTS`, computed in parts because a wider copy
    of the whole may not fit."""
    none = torch.zeros((), dtype=wide, device=flat.device)
    part_size = HOST_PART_ELEMENTS if flat.device.type == "cpu" else DEVICE_PART_ELEMENTS
    parts = []
    for part in flat.split(part_size):
        values = part.to(wide) if part.numel() else none.reshape(1)
        size, finite = values.abs(), values.isfinite()
        usual = size < MIN_MASK_VALUE
        mask = finite & ~usual
        parts.append(
            torch.stack(
                (
                    torch.linalg.vector_norm(torch.where(finite, values, none)),
                    (~finite).sum().to(wide),
                    usual.sum().to(wide),
                    torch.linalg.vector_norm(torch.where(usual, values, none)),
                    torch.where(usual, size, none).amax(),
                    torch.where(mask, size, math.inf).amin(),
                    torch.where(mask, size, none).amax(),
                )
            )
        )
    norms, odd, below, rest, largest, mask_min, mask_max = torch.tensor_split(
        torch.stack(parts), MASK_FACTS + 1, dim=1
    )
    norm = torch.linalg.vector_norm
    return [norm(norms), odd.sum(), below.sum(), norm(rest), largest.amax(), mask_min.amin(),
            mask_max.amax()]  # fmt: skip


def _widest(torch: Any, device: Any) -> Any:
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def floating(torch: Any, outputs: Any) -> list[Any]:
    every = tensors_in(torch, outputs)
    return [tensor for tensor in every if tensor.is_floating_point()][:MAX_OUTPUTS]


def named(module: Any) -> Iterator[tuple[str, Any]]:
    """Return the parameters and buffers of a module that can be printed, by name."""
    yield from _printable((*module.named_parameters(), *module.named_buffers()))


def named_parameters(module: Any, number: int) -> Iterator[tuple[str, Any]]:
    """Return parameters by the names that a trial's record has for the `number`-th model."""
    for name, tensor in _printable(module.named_parameters()):
        yield _model_prefix(number) + name, tensor


def _printable(tensors: Any) -> Iterator[tuple[str, Any]]:
    for name, tensor in tensors:
        if not (tensor.is_complex() or tensor.is_meta):
            yield name.replace("_orig_mod.", ""), tensor


def _model_prefix(number: int) -> str:
    return f"{number}." if number > 1 else ""


def tensors_in(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    inside: Any = ()
    if depth < 4 and isinstance(value, tuple | list):
        inside = value
    elif depth < 4 and hasattr(value, "values") and callable(value.values):
        inside = value.values()
    for one in inside:
        yield from tensors_in(torch, one, depth + 1)


def shortened(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for value in numbers)


def _sketch(torch: Any, name: str, values: Any, scale: float) -> tuple[float, ...]:
    generator = torch.Generator("cpu").manual_seed(_seed(name, values.numel()))
    signs = torch.randint(0, 2, values.shape, generator=generator, device="cpu") * 2 - 1
    return shortened(_block_sums(torch, values * signs * scale).tolist())


def _block_sums(torch: Any, signed: Any) -> Any:
    missing = -signed.numel() % (BLOCKS * NUMBERS_PER_BLOCK)
    padded = torch.nn.functional.pad(signed, (0, missing))
    return padded.reshape(BLOCKS, -1, NUMBERS_PER_BLOCK).sum(1).reshape(-1)


def _direction(torch: Any, name: str, size: int) -> Any:
    generator = torch.Generator("cpu").manual_seed(_seed(name, size))
    return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")


def _seed(name: str, size: int) -> int:
    return sum(name.encode()) * 7919 + size


def _dense(tensor: Any) -> Any:
    local = getattr(tensor, "to_local", None)  # a DTensor: this rank's part
    tensor = local() if local is not None else tensor
    return tensor.coalesce().values() if tensor.is_sparse else tensor


class ModelTensors:
    """The parameters and buffers of the models that a program calls: how far they have moved."""

    def __init__(self, torch: Any, work: DirectWork) -> None:
        self._torch = torch
        self._work = work
        self._models: dict[int, Any] = {}
        self._count = 0
        self._start = SharedStore()
        self.names: dict[int, str] = {}
        """Names by the id of the tensor."""

    def meet(self, model: Any) -> None:
        """Note where a model's tensors are when it is about to be called for the first time."""
        if id(model) in self._models:
            return
        self._models[id(model)] = model
        prefix = _model_prefix(len(self._models))
        tensors = [(prefix + name, one) for name, one in named(model)]
        tensors = tensors[: max(MAX_TENSORS - self._count, 0)]
        self._count += len(tensors)
        for name, tensor in tensors:
            self.names.setdefault(id(tensor), name)

        def store() -> None:
            self._start.put({name: sampled(self._torch, one) for name, one in tensors})

        self._work.run(store)

    def printed(self) -> tuple[TensorPrint, ...]:
        return self._work.run(lambda: tuple(self._prints()))

    @property
    def models(self) -> tuple[Any, ...]:
        """The models in the order they were met."""
        return tuple(self._models.values())

    def has_moved(self) -> bool:
        """Return whether any parameter has."""
        return self._work.run(self._any_moved)

    def clear(self) -> None:
        self._models.clear()
        self._start.clear()
        self.names.clear()

    def _any_moved(self) -> bool:
        torch, starts = self._torch, self._starts()
        for number, model in enumerate(self._models.values(), 1):
            for name, parameter in named_parameters(model, number):
                start = starts.get(name)
                if start is not None and not torch.equal(sampled(torch, parameter), start):
                    return True
        return False

    def _prints(self) -> Iterator[TensorPrint]:
        starts = self._starts()
        for number, model in enumerate(self._models.values(), 1):
            buffers = {name for name, _ in model.named_buffers()}
            for name, tensor in named(model):
                full_name = _model_prefix(number) + name
                start, buffer = starts.get(full_name), name in buffers
                if start is not None:
                    yield printed(self._torch, full_name, tensor, start, buffer=buffer)

    def _starts(self) -> dict[str, Any]:
        return {name: one for stored in self._start.all() for name, one in stored.items()}
