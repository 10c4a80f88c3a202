"""From a target's text to something that can be called.

`file.py:name` is a function without arguments. If it returns a callable it was a factory, and what
it returned is timed; else the function itself is.
"""

import inspect
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from ridgeline.equality.calls.calling import seed_all
from ridgeline.errors import TargetError, UsageError
from ridgeline.harness.usercode.load import explain, module_at, named, split
from ridgeline.harness.usercode.workload import Declared, Workload, declared_in, unpacked

EXAMPLE = "ridgeline compare slow.py:step fast.py:step"


def open_target(target: str, seed: int) -> Workload:
    """Import the target and build what it names."""
    where, name = split(target)
    if not name:
        raise UsageError(f"{target!r} names no function", f"write file.py:name, as in `{EXAMPLE}`")
    seed_all(seed)
    module = module_at(where)
    function = named(module, name, where)
    if not callable(function):
        raise TargetError(f"{target} is no function: it is {str(function)[:60]!r}")
    if isinstance(function, torch.nn.Module):
        raise TargetError(
            f"{target} is a module, and what to call it with is not known",
            "name a function that calls it, or one that returns (module, inputs)",
        )
    _refuse_arguments(function, target)
    return build(function, target, declared_in(vars(module), where), seed)


def build(function: Callable[[], Any], name: str, declared: Declared, seed: int) -> Workload:
    """Call `function` once and find out what it is."""
    seed_all(seed)
    start = perf_counter_ns()
    try:
        built = function()
        _wait()
    except (Exception, SystemExit) as error:
        raise explain(error, f"calling {name}") from error
    took = perf_counter_ns() - start
    parts = unpacked(built)
    if parts is None:
        return Workload(name=name, function=function, declared=declared, first_call_ns=took)
    timed, args, kwargs = parts
    return Workload(
        name=name,
        function=timed,
        args=args,
        kwargs=kwargs,
        declared=declared,
        rebuild=lambda: build(function, name, declared, seed),
    )


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _refuse_arguments(function: Callable[..., Any], target: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(
            f"{target} takes arguments: {error}",
            "name a function without any; it may return (function, inputs)",
        ) from error
    except ValueError:  # built-in functions without a signature: the call will tell
        return
