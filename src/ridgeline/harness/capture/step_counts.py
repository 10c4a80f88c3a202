"""The counts of a step: its calls of modules, its samples and tokens, its loss.

Calls without gradients or in eval mode are kept apart (`quiet`). In a program that trains they are
evaluation; in a program that never trains they are its work; which of the two it is shows only
later. Of the other calls, those count that a backward goes through.

The size of a batch comes from its own attributes, else from its shapes. A batch of graphs is one
large graph: its tensors have as many rows as there are nodes or edges, and only the batch itself
knows how many graphs it was made of. If the number of samples is not known, it stays unknown: a
wrong rate is worse than none.
"""

import math
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.harness.capture.step_times import folded, named_phases
from ridgeline.records.run import Step, StepMemory, StepWindow

_MAX_DEPTH = 4
_MAX_CHILDREN = 32
_COUNT_ATTRIBUTES = ("num_graphs", "batch_size")
"""Attributes in which batches of graphs keep their number of samples."""
_SCALAR_TYPES = (str, bytes, int, float, bool, complex, type(None))


class Amount(NamedTuple):
    samples: int = 0
    tokens: int = 0


NOTHING = Amount()


def batch_amount(torch: Any, batch: Any, expected: int | None = None) -> Amount:
    """Return the samples and tokens of a batch. They are read from its first tensor with a first
    dimension: in a tuple the inputs come first, and in a mapping `input_ids` is preferred, the name
    that tokenizers use. `expected` is the loader's batch size, if it is known."""
    with torch._C.DisableTorchFunction():  # the program's own tensor classes must not notice
        stated = _stated_samples(torch, batch, _COUNT_ATTRIBUTES, 0)
        if stated:
            return Amount(stated)
        tensors = list(_tensors(torch, batch, 0))
        if not tensors:
            return NOTHING
        first = tensors[0]
        shape = first.shape
        if not all(type(size) is int for size in shape):  # symbols: the program is being traced
            return NOTHING
        rows = _sample_count(torch, tensors, expected)
        if not rows or (len(shape) == 1 and first.is_floating_point()):
            # The length of one long vector of floats is not a number of samples.
            return Amount(rows) if rows and rows != shape[0] else NOTHING
        text = len(shape) == 2 and not (first.is_floating_point() or first.is_complex())
        return Amount(rows, int(shape[0]) * int(shape[1]) if text and rows == shape[0] else 0)


def _sample_count(torch: Any, tensors: list[Any], expected: int | None) -> int:
    """Return the number of samples; 0 if it is not known. It is the number of rows of the first
    tensor, unless these are nodes of graphs, or parts of samples that were put end to end. Then the
    loader's batch size counts. A batch size of one says nothing, because the one sample may be a
    batch already."""
    rows = int(tensors[0].shape[0])
    whole = expected is None or expected <= 1 or rows <= expected
    if not whole and expected is not None:
        others = any(tensor.shape[0] == expected for tensor in tensors[1:])
        return expected if others or rows % expected else rows
    edges = rows > 2 and any(_is_edge_list(torch, tensor) for tensor in tensors[1:])
    return _graph_count(torch, tensors) if edges and rows != expected else rows


