"""One counted pass of a model, on real, fake or meta tensors, after which the model is as before.

A model may write to its attributes during a pass: rotary angles, a cache, a running state. They are
restored afterwards (`Snapshot`, `preserved`); otherwise the model would go on with tensors without
data. Fake and meta tensors take the place of parameters and buffers during the pass (`StandIns`).
"""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.counter import CostMode, ModuleTracker, has_no_data
from ridgeline.cost.counting.ledger import CUDA_BLOCK_BYTES, StorageLedger
from ridgeline.cost.counting.operands import (
    is_distributed,
    map_tensors,
    nested_tensors,
    reachable_tensors,
    storage_key,
)
from ridgeline.cost.counting.parameters import packed_weights
from ridgeline.errors import DataDependentError
from ridgeline.records.cost import Backend

MAX_SNAPSHOT_DEPTH = 3


class Snapshot:
    """The attributes of every module, and the contents of containers and plain objects in them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # has its attributes in C++
                self._keep_attributes(module, 0)

    def restore(self) -> None:
        for owner, attributes in self._owners:
            owner.__dict__.clear()
            owner.__dict__.update(attributes)
        for container, contents in self._containers:
            if isinstance(container, list):
                container[:] = contents
            else:
                container.clear()
                container.update(contents)

    def _keep_attributes(self, owner: Any, depth: int) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        attributes = dict(owner.__dict__)
        # FSDP moves parameters in and out of this dict by itself, and stand-ins are removed from
        # it.
        self._seen.add(id(attributes.get("_parameters")))
        self._owners.append((owner, attributes))
        for value in attributes.values():
            self._keep(value, depth + 1)

    def _keep(self, value: Any, depth: int) -> None:
        if depth > MAX_SNAPSHOT_DEPTH or id(value) in self._seen:
            return
        if type(value) in (list, dict, set) or isinstance(value, dict):
            self._seen.add(id(value))
            self._containers.append((value, value.copy()))
            for item in value.values() if isinstance(value, dict) else value:
                self._keep(item, depth + 1)
        elif _is_plain_object(value):
            self._keep_attributes(value, depth)


def _is_plain_object(value: Any) -> bool:
    if isinstance(value, torch.Tensor | torch.nn.Module | type) or callable(value):
        return False
    module = type(value).__module__
    return hasattr(value, "__dict__") and not module.startswith(("torch.", "builtins", "numpy"))


MAX_COPIED_PARAMETER_BYTES = 2**30
"""Larger parameters are not copied before a real pass. A forward that writes to them is so unlikely
that it does not justify the memory."""


@contextmanager
def preserved(model: torch.nn.Module, *, training: bool, values: bool = True) -> Iterator[None]:
    """Inside this context, the model is in train or eval mode without gradients. Afterwards its
    mode, attributes and gradients and the random number generators are restored, and with `values`
    also the values of buffers and of parameters up to `MAX_COPIED_PARAMETER_BYTES`."""
    modes = [(m, m.training) for m in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    attributes = Snapshot(model)
    copies = [(t, t.detach().clone()) for t in _writable(model)] if values else []
    try:
        model.train(training)
        for parameter, _ in gradients:
            parameter.grad = None
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        attributes.restore()
        for module, mode in modes:
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in copies:
                if not torch.equal(tensor, value):  # batch norm does not change the version counter
                    tensor.copy_(value)


def _writable(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors that a forward may write to: buffers, and parameters up to a size (an
    embedding with max_norm writes to its own). Parameters of FSDP are skipped, because it frees and
    refills their memory itself."""
    yield from (b for b in model.buffers() if not is_lazy(b) and b.layout is torch.strided)
    if any(type(m).__name__.startswith("FSDP") for m in model.modules()):
        return
    parameters = [p for p in model.parameters() if not is_lazy(p) and p.layout is torch.strided]
    if sum(p.numel() * p.itemsize for p in parameters) <= MAX_COPIED_PARAMETER_BYTES:
        yield from parameters


