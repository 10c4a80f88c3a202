"""Two variants, collected and examined as a comparison would."""

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from ridgeline.equality.calls.collection import Evidence, collect
from ridgeline.equality.calls.examine import examine
from ridgeline.harness.usercode.workload import Check, Declared, Workload, unpacked
from ridgeline.records.comparison import Guard, Results

SEED = 11


class Verdict(Struct, frozen=True):
    results: Results
    guards: dict[str, Guard]
    baseline: Evidence
    candidate: Evidence

    @property
    def failed(self) -> list[str]:
        return [name for name, guard in self.guards.items() if guard.outcome == "failed"]

    @property
    def warned(self) -> list[str]:
        return [name for name, guard in self.guards.items() if guard.outcome == "warned"]


def workload(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Workload:
    return Workload(name="made up", function=function, args=args, kwargs=kwargs)


def built(factory: Callable[[], Any]) -> Workload:
    """From a factory, as a file's target is."""
    from ridgeline.equality.calls.calling import seed_all

    seed_all(SEED)
    parts = unpacked(factory())
    assert parts is not None
    function, args, kwargs = parts
    return Workload(
        name="built", function=function, args=args, kwargs=kwargs, rebuild=lambda: built(factory)
    )


def judged(
    baseline: Workload,
    candidate: Workload,
    *,
    rtol: float | None = None,
    check: Check | None = None,
) -> Verdict:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a busy machine makes two threads wait for each other
    try:
        ours = collect(baseline, seed=SEED, as_baseline=True)
        theirs = collect(candidate, seed=SEED, as_baseline=False, like=ours)
        results, guards = examine(ours, theirs, declared=Declared(rtol=rtol), check=check)
    finally:
        torch.set_num_threads(threads)
    return Verdict(results, {guard.name: guard for guard in guards}, ours, theirs)


def verdict_on(
    baseline: Callable[..., Any],
    candidate: Callable[..., Any],
    *args: Any,
    rtol: float | None = None,
    check: Check | None = None,
) -> Verdict:
    """Of two functions; `args` are declared inputs of both."""
    return judged(workload(baseline, *args), workload(candidate, *args), rtol=rtol, check=check)