def _is_edge_list(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor holds pairs of nodes, int64[2, edges]. It could also be a batch of
    two texts, but not beside a tensor of more than two rows."""
    return tensor.dim() == 2 and tensor.shape[0] == 2 and tensor.dtype is torch.int64


def _graph_count(torch: Any, tensors: list[Any]) -> int:
    """Return the number of graphs whose nodes are the rows of the first tensor. It is read from the
    vector that gives each node the number of its graph. Return 0 if there is no such vector, or if
    the program would notice the reading: by a wait for a device, or by a dispatch mode of its own.
    """
    nodes = tensors[0].shape[0]
    if torch._C._len_torch_dispatch_stack():
        return 0
    for tensor in tensors[1:]:
        if tensor.dim() == 1 and tensor.shape[0] == nodes and tensor.dtype is torch.int64:
            return int(tensor[-1]) + 1 if tensor.is_cpu and nodes else 0
    return 0


def _stated_samples(torch: Any, value: Any, names: tuple[str, ...], depth: int) -> int:
    """Return the number of samples in an attribute of the batch, or of the first of its parts that
    has such an attribute; 0 if there is none. After a tensor only `num_graphs` counts, because any
    object may have a `batch_size` of its own."""
    if isinstance(value, (torch.Tensor, *_SCALAR_TYPES)) or depth >= _MAX_DEPTH:
        return 0
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return int(value.batch_sizes[0]) if len(value.batch_sizes) else 0
    if isinstance(value, tuple | list | Mapping):
        for child in _children(value):
            stated = _stated_samples(torch, child, names, depth + 1)
            if stated:
                return stated
            if isinstance(child, torch.Tensor):
                names = ("num_graphs",)
        return 0
    for name in names:
        try:
            count = getattr(value, name, None)
        except Exception:  # an attribute of the program's own that raises
            continue
        if type(count) is int and count > 0:
            return count
    return 0


def _tensors(torch: Any, value: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors of a batch that have a first dimension, in their order."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            yield value
    elif depth < _MAX_DEPTH and isinstance(value, tuple | list | Mapping):
        for child in _children(value):
            yield from _tensors(torch, child, depth + 1)


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        named = value.get("input_ids")
        return [named] if named is not None else list(value.values())[:_MAX_CHILDREN]
    return list(value[:_MAX_CHILDREN])


MAX_WAITING_CALLS = 64
"""More calls than this without a backward are not probes."""


class Call(Struct):
    """A call of an outermost module that no backward has gone through yet."""

    root: int
    given: Amount
    """Size of the module's inputs; only counted if there is no loader."""
    batch: Amount
    """Size of the batches that loaders handed out since the previous call."""
    fetched: int
    """Number of the step's batches up to this call, its own included."""
    first: int
    """Number of the first autograd node that the call made; `end` is one more than the last. A call
    without nodes is never taken for a probe."""
    end: int = 0

    @property
    def samples(self) -> int:
        return max(self.given.samples, self.batch.samples)


class Calls(Struct):
    """The calls of outermost modules in a step, and the amount of data that they were given.

    A probe is a call whose result no backward uses, such as a first call to find out shapes. Its
    batch does not count."""

    forwards: int = 0
    batches: Amount = NOTHING
    """Size of the counted batches from loaders."""
    given: dict[int, Amount] = {}
    """Size of the inputs by module; only counted if there is no loader."""
    waiting: list[Call] = []
    """Calls that no backward has gone through: the last ones, or probes."""
    running: Call | None = None
    had_backward: bool = False
    """Whether the step has had a backward. Calls that still wait at its end are then not
    counted."""
    fetched: int = 0

    def batch(self, more: Amount) -> None:
        self.batches = _total(self.batches, more)

    def give(self, root: int, more: Amount) -> None:
        self.given[root] = _total(self.given.get(root, NOTHING), more)

    def begins(self, root: int, given: Amount, batch: Amount, first: int) -> None:
        """Note that a call begins; `first` is the number of the next autograd node."""
        self.fetched += bool(batch.samples)
        self.running = Call(root, given, batch, self.fetched, first, first)
        self.waiting.append(self.running)
        if (
            len(self.waiting) > MAX_WAITING_CALLS
        ):  # a cell called once a token, a policy once a move
            self._settle([True] * len(self.waiting))

    def ends(self, end: int) -> None:
        if self.running is not None:
            self.running.end, self.running = end, None

    def backward(self, find_reached: Callable[[list[Call]], list[bool]]) -> None:
        """Count the calls that a backward goes through. `find_reached` tells which calls these
        are."""
        self.had_backward = True
        if len(self.waiting) <= 1:  # nearly always: 6 µs a step less
            for call in self.waiting:
                self._take(call)
            self.waiting = []
            return
        reached = find_reached(self.waiting)
        # If no call is reached, the graph does not show how the loss was computed.
        nothing = not (any(reached) or self.given or self.batches.samples)
        self._settle([True] * len(reached) if nothing else reached)

    def _settle(self, reached: list[bool]) -> None:
        """Count the batches and inputs of the calls that were reached. A batch counts with any call
        that came after it, and a call without nodes may have prepared the batch for another."""
        counts = {call.fetched for call, hit in zip(self.waiting, reached, strict=True) if hit}
        working = {call.fetched for call in self.waiting if call.end > call.first}
        for call, hit in zip(self.waiting, reached, strict=True):
            if call.fetched in counts or call.fetched not in working:
                self.batch(call.batch)
                call.batch = NOTHING
            if (hit or call.end <= call.first) and call.given.samples:
                self.give(call.root, call.given)
                call.given = NOTHING
        uncounted = {call.fetched for call in self.waiting if call.batch.samples}
        self.waiting = [c for c in self.waiting if c.given.samples or c.fetched in uncounted]

    def _take(self, call: Call) -> None:
        if call.batch.samples:
            self.batch(call.batch)
        if call.given.samples:
            self.give(call.root, call.given)

    def absorb(self, other: "Calls") -> None:
        """Add the calls of `other`, which came before. Its batches keep the lower numbers. The
        calls are copied, because the single step that is kept beside the joined one has them
        too."""
        if other.fetched:
            self.waiting = [replace(c, fetched=c.fetched + other.fetched) for c in self.waiting]
            self.fetched += other.fetched
        self.forwards += other.forwards
        self.batch(other.batches)
        for root, amount in other.given.items():
            self.give(root, amount)
        if other.had_backward:
            self.waiting = [*other.waiting, *self.waiting]
        else:  # this step's backward may have gone through the calls of `other`
            for call in other.waiting:
                self._take(call)
        self.had_backward = self.had_backward or other.had_backward

    @property
    def amount(self) -> Amount:
        """Samples and tokens of the step. Without a loader it is the smallest amount of any module:
        a critic may be called three times for a batch for which the generator is called once."""
        batches, given = self.batches, dict(self.given)
        for call in () if self.had_backward else self.waiting:
            batches = _total(batches, call.batch)
            given[call.root] = _total(given.get(call.root, NOTHING), call.given)
        if batches.samples:
            return batches
        amounts = [amount for amount in given.values() if amount.samples]
        return min(amounts, key=lambda a: a.samples, default=NOTHING)


def _total(first: Amount, second: Amount) -> Amount:
    return Amount(first.samples + second.samples, first.tokens + second.tokens)


class Counts(Struct):
    """Everything that was counted in a step."""

    trained: Calls
    quiet: Calls
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    overflow: Any = None
    """A ticket of `Losses` for the infinities that the scaler found, if the optimizer itself skips
    the step because of them."""
    loss: Any = None
    """A ticket of `Losses` for the loss of the last backward."""
    loss_divisor: float = 1.0
    """The number that this loss was divided by just before its backward."""
    regions: dict[str, int] = {}

    @staticmethod
    def new() -> "Counts":
        return Counts(Calls(), Calls())

    def work(self, trains: bool) -> Calls:
        """Return the calls that are the work of the step, and no evaluation."""
        if trains:
            return self.trained
        both = Calls()
        both.absorb(self.trained)
        both.absorb(self.quiet)
        both.had_backward = False
        return both

    @property
    def loss_factor(self) -> float:
        """The factor that turns the loss into that of a batch. If the loss was divided by the
        number of backwards, as in gradient accumulation, the factor undoes that; else it is 1."""
        accumulated = self.backwards > 1 and math.isclose(
            self.loss_divisor, self.backwards, rel_tol=1e-6
        )
        return self.loss_divisor if accumulated else 1.0

    def count_quiet_as_training(self) -> None:
        """Count the calls that did not look like training as training."""
        self.trained.absorb(self.quiet)
        self.quiet = Calls()

    def absorb(self, before: "Counts") -> None:
        """Add the counts of `before`, which turned out to be a part of this step."""
        self.trained.absorb(before.trained)
        self.quiet.absorb(before.quiet)
        self.backwards += before.backwards
        self.optimizer_steps += before.optimizer_steps
        self.skipped = self.skipped or before.skipped
        if self.overflow is None:
            self.overflow = before.overflow
        if self.loss is None:
            self.loss, self.loss_divisor = before.loss, before.loss_divisor
        for name, ns in before.regions.items():
            self.regions[name] = self.regions.get(name, 0) + ns


MAX_GRAPH_NODES = 20_000
"""Number of autograd nodes that are visited at most: 20 ms. A ResNet-50 has 500 nodes."""
MAX_GRAPH_WALKS = 64
"""Number of graphs that are visited at most: two for each of 32 kinds of steps."""


class NumberedCall(Protocol):
    """A call that made the autograd nodes with numbers from `first` to `end` - 1."""

    root: int
    first: int
    end: int

    @property
    def samples(self) -> int: ...


class BackwardReach:
    """Finds out which calls a backward goes through, by visiting the autograd graph. The answer is
    remembered for steps with the same calls."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._walks = 0
        self._known: dict[tuple[tuple[int, int], ...], list[bool]] = {}
        self._sure: set[tuple[tuple[int, int], ...]] = set()
        """Kinds of steps for which two visits in a row gave the same answer."""
        self._alike: dict[tuple[int, ...], list[bool]] = {}
        """Answers by modules alone, used after `MAX_GRAPH_WALKS` visits."""
        self.next_node: Callable[[], int] = getattr(
            torch._C._autograd, "_get_sequence_nr", lambda: 0
        )
        """Returns the number of the next node. In a torch without this function no call has
        nodes."""

    def reached_calls(self, tensors: Any, calls: Sequence[NumberedCall]) -> list[bool]:
        """Return for each call, in the order of the calls, whether a backward that begins at
        `tensors` goes through it."""
        if sum(call.end > call.first for call in calls) < 2:
            return [True] * len(calls)
        exact = tuple((call.root, call.samples) for call in calls)
        modules = tuple(call.root for call in calls)
        known = self._known.get(exact)
        if known is not None and exact in self._sure:
            return known
        if self._walks >= MAX_GRAPH_WALKS:
            return known or self._alike.get(modules) or [True] * len(calls)
        self._walks += 1
        walked = self._known[exact] = self._alike[modules] = self._walk(tensors, calls)
        if walked == known:
            self._sure.add(exact)
        return walked

    def _walk(self, tensors: Any, calls: Sequence[NumberedCall]) -> list[bool]:
        """Visit the graph. If it is too large or not as expected, all calls count as reached."""
        try:
            with self._torch._C.DisableTorchFunction():
                several = isinstance(tensors, tuple | list)
                roots = [tensor.grad_fn for tensor in (tensors if several else (tensors,))]
                return _reached(roots, calls)
        except Exception:  # an unusual graph: no call is known not to be reached
            return [True] * len(calls)


def _reached(roots: Sequence[Any], calls: Sequence[NumberedCall]) -> list[bool]:
    starts = [call.first for call in calls]
    if any(start > following for start, following in pairwise(starts)):
        return [True] * len(calls)  # several threads made the calls, each with numbers of its own
    reached = [call.end <= call.first for call in calls]
    left, seen = [node for node in roots if node is not None], dict[int, Any]()
    while left and not all(reached):
        node = left.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # kept alive, so that its id is not reused
        if len(seen) > MAX_GRAPH_NODES:
            return [True] * len(calls)
        number = node._sequence_nr()
        index = bisect_right(starts, number) - 1
        if index >= 0 and number < calls[index].end:
            reached[index] = True
        left += [parent for parent, _ in node.next_functions if parent is not None]
    return reached


_LOSS_SLOTS = 512
_UNKNOWN = object()
_NOT_SCALED: tuple[Any, Any, float] = (None, None, 1.0)


class Losses:
    """Reads losses without making the host wait for a device: `note` returns a ticket, which `read`
    turns into a number once the device is past the step."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._slots: Any = None
        self._next = 0
        self._scaled: tuple[Any, Any, float] = _NOT_SCALED
        """The last loss that a gradient scaler multiplied: a weak reference to the product, a
        ticket for the loss before scaling, and the number that this loss was divided by."""

    def before_scaling(self, outputs: Any, ticket: Any) -> None:
        self._scaled = (None, ticket, self.divisor(outputs))

    def scaled(self, product: Any) -> None:
        if type(product) is self._torch.Tensor:
            self._scaled = (weakref.ref(product), *self._scaled[1:])

    def of_backward(self, tensors: Any, note: Callable[[Any], Any]) -> tuple[Any, float]:
        """Return a ticket for the loss that a backward begins with, as it was before a scaler
        multiplied it, and the number that it was divided by."""
        (product, ticket, divisor), self._scaled = self._scaled, _NOT_SCALED
        if product is not None and product() is _first(tensors):
            return ticket, divisor
        return note(tensors), self.divisor(tensors)

    def note(self, tensors: Any) -> Any:
        """Return a ticket for `read`; None if the loss is not a single number."""
        first = _first(tensors)
        torch = self._torch
        if type(first) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
            return (
                None  # a tensor class or a dispatch mode of the program's own, which would notice
            )
        if first.is_cpu and not torch._C._len_torch_function_stack():
            return first.item() if first.numel() == 1 and not first.is_complex() else None
        with torch._C.DisableTorchFunction():
            return self._note(first)

    def divisor(self, tensors: Any) -> float:
        """Return the number that the loss was divided by in its last operation; 1.0 if it was not.
        Programs that accumulate gradients over several batches divide in this way."""
        torch = self._torch
        first = _first(tensors)
        node = getattr(first, "grad_fn", None) if type(first) is torch.Tensor else None
        kind = type(node).__name__
        if kind not in ("DivBackward0", "MulBackward0"):
            return 1.0
        try:
            with torch._C.DisableTorchFunction():
                kept = node._raw_saved_other  # type: ignore[union-attr]
                if getattr(kept, "unpack_hook", _UNKNOWN) is not None:
                    return 1.0  # reading it would call a function of the program's own
                other = node._saved_other  # type: ignore[union-attr]
                if other is None or not other.is_cpu or other.numel() != 1 or other.requires_grad:
                    return 1.0
                value = float(other)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return 1.0
        return value if kind == "DivBackward0" else 1.0 / value if value else 1.0

    def _note(self, first: Any) -> Any:
        torch = self._torch
        if first.numel() != 1:
            return None
        loss = first.detach()
        if loss.device.type == "cpu":
            return float(loss) if not loss.is_complex() else None
        if loss.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        if self._slots is None:
            self._slots = torch.zeros(
                _LOSS_SLOTS, dtype=torch.float32, device="cpu", pin_memory=True
            )
        slot = self._next % _LOSS_SLOTS
        self._next += 1
        self._slots[slot].copy_(loss.reshape(()), non_blocking=True)
        return (slot, self._next)

    def read(self, ticket: Any) -> tuple[float | None, str]:
        """Return the loss and "", or None and the text nan, inf or -inf. Call this when the device
        is past the step."""
        value = self._value(ticket)
        if value is None or math.isfinite(value):
            return value, ""
        return None, str(value)

    def _value(self, ticket: Any) -> float | None:
        if ticket is None:
            return None
        if isinstance(ticket, tuple):
            slot, number = ticket
            if self._next - number >= _LOSS_SLOTS:
                return None  # the slot was overwritten
            ticket = float(self._slots[slot])
        return float(ticket)


def _first(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, tuple | list) and len(tensors) else tensors


class Draft(Struct):
    """A finished step whose loss and device time may not be known yet."""

    index: int
    start_ns: int
    dur_ns: int
    spent: list[int]
    window: StepWindow
    counts: Counts
    trains: bool
    compile_ns: int = 0
    memory: StepMemory | None = None
    device_ns: int | None = None
    device: dict[int, int] = {}
    detailed: bool = True

    def absorb(self, before: "Draft") -> None:
        """Add `before`, which turned out to be a part of this step."""
        self.start_ns = before.start_ns
        self.dur_ns += before.dur_ns
        self.spent = [a + b for a, b in zip(self.spent, before.spent, strict=True)]
        self.compile_ns += before.compile_ns
        self.counts.absorb(before.counts)

    def step(self, losses: Losses) -> Step:
        counts = self.counts
        work = counts.work(self.trains)
        given = work.amount
        loss, broke = losses.read(counts.loss)
        overflow, _ = losses.read(counts.overflow)
        return Step(
            index=self.index,
            start_ns=self.start_ns,
            dur_ns=self.dur_ns,
            window=self.window,
            host=folded(self.spent, self.trains) if self.detailed else {},
            device_ns=self.device_ns,
            device=named_phases(self.device),
            loss=loss * counts.loss_factor if loss is not None else None,
            loss_broke=broke,
            samples=given.samples,
            tokens=given.tokens,
            forwards=work.forwards,
            backwards=counts.backwards,
            optimizer_steps=counts.optimizer_steps,
            skipped=counts.skipped or bool(overflow),
            compile_ns=self.compile_ns,
            memory=self.memory,
            detailed=self.detailed,
            regions=counts.regions,
        )


class Drafts:
    """Finished steps, oldest first, that wait until everything about them is known."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._waiting: deque[Draft] = deque()
        self.whole: Draft | None = None
        """All steps so far joined into one, as long as they may turn out to be a single step."""

    def add(self, draft: Draft, uncertain: bool) -> None:
        """Add a finished step. `uncertain` says that all steps so far may still turn out to be a
        single step."""
        if uncertain:
            whole = Draft(
                draft.index, draft.start_ns, draft.dur_ns, draft.spent, draft.window,
                Counts.new(), draft.trains, draft.compile_ns,
            )  # fmt: skip
            whole.counts.absorb(draft.counts)
            if self.whole is not None:
                whole.absorb(self.whole)
            self.whole = whole
        else:
            self.whole = None
        self._waiting.append(draft)

    def merged(self, draft: Draft) -> Draft:
        """Return `draft` joined with all steps before it, as the first step."""
        if self.whole is not None:
            draft.absorb(self.whole)
        return draft

    def again(self) -> None:
        self._waiting.clear()
        self.whole = None

    def timed(self, index: int, total_ns: int, phases: dict[int, int]) -> None:
        for draft in self._waiting:
            if draft.index == index:
                draft.device_ns, draft.device = total_ns, phases
                return

    def rest(self) -> list[Step]:
        """Return all steps that wait, some perhaps without their device time."""
        done = [draft.step(self._losses) for draft in self._waiting]
        self._waiting.clear()
        return done

    def until(self, index: int) -> list[Step]:
        """Return the steps up to `index`, which the device has completed."""
        done = []
        while self._waiting and self._waiting[0].index <= index:
            done.append(self._waiting.popleft().step(self._losses))
        return done
