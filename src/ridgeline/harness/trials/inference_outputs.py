"""What the model of a program that does not train returns, step by step: printed as it comes, and
once more two steps later where the program still has it. A graph that runs on old inputs, a cache
that is not renewed, a buffer that the next call writes over are right at the first batch."""

import math
from importlib import import_module
from typing import Any

from ridgeline.fixes.outputs import tensors
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.usercode.forked_work import Here
from ridgeline.records.trial import OutputPrint

MOST = 32
"""Tensors a step: a token of a loop is a call, and a batch may have thousands."""
LATER = 2
"""Steps until it is known what the program keeps: while the next call runs, a loop still has the
last output by its name, and a compiled model may write over it then."""
SAME = 1e-6
"""Of its norm: the same memory read twice by the same kernel."""
GAP, LEVEL = 30.0, 0.99
"""Elements are a mask where they are so many times larger than all others (rounding alone takes
none across), and as large as each other: scores of 20 beside -1e4, and -1e4 with a score added."""
SKETCH = prints.BLOCKS * prints.EACH


class Answers:
    """One for the trial. Numbers stay where they were made until a step ends."""

    def __init__(self, torch: Any, aside: Here | None = None) -> None:
        self._torch = torch
        self._aside = aside or Here()
        self._signs: dict[Any, Any] = {}
        self._new: list[tuple[Any, _Kept]] = []
        self._before: dict[int, list[tuple[OutputPrint, _Kept]]] = {}
        self.changed: dict[int, float] = {}
        """By step: see WatchedStep.outputs_changed."""

    def returned(self, value: Any) -> None:
        torch = self._torch
        if self._captures():
            return  # nothing is computed yet, and what is asked would be captured
        with torch.no_grad():
            asked = self._asked(value)[: MOST - len(self._new)]
            numbers = self._aside.ask(lambda: [self._print(tensor) for tensor in asked])
            self._new += [
                (one, _Kept(torch, tensor)) for one, tensor in zip(numbers, asked, strict=True)
            ]

    def step_ended(self, step: int) -> tuple[OutputPrint, ...]:
        """Of all calls since the last one ended."""
        new, self._new = self._new, []  # also where reading them raises
        if not new or self._captures():
            return ()
        self._wait()
        found = [(_read(numbers.tolist(), kept), kept) for numbers, kept in new]
        if found:
            self._before[step] = found
        return tuple(one for one, _ in found)

    def step_begins(self, step: int) -> None:
        """Its first call is about to begin."""
        due = [old for old in self._before if old <= step - LATER]
        if not due or self._captures():
            return
        self._wait()
        for old in due:
            found = [self._moved(*one) for one in self._before.pop(old)]
            known = [value for value in found if value is not None]
            if known:
                self.changed[old] = max(known)

    def begin_again(self) -> None:
        """What was counted as steps was none."""
        self._before.clear()
        self.changed.clear()

    def forget(self) -> None:
        self._signs.clear()
        self._new.clear()
        self._before.clear()

    def _asked(self, value: Any) -> list[Any]:
        """Integers where there is nothing else: beside logits they are positions, or lengths."""
        every = [
            one
            for one in tensors(self._torch, value)
            if not (one.is_complex() or one.is_meta or one.is_quantized) and one.numel()
        ]
        return ([one for one in every if one.is_floating_point()] or every)[: prints.OUTPUTS]

    def _print(self, tensor: Any) -> Any:
        torch, device = self._torch, tensor.device
        if device not in self._signs:
            self._signs[device] = prints.signs(torch, device)
        return prints.glanced(torch, tensor, self._signs[device])

    def _captures(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _wait(self) -> None:
        """Prints are made on the stream of their call, and read on that of the step's end."""
        for device in self._signs:
            if device.type == "cuda":
                self._torch.cuda.synchronize(device)

    def _moved(self, was: OutputPrint, kept: "_Kept") -> float | None:
        """None: not known; a fault of ours says nothing of the program."""
        try:
            tensor = kept.again()
            if tensor is None:
                return None
            if kept.gone(tensor):
                return math.inf
            with self._torch.no_grad():
                now = _read(self._aside.ask(lambda: self._print(tensor).tolist()), kept)
        except RuntimeError as error:  # torch says of a graph's output that it was overwritten
            return math.inf if "overwritten" in str(error) else None
        except Exception:  # not kept so long, as far as can be told
            return None
        return _apart(was, now)


class _Kept:
    """A tensor, for as long as somebody else holds it or a view of it."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self.numel = tensor.numel()
        self.rows = tensor.shape[0] if tensor.dim() else 0
        self.whole = not tensor.is_floating_point()
        # Not weakref's own: what C++ alone still holds would be read after it is freed.
        self._tensor = import_module("torch.utils.weak").TensorWeakRef(tensor)
        self._storage: Any = None
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            weak = import_module("torch.multiprocessing.reductions").StorageWeakRef
            self._storage = weak(tensor.untyped_storage())
            self._as = (tensor.dtype, tensor.device)
            self._lies = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def again(self) -> Any:
        tensor = self._tensor()
        if tensor is not None or self._storage is None or self._storage.expired():
            return tensor
        torch = self._torch
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            return None
        dtype, device = self._as
        return torch.empty(0, dtype=dtype, device=device).set_(storage, *self._lies)

    def gone(self, tensor: Any) -> bool:
        """Its memory was taken away: reading it would end the program."""
        if self._storage is None:
            return False
        offset, sizes, strides = self._lies
        last = offset + sum((size - 1) * by for size, by in zip(sizes, strides, strict=True))
        has, needs = tensor.untyped_storage().nbytes(), (last + 1) * tensor.element_size()
        return bool(has < needs)


def _read(numbers: list[float], kept: _Kept) -> OutputPrint:
    """Of what `prints.glanced` gives."""
    at = 1 + SKETCH
    odd, usual, size, largest, least, most = numbers[at : at + prints.FACTS]
    fills = usual and largest and GAP * largest <= least and least >= LEVEL * most > 0
    rest = OutputPrint(numel=int(usual), norm=size, sketch=_short(numbers[-SKETCH:]))
    return OutputPrint(
        numel=kept.numel,
        norm=numbers[0],
        sketch=_short(numbers[1:at]),
        whole=kept.whole,
        odd=int(odd),
        rows=kept.rows,
        rest=rest if fills else None,
    )


def _short(sketch: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for value in sketch)


def _apart(was: OutputPrint, now: OutputPrint) -> float:
    if was.odd != now.odd or (was.rest is None) != (now.rest is None):
        return math.inf
    rest = _apart(was.rest, now.rest) if was.rest is not None and now.rest is not None else 0.0
    numbers = [(was.norm, now.norm), *zip(was.sketch, now.sketch, strict=True)]
    if all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in numbers):
        return rest
    sketched = math.hypot(*(a - b for a, b in numbers[1:]))
    far = max(sketched, abs(was.norm - now.norm)) / (was.norm or 1.0)
    return math.inf if not math.isfinite(far) else max(far if far > SAME else 0.0, rest)