@contextmanager
def eager() -> Iterator[None]:
    """Inside this context, compiled modules run as the program they were compiled from."""
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Switch off the fused inference operators of nn.MultiheadAttention. They do not support
    tensors without data, and with a padding mask they use nested tensors, whose shape is not known.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def started_threads() -> Iterator[list[str]]:
    """Yield a list that gets the names of threads that Python starts inside this context. A
    dispatch mode sees only its own thread, so their work is not counted."""
    started: list[str] = []
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if not thread.name.startswith("ridgeline"):
            started.append(thread.name)
        original(thread)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = original  # type: ignore[method-assign]


@contextmanager
def autocast_devices() -> Iterator[list[str]]:
    """Yield a list that gets the devices for which autocast is switched on inside this context.
    Inside a dispatch mode, torch reports that autocast is off."""
    seen = [d for d in ("cuda", "cpu") if torch.is_autocast_enabled(d)]
    original: Callable[[torch.autocast], object] = torch.autocast.__enter__

    def enter(self: torch.autocast) -> object:
        if self._enabled:
            seen.append(self.device)
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        torch.autocast.__enter__ = original  # type: ignore[method-assign]


@contextmanager
def silenced() -> Iterator[None]:
    """Silence warnings and the logger of fake tensors, which prints pages if a model does not fit
    its inputs. Warnings are given again when the model really runs."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


class StandIns:
    """Replaces tensors by stand-ins without data. Each original always has the same stand-in."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True) if backend == "fake" else None
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._data: dict[tuple[Any, ...], torch.Tensor] = {}

    def tensor(self, original: torch.Tensor) -> torch.Tensor:
        known = self._made.get(id(original))
        if known is not None:
            return known[1]
        stand_in = self._shared(original)
        if isinstance(original, torch.nn.Parameter):
            stand_in = torch.nn.Parameter(stand_in, requires_grad=original.requires_grad)
        elif original.requires_grad and original.is_leaf:
            stand_in.requires_grad_(True)
        self._made[id(original)] = (original, stand_in)
        return stand_in

    def _shared(self, original: torch.Tensor) -> torch.Tensor:
        """Return a stand-in for the data. Tensors that share their data (tied through `.data`) have
        stand-ins that share it too."""
        if original.layout is not torch.strided or not original.numel():
            return self._make(original)
        key = (storage_key(original), original.storage_offset(), *original.shape, original.dtype)
        if key not in self._data:
            self._data[key] = self._make(original)
        return self._data[key].detach()

    def _make(self, original: torch.Tensor) -> torch.Tensor:
        if original.layout is not torch.strided:
            raise DataDependentError("a sparse tensor without data has no elements to count")
        if self.fake_mode is None:
            if original.is_meta:
                return original.detach()
            return torch.empty_like(original, device="meta", requires_grad=False)
        with self.fake_mode:
            return torch.empty_like(original.detach(), requires_grad=False)

    @contextmanager
    def in_place_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside this context, stand-ins replace the parameters and buffers of every submodule."""
        saved: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for module in model.modules():
                groups: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
                for slots in groups:
                    for name, tensor in list(slots.items()):
                        if tensor is None:
                            continue
                        saved.append((slots, name, tensor))
                        slots[name] = self.tensor(tensor)
            yield
        finally:
            for slots, name, tensor in saved:
                slots[name] = tensor

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside this context, new tensors have no data either."""
        with ExitStack() as stack:
            if self.fake_mode is not None:
                stack.enter_context(self.fake_mode)
            else:
                stack.enter_context(torch.device("meta"))
            yield


_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_WRITTEN_OUT = torch.ops.aten._scaled_dot_product_attention_math


