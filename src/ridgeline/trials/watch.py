"""What the first steps of a trial compute, for parity: it waits for the device as it likes, because
those steps are not timed."""

import math
from collections.abc import Iterator
from typing import Any

from ridgeline.capture.batches import amount
from ridgeline.records.trial import TensorPrint, WatchedStep

SAMPLED = 65_536
"""Elements of a tensor kept to see how far it moved: a copy of a whole model may not fit."""
MOST_TENSORS = 2_000


class Watch:
    """One for the trial. `over` from the moment the last watched step has ended."""

    def __init__(self, torch: Any, steps: int) -> None:
        self._torch = torch
        self._steps = steps
        self.over = steps == 0
        self.steps: list[WatchedStep] = []
        self.tensors: tuple[TensorPrint, ...] = ()
        self.evaluation: tuple[float, ...] = ()
        self.problems: list[str] = []
        self.settings: list[str] = []
        self._told: set[int] = set()
        self._roots: dict[int, Any] = {}
        self._start: dict[str, Any] = {}
        self._first: tuple[Any, Any, Any] | None = None
        self._new()

    def _new(self) -> None:
        self._loss: float | None = None
        self._square = 0.0
        self._gradients = 0
        self._applied = True
        self._samples: int | None = None
        self._sum: float | None = None
        self._forwards = self._backwards = 0
        self._rate: float | None = None

    def call(self, module: Any, args: Any, kwargs: Any) -> None:
        """A training call of an outermost module."""
        if self.over or next(module.parameters(), None) is None:
            return
        self._forwards += 1
        if id(module) not in self._roots:
            self._roots[id(module)] = module
            prefix = f"{len(self._roots)}." if len(self._roots) > 1 else ""
            for name, tensor in _named(module):
                if len(self._start) < MOST_TENSORS:
                    self._start[prefix + name] = self._sampled(tensor)
        with self._torch.no_grad():
            if self._first is None:
                self._first = (module, _copied(self._torch, args), _copied(self._torch, kwargs))
            given = (*args, *kwargs.values())
            found = amount(self._torch, given)
            self._samples = (self._samples or 0) + found.samples
            first = _first_tensor(self._torch, given)
            if first is not None:
                total = float(first.detach().double().sum())
                self._sum = total + (self._sum or 0.0)

    def backward(self, tensors: Any) -> None:
        if self.over:
            return
        self._backwards += 1
        first = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
        if isinstance(first, self._torch.Tensor) and first.numel() == 1:
            self._loss = float(first.detach())

    def update(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if self.over:
            return
        torch = self._torch
        with torch.no_grad():
            grads = [p.grad for g in optimizer.param_groups for p in g["params"]]
            have = [grad for grad in grads if grad is not None]
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1 / float(scale) if scale is not None else 1.0
            total = sum(self._norm(grad) ** 2 for grad in have)
            self._square += total * factor * factor
            self._gradients += len(have)
        told = getattr(optimizer, "found_inf", None)
        if told is not None and float(told):
            self._applied = False
        rate = optimizer.param_groups[0].get("lr")
        self._rate = float(rate) if rate is not None else None
        if id(optimizer) not in self._told:
            self._told.add(id(optimizer))
            self.settings += [_told(optimizer, group) for group in optimizer.param_groups]

    def skipped(self) -> None:
        self._applied = False

    def step_ended(self) -> None:
        if self.over:
            return
        self.steps.append(
            WatchedStep(
                loss=self._loss,
                gradient_norm=math.sqrt(self._square) if self._gradients else None,
                gradients=self._gradients,
                applied=self._applied,
                samples=self._samples,
                batch_sum=self._sum,
                forwards=self._forwards,
                backwards=self._backwards,
                learning_rate=self._rate,
            )
        )
        self._new()
        if len(self.steps) >= self._steps:
            self.finish()

    def begin_again(self) -> None:
        """What was counted as steps was none."""
        self.steps.clear()

    def finish(self) -> None:
        """The last watched step has ended, or the program has."""
        if self.over:
            return
        self.over = True
        with self._torch.no_grad():
            self.tensors = tuple(self._prints())
            try:
                self.evaluation = self._evaluated()
            except Exception as error:
                self.problems.append(f"not evaluated: {type(error).__name__}: {error}"[:200])
        self._roots.clear()
        self._start.clear()
        self._first = None

    def _prints(self) -> Iterator[TensorPrint]:
        for number, root in enumerate(self._roots.values(), 1):
            prefix = f"{number}." if number > 1 else ""
            buffers = {name for name, _ in root.named_buffers()}
            for name, tensor in _named(root):
                start = self._start.get(prefix + name)
                if start is None:
                    continue
                now = self._sampled(tensor)
                scale = math.sqrt(tensor.numel() / max(now.numel(), 1))
                same = now.shape == start.shape
                yield TensorPrint(
                    name=prefix + name,
                    norm=self._norm(tensor.detach()),
                    projection=float((now * self._direction(name, now.numel())).sum()),
                    moved=float((now - start).norm()) * scale if same else math.nan,
                    numel=tensor.numel(),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    buffer=name in buffers,
                )

    def _evaluated(self) -> tuple[float, ...]:
        """Of the first root, on its first batch. What compile made is for training: the plain
        call, under whatever else was put on."""
        if self._first is None:
            return ()
        torch = self._torch
        root, args, kwargs = self._first
        modes = [(module, module.training) for module in root.modules()]
        compiled, root._compiled_call_impl = root._compiled_call_impl, None
        cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        try:
            with torch.random.fork_rng(devices=cuda):
                root.eval()
                given = root(*args, **kwargs)
        finally:
            root._compiled_call_impl = compiled
            for module, mode in modes:
                module.training = mode
        found = []
        for at, tensor in enumerate(_tensors(torch, given)):
            if tensor.is_floating_point() and at < 8:
                flat = self._sampled(tensor)
                found += [
                    float(flat.norm()),
                    float((flat * self._direction(f"output {at}", flat.numel())).sum()),
                ]
        return tuple(found)

    def _norm(self, tensor: Any) -> float:
        tensor, double = _dense(tensor), self._torch.float64
        given = tensor if tensor.is_floating_point() else tensor.to(double)
        return float(self._torch.linalg.vector_norm(given, dtype=double))

    def _sampled(self, tensor: Any) -> Any:
        """In double precision, on the host."""
        flat = _dense(tensor.detach()).reshape(-1)
        if flat.numel() > SAMPLED:
            flat = flat[:: flat.numel() // SAMPLED]
        return flat.to("cpu", self._torch.float64, copy=True)

    def _direction(self, name: str, size: int) -> Any:
        generator = self._torch.Generator().manual_seed(sum(name.encode()) * 7919 + size)
        return self._torch.randn(size, generator=generator, dtype=self._torch.float64)


def _told(optimizer: Any, group: dict[str, Any]) -> str:
    """What alters results; not which path computes them."""
    paths = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
    said = [f"{key}={group[key]}" for key in sorted(group) if key not in paths]
    return f"{type(optimizer).__name__}, {len(group['params'])} parameters: {', '.join(said)}"


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not (tensor.is_complex() or tensor.is_meta):
            yield name.replace("_orig_mod.", ""), tensor


def _dense(tensor: Any) -> Any:
    local = getattr(tensor, "to_local", None)  # a DTensor: this rank's part
    tensor = local() if local is not None else tensor
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(torch, one, depth + 1)
    elif depth < 4 and hasattr(value, "values"):
        for one in value.values():
            yield from _tensors(torch, one, depth + 1)


def _first_tensor(torch: Any, given: Any) -> Any:
    return next((t for t in _tensors(torch, given) if t.dim() > 0 and not t.is_complex()), None)


def _copied(torch: Any, value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if depth < 4 and type(value) in (tuple, list):
        return type(value)(_copied(torch, one, depth + 1) for one in value)
    if depth < 4 and type(value) is dict:
        return {key: _copied(torch, one, depth + 1) for key, one in value.items()}
    return value
