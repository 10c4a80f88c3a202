"""Notes what the model of a program that does not train returns, step by step. Each output is
printed as it comes, and once more two steps later if the program still has it: a graph that runs on
old inputs, a cache that is not renewed, or a buffer that the next call writes over is right at the
first batch."""

import math
from importlib import import_module
from typing import Any

from ridgeline.fixes.model_forward import tensors_in
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.usercode.forked_work import DirectWork
from ridgeline.records.trial import OutputPrint, Predicted

MAX_TENSORS_PER_STEP = 32
"""A loop over tokens makes a call for each token, and a batch may have thousands."""
MAX_PREDICTED_CALLS, MAX_PREDICTED_ROWS, LIKELIEST_TOKENS = 256, 16, 4
"""Calls of a step, rows of a call and tokens of a row whose logits are noted. By rounding the first
of the likeliest tokens changes places with the second, rarely with another."""
_TOKENS = ("decoder_input_ids", "input_ids")
"""Names by which the models of transformers are given tokens."""
REREAD_AFTER_STEPS = 2
"""Steps until it is known what the program keeps: while the next call runs, a loop still has the
last output by its name, and a compiled model may write over it then."""
MIN_RELATIVE_CHANGE = 1e-6
"""A smaller part of the norm is rounding: the same memory read twice by the same kernel."""
MASK_GAP, MASK_LEVEL = 30.0, 0.99
"""Elements are a mask if they are so many times larger than all others (rounding alone takes none
across), and as large as each other to this share: scores of 20 beside -1e4, and -1e4 with a score
added."""
SKETCH_SIZE = prints.BLOCKS * prints.NUMBERS_PER_BLOCK


def given_tokens(torch: Any, args: Any, kwargs: Any) -> Any:
    """Return the tokens that a call is given: whole numbers, a row for each text. Return None if it
    is given none."""
    named = [kwargs[name] for name in _TOKENS if kwargs.get(name) is not None]
    found = (*named, *args)[0] if named or args else None
    if not isinstance(found, torch.Tensor) or found.dim() != 2 or not found.numel():
        return None
    return found if found.dtype in (torch.int64, torch.int32) else None