class FusedCalls:
    """An attention that stays one fused operator on meta tensors, as on a GPU, and counts its
    calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if _kernels_would_decline(query, key, value, attn_mask, enable_gqa):
            out = _WRITTEN_OUT(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa,
            )  # fmt: skip
            return out[0]  # type: ignore[no-any-return]
        self.count += 1
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.to(query.dtype)
        out = _FUSED(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        return out[0]  # type: ignore[no-any-return]


def _kernels_would_decline(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool,
) -> bool:
    """Return whether the fused kernels would not support these operands: tensors that do not have
    four dimensions, different widths, or a mask that needs a gradient."""
    return (
        query.dim() != 4
        or not query.shape[-1] == key.shape[-1] == value.shape[-1]
        or (mask is not None and mask.requires_grad)
        or (key.shape[1] != query.shape[1] and not enable_gqa)
    )


@contextmanager
def attention_kept_fused() -> Iterator[FusedCalls]:
    """Inside this context, attention on meta tensors is one fused operator."""
    calls = FusedCalls()
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", calls, "AutogradMeta")
    try:
        yield calls
    finally:
        library._destroy()


MASK_NOTE = "an attention mask of ones is left out, as the model itself does on a real run"


def without_full_mask(model: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the arguments without a padding mask that masks nothing or has no data, and a note."""
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or not _is_hugging_face(model):
        return kwargs, ""
    if not mask.is_meta and not bool(mask.all()):
        return kwargs, ""
    return {name: value for name, value in kwargs.items() if name != "attention_mask"}, MASK_NOTE


def _is_hugging_face(model: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)


class Pass:
    """The result of a pass: its counts, its ledger, and the event at which forward ended."""

    def __init__(
        self, modules: ModuleTracker, ledger: StorageLedger, mode: CostMode, training: bool
    ) -> None:
        self.training = training
        self.device = torch.device("cpu")
        self.modules = modules
        self.ledger = ledger
        self.mode = mode
        self.static_bytes: dict[str, int] = {}
        self.forward_end = 0
        self.end_bytes = 0
        """The bytes that were still allocated after the pass, including the output."""
        self.fused_attention = 0
        self.gradient_bytes = 0
        self.trained: list[int] = []
        """The positions of the parameters that got a gradient."""
        self.notes: list[str] = []


def run_pass(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
    training: bool,
    accumulating: bool = False,
) -> Pass:
    """Run the model once and return what was counted. The model is restored afterwards. With
    `accumulating`, gradients exist before forward begins, as for a second micro-batch."""
    device = device_of(model, args, kwargs)
    ledger = StorageLedger(CUDA_BLOCK_BYTES if device.type == "cuda" else 1)
    with ExitStack() as stack:
        # Stand-ins replace the tensors of the model, so only a real pass can change their values.
        stack.enter_context(preserved(model, training=training, values=backend == "real"))
        stack.enter_context(eager())
        stack.enter_context(without_fast_path())
        stack.enter_context(silenced())
        fake_mode, note = None, ""
        if backend == "real":
            args, kwargs = map_tensors(args, _copied), map_tensors(kwargs, _copied)
        else:
            _refuse_distributed(model, backend)
            kwargs, note = without_full_mask(model, kwargs)
            stand_ins = StandIns(backend)
            stack.enter_context(stand_ins.in_place_of(model))
            args, kwargs = (
                map_tensors(args, stand_ins.tensor),
                map_tensors(kwargs, stand_ins.tensor),
            )
            stack.enter_context(stand_ins.active())
            fake_mode = stand_ins.fake_mode
        modules = stack.enter_context(ModuleTracker(model))
        result = Pass(modules, ledger, CostMode(modules, ledger, fake_mode=fake_mode), training)
        result.notes += [note] if note else []
        result.device = device
        result.static_bytes = {
            "parameters": ledger.add_all(model.parameters(), "parameters")
            + sum(ledger.add_packed(t, "parameters") for t in packed_weights(model)),
            "buffers": ledger.add_all(model.buffers(), "buffers"),
            "inputs": ledger.add_all(reachable_tensors((args, kwargs)), "inputs"),
        }
        if accumulating:
            result.gradient_bytes = _with_gradients(model, ledger)
        attention = FusedCalls()
        if backend == "meta":
            attention = stack.enter_context(attention_kept_fused())
        stack.enter_context(_explained(backend))
        threads = stack.enter_context(started_threads())
        autocast = stack.enter_context(autocast_devices())
        _run(model, args, kwargs, training, result)
        if autocast and backend == "meta":
            result.notes.append(
                "autocast does not act on meta tensors: counted in their own dtype; --dtype builds "
                "the model in another"
            )
        if threads:
            result.notes.append("work on the Python threads that the model starts is not counted")
        result.fused_attention = attention.count
        ledger.release()
    ledger.settle()
    return result


