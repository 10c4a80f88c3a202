"""A target made ready to be studied: built, on its device, with inputs that it accepts."""

import contextlib
import sys
from typing import Any, Literal

import torch
from msgspec import Struct

from ridgeline.cost.counting import Account, count
from ridgeline.cost.study.inputs import InputSpec, describe, make, model_dtype
from ridgeline.cost.study.room import free_bytes, watched
from ridgeline.cost.study.target import Subject, build
from ridgeline.errors import DataDependentError, RidgelineError, UsageError
from ridgeline.harness.usercode.load import explain, is_out_of_memory

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_WANTS_INTEGERS = ("'indices' to have", "scalar types: Long", "Long, Int", "integer", "embedding")


class Prepared(Struct, frozen=True):
    subject: Subject
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    """Where the tensors are; "meta" for a model without data."""
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
    ) -> Account:
        """Count one pass, with these inputs or others."""
        args = self.args if args is None else args
        kwargs = self.kwargs if kwargs is None else kwargs
        try:
            with quiet_stdout(), watched("a real pass of the model", "try --meta", 4):
                return count(self.model, args, kwargs, training=training, optimizer=optimizer)
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
        told = explain(error, f"running {self.subject.target}")
        if not told.hint and not is_out_of_memory(error):
            told.hint = f"it was given {given or self.inputs_text}; --input sets the shapes"
        elif not told.hint:
            told.hint = "try a smaller batch, or --meta to count without running"
        return told

    @property
    def inputs_text(self) -> str:
        return inputs_text(self.args, self.kwargs)


def inputs_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    texts = [describe(a) for a in args] + [f"{k}={describe(v)}" for k, v in kwargs.items()]
    return ", ".join(texts) or "nothing"


@contextlib.contextmanager
def quiet_stdout() -> Any:
    """stdout is ours: what a user's model prints goes to stderr."""
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
        subject = build(target, meta=is_meta, room_bytes=free_bytes(torch.device("cpu")))
        model = _placed(subject, device, dtype)
    if specs:
        args, kwargs = make(specs, model, device)
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


def _placed(subject: Subject, device: torch.device, dtype: str) -> torch.nn.Module:
    """On the device and in the dtype asked for; a model that arrives on meta cannot move."""
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
    """Tensors without data multiply across dtypes where real ones refuse."""
    own = str(model_dtype(model)).removeprefix("torch.")
    asked = {s.dtype for s in specs if s.dtype}
    floating = {a for a in asked if a in DTYPES and a != own}
    if not floating:
        return ()
    return (f"inputs are {', '.join(sorted(floating))} and weights {own}: a real run may refuse",)


def _with_integers(prepared: Prepared, specs: tuple[InputSpec, ...]) -> Prepared:
    """A shape without dtype is floating; a model that looks its input up in a table says no to
    that, and gets integers."""
    open_specs = [s for s in specs if not s.dtype]
    if not open_specs or not any(
        isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag) for m in prepared.model.modules()
    ):
        return prepared
    try:
        prepared.account(training=False)
    except RidgelineError as error:
        if not any(words in error.message for words in _WANTS_INTEGERS):
            return prepared
        filled = tuple(s if s.dtype else InputSpec(s.shape, "int64", s.name) for s in specs)
        args, kwargs = make(filled, prepared.model, prepared.device)
        note = "inputs are int64, since the model looks them up in a table"
        return Prepared(prepared.subject, prepared.model, args, kwargs, prepared.device, (note,))
    return prepared
