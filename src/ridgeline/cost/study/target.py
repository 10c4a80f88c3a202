"""The target of a study: the model is loaded, built (or refused if it cannot fit), and given
inputs.

While user code runs, a watch thread ends the program with a message if the memory of the host is
almost used up, before the kernel kills it without one.
"""

import contextlib
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psutil
import torch
from msgspec import Struct
from torch.overrides import TorchFunctionMode

from ridgeline.cost.counting import Account, count
from ridgeline.cost.counting.parameters import OptimizerAccount
from ridgeline.errors import (
    DataDependentError,
    OutOfMemoryError,
    RidgelineError,
    TargetError,
    UsageError,
)
from ridgeline.harness.usercode.forked_work import RaisedInFork, run_in_fork
from ridgeline.harness.usercode.load import explain, is_out_of_memory, module_at, named, split
from ridgeline.machine import processor

MIN_FREE_BYTES = 256 * 2**20
CHECK_INTERVAL_S = 0.05
"""A process can touch new memory at about 2 GB/s, so 100 MB may be taken between two checks."""


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a run on this device could still take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return processor.free_bytes()


@contextmanager
def watched(doing: str, hint: str, exit_code: int) -> Iterator[None]:
    """Inside this context, end the process with a message if the host's memory is almost used up.
    An exception cannot help there, because Linux promises more pages than it has."""
    done = threading.Event()

    def watch() -> None:
        host = torch.device("cpu")
        while not done.wait(CHECK_INTERVAL_S):
            if free_bytes(host) < MIN_FREE_BYTES:
                resident = psutil.Process().memory_info().rss / 2**30
                sys.stderr.write(
                    f"ridgeline: {doing} does not fit: {resident:.1f} GiB taken and no memory "
                    f"left.\n  {hint}\n"
                )
                sys.stderr.flush()
                os._exit(exit_code)

    thread = threading.Thread(target=watch, name="ridgeline-memory-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


_CONSTANTS = {torch.arange, torch.linspace, torch.logspace, torch.tensor}


class _ConstantsWithData(TorchFunctionMode):
    """Makes constants on the CPU, with data, for models that read them while they are built."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CONSTANTS and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def build_on_meta(make: Callable[[], Any]) -> Any:
    """Return what `make` returns, with its modules on meta."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if "meta" not in str(error).lower():
            raise
    with torch.device("meta"), _ConstantsWithData():
        built = make()
    for part in built if isinstance(built, tuple) else (built,):
        if isinstance(part, torch.nn.Module):
            part.to("meta")
    return built


WEIGHING_TIMEOUT_S = 6.0
"""The time limit for finding out the size of the weights. A 70 B model is built on meta in 2 s; a
model that takes longer is built without this check."""


def weight_bytes(make: Callable[[], Any]) -> int | None:
    """Return the bytes of parameters and buffers; None if they cannot be found out."""
    if not hasattr(os, "fork") or torch.cuda.is_initialized():
        return None  # a forked process cannot use a CUDA context
    try:
        return int(run_in_fork(lambda: _weighed(make), WEIGHING_TIMEOUT_S, own_group=True))
    except (OSError, RaisedInFork):
        return None


def _weighed(make: Callable[[], Any]) -> int:
    built = build_on_meta(make)
    model = built[0] if isinstance(built, tuple) else built
    tensors = (*model.parameters(), *model.buffers())
    return sum(t.numel() * t.itemsize for t in tensors)


EXAMPLE = "ridgeline model net.py:build --input 32x3x224x224"


class Subject(Struct, frozen=True):
    """A model and the inputs that its target returned; no inputs if it returned only a module."""

    target: str
    model: torch.nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any]


def load_target(target: str) -> Callable[[], Any]:
    """Return the callable that a target names."""
    where, name = split(target)
    if not name:
        raise UsageError(
            f"{target!r} does not name a model",
            f"write file.py:callable or package.module:callable, as in `{EXAMPLE}`",
        )
    value = named(module_at(where), name, where)
    if isinstance(value, torch.nn.Module):
        return lambda: value
    if not callable(value):
        raise TargetError(
            f"{target} is a {type(value).__name__}, not a function or class that returns a module"
        )
    return value  # type: ignore[no-any-return]