class OutputWatch:
    """Prints the outputs of every step. The numbers stay on the device until the step ends."""

    def __init__(self, torch: Any, work: DirectWork | None = None) -> None:
        self._torch = torch
        self._work = work or DirectWork()
        self._signs: dict[Any, Any] = {}
        self._new: list[tuple[Any, _OutputRef]] = []
        self._before: dict[int, list[tuple[OutputPrint, _OutputRef]]] = {}
        self._given: Any = None
        """The tokens that the call in progress was given, if it was given tokens."""
        self._predictions: list[tuple[Any, Any, Any]] = []
        """On the device: the last tokens given, the likeliest next tokens and their logits."""
        self.changed: dict[int, float] = {}
        """The change of the outputs by step: see WatchedStep.outputs_changed."""

    def called(self, args: Any, kwargs: Any) -> None:
        self._given = given_tokens(self._torch, args, kwargs)

    def returned(self, value: Any) -> None:
        torch = self._torch
        if self._captures():
            return  # nothing is computed yet, and what we computed would be captured
        with torch.no_grad():
            self._note_prediction(value)
            printed = self._printed_tensors(value)[: MAX_TENSORS_PER_STEP - len(self._new)]
            numbers = self._work.run(lambda: [self._print(tensor) for tensor in printed])
            self._new += [
                (one, _OutputRef(torch, tensor))
                for one, tensor in zip(numbers, printed, strict=True)
            ]

    def step_ended(self, step: int) -> tuple[OutputPrint, ...]:
        """Return the prints of all calls since the last step ended."""
        new, self._new = self._new, []  # also if reading them raises
        if not new or self._captures():
            return ()
        self._wait()
        outputs = [(_output_print(numbers.tolist(), ref), ref) for numbers, ref in new]
        self._before[step] = outputs
        return tuple(one for one, _ in outputs)

    def predicted(self) -> tuple[Predicted, ...]:
        """Return what the calls since the last step ended predict, for each row."""
        noted, self._predictions = self._predictions, []
        if self._captures():
            return ()
        return tuple(
            Predicted(
                given=tuple(given.tolist()),
                tokens=tuple(map(tuple, tokens.tolist())),
                logits=tuple(map(tuple, logits.tolist())),
            )
            for given, tokens, logits in noted
        )

    def _note_prediction(self, value: Any) -> None:
        """Note the likeliest next tokens if the model was given tokens and returns a number for
        each token of a vocabulary."""
        given, self._given = self._given, None
        if given is None or len(self._predictions) >= MAX_PREDICTED_CALLS:
            return
        logits = next(
            (one for one in tensors_in(self._torch, value) if one.is_floating_point()), None
        )
        if logits is None or logits.dim() not in (2, 3) or len(logits) != len(given):
            return
        last = (logits[:, -1] if logits.dim() == 3 else logits)[:MAX_PREDICTED_ROWS]
        if last.shape[-1] > LIKELIEST_TOKENS:
            most, tokens = last.detach().float().topk(LIKELIEST_TOKENS)
            self._predictions.append((given[:MAX_PREDICTED_ROWS, -1].clone(), tokens, most))

    def step_begins(self, step: int) -> None:
        """Print again, before the first call of a step, the outputs of an earlier one."""
        due = [old for old in self._before if old <= step - REREAD_AFTER_STEPS]
        if not due or self._captures():
            return
        self._wait()
        for old in due:
            changes = [self._change_since(*one) for one in self._before.pop(old)]
            known = [value for value in changes if value is not None]
            if known:
                self.changed[old] = max(known)

    def begin_again(self) -> None:
        """Forget what was counted as steps and was none."""
        self._before.clear()
        self._predictions.clear()
        self.changed.clear()

    def forget(self) -> None:
        self._signs.clear()
        self._new.clear()
        self._predictions.clear()
        self._before.clear()

    def _printed_tensors(self, value: Any) -> list[Any]:
        """Return the outputs that are printed: integers only if there is nothing else, since
        integers beside logits are positions or lengths."""
        every = [
            one
            for one in tensors_in(self._torch, value)
            if not (one.is_complex() or one.is_meta or one.is_quantized) and one.numel()
        ]
        return ([one for one in every if one.is_floating_point()] or every)[: prints.MAX_OUTPUTS]

    def _print(self, tensor: Any) -> Any:
        torch, device = self._torch, tensor.device
        if device not in self._signs:
            self._signs[device] = prints.signs(torch, device)
        return prints.glanced(torch, tensor, self._signs[device])

    def _captures(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _wait(self) -> None:
        """Wait for the device: prints are made on the stream of their call, and read on another."""
        for device in self._signs:
            if device.type == "cuda":
                self._torch.cuda.synchronize(device)

    def _change_since(self, was: OutputPrint, ref: "_OutputRef") -> float | None:
        """Return how far an output lies from its print; None if that is not known."""
        try:
            tensor = ref.tensor()
            if tensor is None:
                return None
            if ref.is_freed(tensor):
                return math.inf
            with self._torch.no_grad():
                numbers = self._work.run(lambda: self._print(tensor).tolist())
        except RuntimeError as error:  # torch raises so for a graph's output that was overwritten
            return math.inf if "overwritten" in str(error) else None
        except Exception:  # a fault of ours says nothing of the program
            return None
        return _distance(was, _output_print(numbers, ref))


class _OutputRef:
    """A reference to a tensor that lasts as long as somebody else holds it or a view of it."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self.numel = tensor.numel()
        self.rows = tensor.shape[0] if tensor.dim() else 0
        self.whole = not tensor.is_floating_point()
        # Python's own weakref would read what C++ alone still holds after it is freed.
        self._tensor = import_module("torch.utils.weak").TensorWeakRef(tensor)
        self._storage: Any = None
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            weak = import_module("torch.multiprocessing.reductions").StorageWeakRef
            self._storage = weak(tensor.untyped_storage())
            self._kind = (tensor.dtype, tensor.device)
            self._layout = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self) -> Any:
        tensor = self._tensor()
        if tensor is not None or self._storage is None or self._storage.expired():
            return tensor
        torch = self._torch
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            return None
        dtype, device = self._kind
        return torch.empty(0, dtype=dtype, device=device).set_(storage, *self._layout)

    def is_freed(self, tensor: Any) -> bool:
        """Return whether its memory was taken away: reading it would end the program."""
        if self._storage is None:
            return False
        offset, sizes, strides = self._layout
        last = offset + sum((size - 1) * by for size, by in zip(sizes, strides, strict=True))
        has, needs = tensor.untyped_storage().nbytes(), (last + 1) * tensor.element_size()
        return bool(has < needs)


def _output_print(numbers: list[float], ref: _OutputRef) -> OutputPrint:
    """Return the print made of the numbers that `prints.glanced` gives."""
    facts = 1 + SKETCH_SIZE
    odd, usual, norm, largest, mask_min, mask_max = numbers[facts : facts + prints.MASK_FACTS]
    apart = MASK_GAP * largest <= mask_min
    masked = usual and largest and apart and mask_min >= MASK_LEVEL * mask_max > 0
    rest = OutputPrint(numel=int(usual), norm=norm, sketch=prints.shortened(numbers[-SKETCH_SIZE:]))
    return OutputPrint(
        numel=ref.numel,
        norm=numbers[0],
        sketch=prints.shortened(numbers[1:facts]),
        whole=ref.whole,
        odd=int(odd),
        rows=ref.rows,
        rest=rest if masked else None,
    )


def _distance(was: OutputPrint, now: OutputPrint) -> float:
    """Return how far two prints lie apart, as a part of the norm."""
    if was.odd != now.odd or (was.rest is None) != (now.rest is None):
        return math.inf
    rest = _distance(was.rest, now.rest) if was.rest is not None and now.rest is not None else 0.0
    numbers = [(was.norm, now.norm), *zip(was.sketch, now.sketch, strict=True)]
    if all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in numbers):
        return rest
    sketched = math.hypot(*(a - b for a, b in numbers[1:]))
    distance = max(sketched, abs(was.norm - now.norm)) / (was.norm or 1.0)
    if not math.isfinite(distance):
        return math.inf
    return max(distance if distance > MIN_RELATIVE_CHANGE else 0.0, rest)
