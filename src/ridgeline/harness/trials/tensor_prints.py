"""Tensors in a few numbers, on the host and in double precision, so that two trials can be laid
side by side."""

import math
from collections.abc import Iterator
from typing import Any

from ridgeline.harness.usercode.forked_work import Here, Shelf
from ridgeline.records.trial import TensorPrint

SAMPLED = 65_536
"""Elements of a tensor kept to see how far it moved: a copy of a whole model may not fit."""
BLOCKS, EACH = 12, 2
"""Numbers a tensor: how far two lie apart is then known to a quarter. Twelve blocks of neighbours
part what is kept as one: queries, keys and values, the four gates of a cell."""
OUTPUTS, DIRECTIONS = 8, 4
GLANCED = 16_384
"""Elements of an output that are sketched where it is: the signs are 0.1 MB beside it."""
PART, PART_DEVICE = 2**20, 2**23
"""Elements: a norm in double precision makes a copy of what it is of. 8 MB on a host."""
FILL = 1e3
"""Masks are of -1e4, -65504, -1e9 or a type's lowest number; see `Answers` for what is none."""
FACTS = 6
"""Numbers: elements not finite, those below FILL, their norm and the largest; of the others that
are finite the least and the largest."""


def norm(torch: Any, tensor: Any) -> float:
    tensor, double = _dense(tensor), torch.float64
    given = tensor if tensor.is_floating_point() else tensor.to(double)
    return float(torch.linalg.vector_norm(given, dtype=double))