def _run(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    result: Pass,
) -> None:
    with result.mode:
        with torch.set_grad_enabled(training):
            output = model(*args, **kwargs)
        result.modules.forward_ended()
        result.forward_end = result.ledger.now
        if training:
            with result.mode.phases.backward():
                started = backward_from(output)
            if not started:
                result.notes.append("no output needs a gradient: there is no backward to count")
        result.end_bytes = result.ledger.live_bytes
    for position, parameter in enumerate(model.parameters()):
        if parameter.grad is None:
            continue
        if parameter.grad.layout is not torch.strided and has_no_data(parameter.grad):
            raise DataDependentError("a sparse gradient without data has no elements to count")
        result.trained.append(position)
        for entry in result.ledger.entries_of(parameter.grad):
            if entry.kind == "intermediate":
                entry.kind = "gradients"
                result.gradient_bytes += entry.bytes


def _with_gradients(model: torch.nn.Module, ledger: StorageLedger) -> int:
    """Give the parameters the gradients of an earlier micro-batch, and return their bytes."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    return ledger.add_all((p.grad for p in trained if p.grad is not None), "gradients")


def _refuse_distributed(model: torch.nn.Module, backend: Backend) -> None:
    """Raise an error for distributed models, which can only be counted on a real pass: FSDP moves
    its parameters by itself, and DTensor finds out shapes with fake tensors that look like ours."""
    sharded = any(type(m).__name__.startswith("FSDP") for m in model.modules())
    if sharded or (backend == "fake" and any(is_distributed(p) for p in model.parameters())):
        raise DataDependentError("distributed parameters are counted on a real pass")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of an input, because a real pass may write to it or give it a gradient."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def differentiable(output: Any) -> list[torch.Tensor]:
    """Return the tensors that backward can start from: the loss if the model computes one (`.loss`,
    `["loss"]`, or the only scalar), otherwise every output that needs a gradient."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor) and named.requires_grad:
        return [named]
    tensors = [t for t in nested_tensors(output) if t.requires_grad]
    # Objects are searched only if there is nothing else, because a cache is no output to train on.
    tensors = tensors or [t for t in reachable_tensors(output) if t.requires_grad]
    scalars = [t for t in tensors if t.dim() == 0]
    return scalars if len(scalars) == 1 else tensors


def backward_from(output: Any) -> bool:
    """Run backward with gradients of ones, as for the sum of the outputs, so that no loss of our
    own adds work. Return False if nothing can be differentiated."""
    starts = differentiable(output)
    if starts:
        torch.autograd.backward(starts, [torch.ones_like(t) for t in starts])
    return bool(starts)


def device_of(
    model: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers(), *reachable_tensors((args, kwargs or {}))):
        return tensor.device
    return torch.device("cpu")


# Names of errors, and words in errors, of models that need values which tensors without data lack.
_NEEDS_DATA = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "UnsupportedOperatorException",
    "UnsupportedFakeTensorException",
)
_NEEDS_DATA_WORDS = (
    "meta tensors",
    "out of meta tensor",
    "Meta backend",
    "'Meta'",
    "data-dependent",
    "no data",
    "fake tensor",
    "FakeTensor",
    "device meta",
    "numpy",
    "register_meta",
    "nonzero",
)


@contextmanager
def _explained(backend: Backend) -> Iterator[None]:
    """If tensors have no data, raise a DataDependentError for errors that only real data would
    avoid."""
    try:
        yield
    except Exception as error:
        if backend == "real":
            raise
        words = str(error)
        if backend == "meta" and "on the same device" in words:
            raise DataDependentError(
                "the model holds tensors that are neither parameters nor buffers, and they are not "
                "on meta with the rest; register_buffer brings them along"
            ) from error
        if type(error).__name__ in _NEEDS_DATA or any(w in words for w in _NEEDS_DATA_WORDS):
            first = words.strip().splitlines()[0] if words.strip() else type(error).__name__
            raise DataDependentError(
                f"the model needs values that {backend} tensors do not carry: {first[:200]}"
            ) from error
        raise
