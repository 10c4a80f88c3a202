"""A target on the command line, `file.py:name` or `package.module:name`: a module and inputs."""

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from ridgeline.cost.study.foresight import weight_bytes
from ridgeline.cost.study.meta_build import build_on_meta
from ridgeline.errors import OutOfMemoryError, TargetError, UsageError
from ridgeline.harness.usercode.load import explain, module_at, named, split

EXAMPLE = "ridgeline model net.py:build --input 32x3x224x224"


class Subject(Struct, frozen=True):
    """A model and the inputs it came with (none, if the target returned only a module)."""

    target: str
    model: torch.nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any]


def load(target: str) -> Callable[[], Any]:
    """The callable a target names."""
    where, name = split(target)
    if not name:
        raise UsageError(
            f"{target!r} does not name a model",
            f"write file.py:callable or package.module:callable, as in `{EXAMPLE}`",
        )
    found = named(module_at(where), name, where)
    if isinstance(found, torch.nn.Module):
        return lambda: found
    if not callable(found):
        raise TargetError(
            f"{target} is a {type(found).__name__}, not a function or class that returns a module"
        )
    return found  # type: ignore[no-any-return]


def build(target: str, *, meta: bool = False, room_bytes: int | None = None) -> Subject:
    """Call the target; what it returns is a module, or a module with its inputs. A model whose
    weights exceed `room_bytes` is refused before it is built."""
    make = load(target)
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