def build_target(target: str, *, meta: bool = False, room_bytes: int | None = None) -> Subject:
    """Call the target, which returns a module or the pair (module, inputs). A model whose weights
    exceed `room_bytes` is refused before it is built."""
    make = load_target(target)
    if not meta and room_bytes is not None:
        _refuse_what_cannot_fit(target, make, room_bytes)
    try:
        built = build_on_meta(make) if meta else make()
    except (Exception, SystemExit) as error:
        raise explain(error, f"building {target}", "if it does not fit, try --meta") from error
    model, inputs = built if _is_pair(built) else (built, None)
    if not isinstance(model, torch.nn.Module):
        raise TargetError(
            f"{target} returned a {type(built).__name__}, not a torch.nn.Module",
            "return the module, or the pair (module, inputs)",
        )
    if inputs is None:
        return Subject(target, model, None, {})
    if isinstance(inputs, dict):
        return Subject(target, model, (), inputs)
    args = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    return Subject(target, model, args, {})


def _refuse_what_cannot_fit(target: str, make: Callable[[], Any], room_bytes: int) -> None:
    needed = weight_bytes(make)
    if needed is not None and needed > room_bytes:
        raise OutOfMemoryError(
            f"the weights of {target} take {needed / 2**30:.1f} GiB, and {room_bytes / 2**30:.1f} "
            "GiB are free on this machine",
            "add --meta to count it without weights",
        )


def _is_pair(built: Any) -> bool:
    return isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)


Dimension = Literal["batch", "seq"]

_INPUT_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool, "complex64": torch.complex64,
    "double": torch.float64, "float": torch.float32, "half": torch.float16, "fp32": torch.float32,
    "fp16": torch.float16, "bf16": torch.bfloat16, "long": torch.int64, "int": torch.int32,
}  # fmt: skip

_SPEC = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:[x,×]\d+)*|scalar)(?::(?P<dtype>\w+))?"
)


class InputSpec(Struct, frozen=True):
    """An input as `--input` describes it."""

    shape: tuple[int, ...]
    dtype: str = ""
    """"" means the floating dtype of the model."""
    name: str = ""
    """"" means a positional argument."""


def parse_input(text: str) -> InputSpec:
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text!r} is not a shape",
            "write sizes joined by x, with an optional dtype and name: 32x3x224x224, 8x1024:int64, "
            "attention_mask=8x1024:bool",
        )
    dtype = (match["dtype"] or "").lower()
    if dtype and dtype not in _INPUT_DTYPES:
        known = ", ".join(
            k for k in _INPUT_DTYPES if k not in ("float", "half", "long", "int", "double")
        )
        raise UsageError(f"--input {text!r}: no dtype {dtype!r}", f"one of: {known}")
    shape = match["shape"]
    sizes = () if shape == "scalar" else tuple(int(n) for n in re.split("[x,×]", shape))
    if any(n == 0 for n in sizes):
        raise UsageError(f"--input {text!r} has a dimension of size 0", "sizes start at 1")
    if math.prod(sizes) >= 2**60:
        raise UsageError(f"--input {text!r} has more elements than a tensor can have")
    return InputSpec(sizes, dtype, match["name"] or "")