def sampled(torch: Any, tensor: Any) -> Any:
    flat = _dense(tensor.detach()).reshape(-1)
    if flat.numel() > SAMPLED:
        flat = flat[:: flat.numel() // SAMPLED]
    return flat.to("cpu", torch.float64, copy=True)


def printed(torch: Any, name: str, tensor: Any, start: Any, *, buffer: bool) -> TensorPrint:
    """`start`: what `sampled` gave of it before the first step."""
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
    """`factor`: what a gradient scaler has made it too large by."""
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


def of_outputs(torch: Any, given: Any) -> tuple[float, ...]:
    """Of each tensor its norm and its projection, in turn, along a few directions."""
    found = []
    for at, tensor in enumerate(floating(torch, given)):
        flat = sampled(torch, tensor)
        size = float(flat.norm())
        for number in range(DIRECTIONS):
            along = _direction(torch, f"output {at}.{number}", flat.numel())
            found += [size, float((flat * along).sum())]
    return tuple(found)


def signs(torch: Any, device: Any) -> Any:
    """For `glanced`: the same for every tensor, so that they are drawn once."""
    generator = torch.Generator("cpu").manual_seed(_seed("signs", GLANCED))
    drawn = torch.randint(0, 2, (GLANCED,), generator=generator, device="cpu") * 2 - 1
    return drawn.to(device, _wide(torch, device))


def glanced(torch: Any, tensor: Any, signs: Any) -> Any:
    """Its norm, then its sketch, where the tensor is: the device is not waited for. Then `FACTS`
    for a mask in it, and the sketch without the mask."""
    flat = _dense(tensor.detach()).reshape(-1)
    # Odd: 16 of rows of 4 would be the first column alone.
    apart = -(-flat.numel() // GLANCED) | 1
    wide = _wide(torch, flat.device)
    some = flat[::apart].to(wide)
    scale = math.sqrt(flat.numel() / max(some.numel(), 1))
    signed = signs[: some.numel()].to(some.device, wide) * scale

    def summed(asked: Any) -> Any:
        values = torch.where(asked, some, 0.0) * signed
        padded = torch.nn.functional.pad(values, (0, -some.numel() % (BLOCKS * EACH)))
        return padded.reshape(BLOCKS, -1, EACH).sum(1).reshape(-1)

    size, *facts = _facts(torch, flat, wide)
    whole, usual = summed(some.isfinite()), summed(some.abs() < FILL)
    return torch.cat([size.reshape(1), whole, torch.stack(facts), usual])


def _facts(torch: Any, flat: Any, wide: Any) -> list[Any]:
    """The norm of what is finite, and `FACTS`. In parts: a wider copy may not fit."""
    none = torch.zeros((), dtype=wide, device=flat.device)
    found = []
    for part in flat.split(PART if flat.device.type == "cpu" else PART_DEVICE):
        values = part.to(wide) if part.numel() else none.reshape(1)
        size, finite = values.abs(), values.isfinite()
        usual = size < FILL
        fill = finite & ~usual
        found.append(
            (
                torch.linalg.vector_norm(torch.where(finite, values, none)),
                (~finite).sum().to(wide),
                usual.sum().to(wide),
                torch.linalg.vector_norm(torch.where(usual, values, none)),
                torch.where(usual, size, none).amax(),
                torch.where(fill, size, math.inf).amin(),
                torch.where(fill, size, none).amax(),
            )
        )
    norms, odd, below, rest, largest, least, most = torch.tensor_split(
        torch.stack([torch.stack(one) for one in found]), FACTS + 1, dim=1
    )
    norm = torch.linalg.vector_norm
    return [norm(norms), odd.sum(), below.sum(), norm(rest), largest.amax(), least.amin(),
            most.amax()]  # fmt: skip


def _wide(torch: Any, device: Any) -> Any:
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def floating(torch: Any, given: Any) -> list[Any]:
    return [one for one in tensors_in(torch, given) if one.is_floating_point()][:OUTPUTS]


def named(module: Any) -> Iterator[tuple[str, Any]]:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not (tensor.is_complex() or tensor.is_meta):
            yield name.replace("_orig_mod.", ""), tensor


def named_parameters(module: Any, number: int) -> Iterator[tuple[str, Any]]:
    """By the names that a trial's record has of the model that was met as so-manieth."""
    for name, tensor in module.named_parameters():
        if not (tensor.is_complex() or tensor.is_meta):
            yield prefix(number) + name.replace("_orig_mod.", ""), tensor


def prefix(number: int) -> str:
    """Of the names of a model's tensors, by when it was met."""
    return f"{number}." if number > 1 else ""


def tensors_in(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, tuple | list):
        for one in value:
            yield from tensors_in(torch, one, depth + 1)
    elif depth < 4 and hasattr(value, "values") and callable(value.values):
        for one in value.values():
            yield from tensors_in(torch, one, depth + 1)


def _sketch(torch: Any, name: str, values: Any, scale: float) -> tuple[float, ...]:
    generator = torch.Generator("cpu").manual_seed(_seed(name, values.numel()))
    signs = torch.randint(0, 2, values.shape, generator=generator, device="cpu") * 2 - 1
    signed = torch.nn.functional.pad(values * signs * scale, (0, -values.numel() % (BLOCKS * EACH)))
    sums = signed.reshape(BLOCKS, -1, EACH).sum(1).reshape(-1)
    return tuple(float(f"{value:.9g}") for value in sums.tolist())


def _direction(torch: Any, name: str, size: int) -> Any:
    generator = torch.Generator("cpu").manual_seed(_seed(name, size))
    return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")


def _seed(name: str, size: int) -> int:
    return sum(name.encode()) * 7919 + size


def _dense(tensor: Any) -> Any:
    local = getattr(tensor, "to_local", None)  # a DTensor: this rank's part
    tensor = local() if local is not None else tensor
    return tensor.coalesce().values() if tensor.is_sparse else tensor


MOST_TENSORS = 2_000


class Tensors:
    """One for the trial."""

    def __init__(self, torch: Any, aside: Here) -> None:
        self._torch = torch
        self._aside = aside
        self._models: dict[int, Any] = {}
        self._known = 0
        self._start = Shelf()
        self.names: dict[int, str] = {}
        """By the tensor's id."""

    def meet(self, model: Any) -> None:
        """It is about to be called, perhaps not for the first time."""
        if id(model) in self._models:
            return
        self._models[id(model)] = model
        start = prefix(len(self._models))
        found = [(start + name, one) for name, one in named(model)]
        found = found[: max(MOST_TENSORS - self._known, 0)]
        self._known += len(found)
        for name, tensor in found:
            self.names.setdefault(id(tensor), name)

        def look() -> None:
            self._start.put({name: sampled(self._torch, one) for name, one in found})

        self._aside.ask(look)

    def printed(self) -> tuple[TensorPrint, ...]:
        return self._aside.ask(lambda: tuple(self._prints()))

    @property
    def models(self) -> tuple[Any, ...]:
        """In the order they were met."""
        return tuple(self._models.values())

    def moved(self) -> bool:
        """Any parameter."""
        return self._aside.ask(self._moved)

    def clear(self) -> None:
        self._models.clear()
        self._start.clear()
        self.names.clear()

    def _moved(self) -> bool:
        torch, began = self._torch, self._began()
        for number, model in enumerate(self._models.values(), 1):
            for name, parameter in named_parameters(model, number):
                start = began.get(name)
                if start is not None and not torch.equal(sampled(torch, parameter), start):
                    return True
        return False

    def _prints(self) -> Iterator[TensorPrint]:
        began = self._began()
        for number, model in enumerate(self._models.values(), 1):
            buffers = {name for name, _ in model.named_buffers()}
            for name, tensor in named(model):
                full = prefix(number) + name
                start, buffer = began.get(full), name in buffers
                if start is not None:
                    yield printed(self._torch, full, tensor, start, buffer=buffer)

    def _began(self) -> dict[str, Any]:
        return {name: one for each in self._start.all() for name, one in each.items()}
