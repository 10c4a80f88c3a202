"""From what a person typed to a torch device that exists, or one sentence saying why not."""

import re
import warnings

import torch

from ridgeline.errors import RidgelineError, UsageError


def resolve_device(name: str | None) -> torch.device:
    """`cpu`, `cuda` or `cuda:1` as a device of this machine; None picks a GPU where there is one.

    Raises UsageError for a name or an index that cannot be, RidgelineError (exit 4) where CUDA
    was asked for and there is none.
    """
    if name is None:
        return torch.device("cuda", _current()) if _cuda_problem() is None else torch.device("cpu")
    parsed = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name.strip().lower())
    if parsed is None:
        raise UsageError(
            f"'{name}' is not a device Ridgeline measures", hint="use cpu, cuda or cuda:<index>"
        )
    kind, index = parsed[1], parsed[2]
    if kind == "cpu":
        return torch.device("cpu")
    problem = _cuda_problem()
    if problem is not None:
        raise RidgelineError(
            f"device '{name}' was asked for, but {problem}", hint="use --device cpu"
        )
    count = torch.cuda.device_count()
    if index is not None and int(index) >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(f"there is no device '{name}' here", hint=f"this machine has {there}")
    return torch.device("cuda", _current() if index is None else int(index))


def _current() -> int:
    # Asking before anything else has started CUDA would start it, only to hear 0.
    started: bool = torch.cuda.is_initialized()
    return torch.cuda.current_device() if started else 0


def _cuda_problem() -> str | None:
    """Why there is no CUDA device to use; None if there is one."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    # torch tells of a driver that is too old, or a broken one, only by a warning.
    reason = str(said[0].message).split(" (Triggered")[0].split(". ")[0] if said else ""
    return "torch finds no usable CUDA device" + (f": {reason}" if reason else "")