def make_inputs(
    specs: tuple[InputSpec, ...], model: torch.nn.Module, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return tensors for these specs: positional ones, and named ones."""
    names = [s.name for s in specs if s.name]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--input names {name!r} twice", "give each name once")
    tensors = [(s.name, _tensor(s, model, device)) for s in specs]
    return tuple(t for n, t in tensors if not n), {n: t for n, t in tensors if n}


def model_dtype(model: torch.nn.Module) -> torch.dtype:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.get_default_dtype()


def _tensor(spec: InputSpec, model: torch.nn.Module, device: torch.device) -> torch.Tensor:
    dtype = _INPUT_DTYPES[spec.dtype] if spec.dtype else model_dtype(model)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if math.prod(spec.shape) * dtype.itemsize > free_bytes(device) // 2:
        # A tensor this large is not made: its first row, expanded, is enough for counting.
        row = _tensor(InputSpec((1, *spec.shape[1:]), spec.dtype), model, device)
        return row.expand(spec.shape)
    if dtype is torch.bool:
        return torch.ones(spec.shape, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(spec.shape, dtype=torch.float32).to(device=device, dtype=dtype)
    limit = min(_smallest_table(model), torch.iinfo(dtype).max)
    return torch.randint(0, limit, spec.shape, dtype=dtype, device=device)


def _smallest_table(model: torch.nn.Module) -> int:
    tables = [
        m.num_embeddings
        for m in model.modules()
        if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)
    ]
    return max(min(tables, default=2), 1)


def describe_input(value: Any) -> str:
    """Return an input as the command line writes it."""
    if isinstance(value, torch.Tensor):
        sizes = "x".join(str(n) for n in value.shape) or "scalar"
        return f"{sizes}:{str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def base_size(args: tuple[Any, ...], kwargs: dict[str, Any], dimension: Dimension) -> int:
    """Return the size of the dimension in the first tensor that has it; 1 if none has it."""
    dim = 0 if dimension == "batch" else 1
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() > dim:
            return value.shape[dim]
    return 1


def resize_inputs(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dimension: Dimension,
    size: int,
    *,
    virtual: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs at another size. Rows are repeated, so that values stay valid. Every tensor
    whose dimension has the same size as that of the first is resized with it. With `virtual`, the
    first row is expanded, which takes no memory and is enough for counting."""
    dim, now = (0 if dimension == "batch" else 1), base_size(args, kwargs, dimension)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() <= dim or value.shape[dim] != now:
            return value
        shape = [*value.shape[:dim], size, *value.shape[dim + 1 :]]
        if value.is_meta:
            return torch.empty(shape, dtype=value.dtype, device="meta")
        if virtual:
            changed = value.detach().narrow(dim, 0, 1).expand(shape)
        else:
            rows = torch.arange(size, device=value.device) % now
            changed = value.detach().index_select(dim, rows)
        return changed.requires_grad_(value.requires_grad)

    return tuple(change(a) for a in args), {k: change(v) for k, v in kwargs.items()}


DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Words in the errors of models that need integer inputs.
_INTEGER_ERROR_WORDS = (
    "'indices' to have",
    "scalar types: Long",
    "Long, Int",
    "integer",
    "embedding",
)


class Prepared(Struct, frozen=True):
    """A built model with its inputs, ready to be counted and run."""

    subject: Subject
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    """The device of the tensors; "meta" for a model without data."""
    notes: tuple[str, ...] = ()

    @property
    def is_meta(self) -> bool:
        return self.device.type == "meta"

    def account(
        self,
        *,
        training: bool,
        optimizer: str = "",
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        accumulating: bool = False,
        known_step: OptimizerAccount | None = None,
    ) -> Account:
        """Count one pass, with these inputs or others."""
        args = self.args if args is None else args
        kwargs = self.kwargs if kwargs is None else kwargs
        try:
            with quiet_stdout(), watched("a real pass of the model", "try --meta", 4):
                return count(
                    self.model, args, kwargs, training=training, optimizer=optimizer,
                    accumulating=accumulating, known_step=known_step,
                )  # fmt: skip
        except DataDependentError as error:
            raise DataDependentError(
                error.message,
                "without --meta the model runs on real tensors"
                if self.is_meta
                else "give it inputs that carry what it asks for",
            ) from error
        except RidgelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self.explained(error, inputs_text(args, kwargs)) from error

    def explained(self, error: BaseException, given: str = "") -> RidgelineError:
        """Return an error of the model as ours, with a hint."""
        explained = explain(error, f"running {self.subject.target}")
        if not explained.hint and not is_out_of_memory(error):
            explained.hint = f"it was given {given or self.inputs_text}; --input sets the shapes"
        elif not explained.hint:
            explained.hint = "try a smaller batch, or --meta to count without running"
        return explained

    @property
    def inputs_text(self) -> str:
        return inputs_text(self.args, self.kwargs)


def inputs_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    texts = [describe_input(a) for a in args] + [
        f"{k}={describe_input(v)}" for k, v in kwargs.items()
    ]
    return ", ".join(texts) or "nothing"


@contextlib.contextmanager
def quiet_stdout() -> Any:
    """Send what a user's model prints to stderr, because stdout is for our results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def prepare(
    target: str,
    specs: tuple[InputSpec, ...],
    device: torch.device,
    *,
    dtype: Literal["", "float64", "float32", "bfloat16", "float16"] = "",
) -> Prepared:
    """Build the target for a device ("meta" builds without data) and give it inputs."""
    torch.manual_seed(0)
    is_meta = device.type == "meta"
    with quiet_stdout(), _default_dtype(dtype), watched(target, "try --meta", 4):
        subject = build_target(target, meta=is_meta, room_bytes=free_bytes(torch.device("cpu")))
        model = _moved_model(subject, device, dtype)
    if specs:
        args, kwargs = make_inputs(specs, model, device)
    elif subject.args is not None:
        args, kwargs = _moved(subject.args, device, dtype), _moved(subject.kwargs, device, dtype)
    else:
        raise UsageError(
            f"{target} returns a module without inputs",
            "add --input with the shape of a batch, as in --input 32x3x224x224 or 8x1024:int64",
        )
    prepared = Prepared(subject, model, args, kwargs, device, _dtype_note(specs, model))
    return _with_integers(prepared, specs)


@contextlib.contextmanager
def _default_dtype(dtype: str) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype] if dtype else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _moved_model(subject: Subject, device: torch.device, dtype: str) -> torch.nn.Module:
    """Return the model on the device and in the dtype asked for. A meta model cannot move."""
    if any(p.is_meta for p in subject.model.parameters()) and device.type != "meta":
        raise UsageError(f"{subject.target} builds its model on meta, without data", "add --meta")
    try:
        return subject.model.to(device=device, dtype=DTYPES[dtype] if dtype else None)
    except Exception as error:
        raise explain(error, f"moving {subject.target} to {device}", "try --meta") from error


def _moved(value: Any, device: torch.device, dtype: str) -> Any:
    if isinstance(value, torch.Tensor):
        floating = dtype and value.is_floating_point()
        return value.detach().to(device, DTYPES[dtype] if floating else value.dtype)
    if isinstance(value, dict):
        return {k: _moved(v, device, dtype) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(v, device, dtype) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(_moved(v, device, dtype) for v in value)
    return value


def _dtype_note(specs: tuple[InputSpec, ...], model: torch.nn.Module) -> tuple[str, ...]:
    """Return a note if inputs and weights differ in dtype. Tensors without data can then still be
    multiplied, but real ones may not."""
    own = str(model_dtype(model)).removeprefix("torch.")
    asked = {s.dtype for s in specs if s.dtype}
    floating = {a for a in asked if a in DTYPES and a != own}
    if not floating:
        return ()
    return (f"inputs are {', '.join(sorted(floating))} and weights {own}: a real run may refuse",)


def _with_integers(prepared: Prepared, specs: tuple[InputSpec, ...]) -> Prepared:
    """Replace inputs without a dtype by integers if the model looks them up in an embedding.
    Without a dtype they are floating, which such a model refuses."""
    open_specs = [s for s in specs if not s.dtype]
    if not open_specs or not any(
        isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag) for m in prepared.model.modules()
    ):
        return prepared
    try:
        prepared.account(training=False)
    except RidgelineError as error:
        if not any(words in error.message for words in _INTEGER_ERROR_WORDS):
            return prepared
        filled = tuple(s if s.dtype else InputSpec(s.shape, "int64", s.name) for s in specs)
        args, kwargs = make_inputs(filled, prepared.model, prepared.device)
        note = "inputs are int64, since the model looks them up in a table"
        return Prepared(prepared.subject, prepared.model, args, kwargs, prepared.device, (note,))
    return prepared
