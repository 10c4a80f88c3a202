"""The Python face: `ridgeline.benchmark` and `ridgeline.compare`, for notebooks and tests.

Everything happens in the caller's process; random numbers and tensors are as before afterwards.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline.comparison.arms import ArmFailed, Disturbing, Options, stand
from ridgeline.comparison.messages import Opened
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.harness.usercode.workload import (
    GOALS,
    Check,
    Declared,
    Workload,
    is_number,
    unpacked,
)
from ridgeline.records import comparison as records
from ridgeline.records.comparison import Goal
from ridgeline.records.facts import Verdict
from ridgeline.records.latency import Latency
from ridgeline.units import parse_seconds

if TYPE_CHECKING:
    from ridgeline.report.document import Document

BUDGET_S = 10.0


class Timing:
    """How long one call takes; `print` it."""

    def __init__(self, name: str, record: Latency) -> None:
        self.name = name
        self.record = record

    @property
    def median_s(self) -> float:
        return self.record.summary.median_ns / 1e9

    @property
    def ci_s(self) -> tuple[float, float]:
        """95 % interval of the median."""
        summary = self.record.summary
        return summary.ci_low_ns / 1e9, summary.ci_high_ns / 1e9

    @property
    def samples_s(self) -> tuple[float, ...]:
        return tuple(ns / 1e9 for ns in self.record.samples_ns)

    def to_json(self) -> str:
        document = {"schema": "ridgeline.timing/1", "name": self.name}
        return _encoded(document | msgspec.to_builtins(self.record))

    def __str__(self) -> str:
        from ridgeline.report.numbers import timing_text

        return timing_text(self.record, self.name)

    __repr__ = __str__


class Comparison:
    """What a comparison found; `print` it. `record` has all of it."""

    def __init__(self, record: records.Comparison) -> None:
        self.record = record

    @property
    def verdict(self) -> Verdict:
        return self._only.verdict

    @property
    def ratio(self) -> float:
        """The baseline's time over the candidate's: above 1 the candidate is faster."""
        return self._only.deciding.ratio

    @property
    def ci(self) -> tuple[float, float]:
        return self._only.deciding.ci_low, self._only.deciding.ci_high

    @property
    def results(self) -> records.Results:
        return self._only.results

    @property
    def candidates(self) -> dict[str, records.Candidate]:
        return {candidate.arm.name: candidate for candidate in self.record.candidates}

    def to_json(self) -> str:
        from ridgeline.report.renderers import json
        from ridgeline.report.views.comparison import data

        return json.render(data(self.record))

    def to_markdown(self) -> str:
        from ridgeline.report.renderers import markdown

        return markdown.render(self._document())

    def to_html(self) -> str:
        """Return a page with charts that needs nothing else."""
        from ridgeline.report.renderers import html

        return html.render(self._document())

    def __str__(self) -> str:
        from ridgeline.report.renderers import terminal

        return terminal.render_text(self._document(), 120).strip("\n")

    def _document(self) -> "Document":
        from ridgeline.report.views.comparison import document

        return document(self.record)

    __repr__ = __str__

    @property
    def _only(self) -> records.Candidate:
        if len(self.record.candidates) != 1:
            names = ", ".join(self.candidates)
            raise UsageError(f"there are several candidates ({names})", "ask `.candidates[name]`")
        return self.record.candidates[0]


def benchmark(
    function: Callable[..., Any],
    *args: Any,
    budget: str | float = 2.0,
    budget_s: float | None = None,
    device: str | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> Timing:
    """Time `function(*args, **kwargs)` to steady state, for `budget` ("500ms", "2s" or seconds) at
    most; `budget_s` is its old name.

    The device is the GPU where anything has touched one, else the CPU. The function is called some
    hundred times: what it changes stays changed, random numbers apart.
    """
    from functools import partial

    from ridgeline.comparison.host import Host
    from ridgeline.equality.calls.calling import undisturbed
    from ridgeline.measure.latency import time_calls

    if not callable(function):
        raise UsageError(f"{function!r} cannot be called")
    seconds = _seconds(budget, budget_s)
    call = partial(function, *args, **kwargs) if args or kwargs else function
    with undisturbed():
        call()  # whatever it uses is in use now: the device shows
        record = time_calls(call, device or Host().device(), budget_s=seconds)
    return Timing(name or _name_of(function), record)


def compare(
    variants: Mapping[str, Callable[..., Any]],
    *,
    inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
    budget: str | float = BUDGET_S,
    budget_s: float | None = None,
    threshold: float = 0.02,
    goal: Goal | None = None,
    items: float | None = None,
    check: bool | Check = True,
    tolerance: float | None = None,
    cold: bool = False,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare variants in interleaved rounds, the first one the baseline.

    A variant is a function without arguments, or one that takes `inputs`; without inputs, one that
    returns a callable is a factory, and what it returned is timed. `budget` is "90s", "2m" or
    seconds (`budget_s` is its old name). `check` may be your own
    `check(baseline_output, candidate_output)`, or False; `tolerance` is the relative error allowed
    to a variant that changes precision on purpose.
    """
    from ridgeline.comparison.functions import together
    from ridgeline.comparison.host import Host
    from ridgeline.equality.calls.calling import undisturbed

    seconds = _seconds(budget, budget_s)
    _refuse_nonsense(variants, threshold, goal, items, tolerance)
    own = check if callable(check) else None
    declared = Declared(goal=goal, items=items, rtol=tolerance, check=own)
    options = Options(
        budget_s=seconds, threshold=threshold, goal=goal, cold=cold, checked=bool(check), seed=seed
    )
    say = on_progress or (lambda now: None)
    host = Host(cold=cold)
    with undisturbed(), _put_back(variants, inputs):
        standings = stand(list(variants), lambda arm, name: host)
        for standing in standings:
            if standing.arm != "control":
                workload = _workload(variants[standing.name], standing.name, inputs, declared, seed)
                standing.opened = _shared(host.adopt(standing.arm, workload))
        try:
            return Comparison(together(host, standings, options, say))
        except ArmFailed as failed:
            raise failed.error from failed
        except Disturbing as disturbing:
            raise _cannot_share(disturbing) from None


@contextmanager
def _put_back(
    variants: Mapping[str, Callable[..., Any]], inputs: tuple[Any, ...] | Mapping[str, Any] | None
) -> Iterator[None]:
    """What the variants can reach (weights, gradients, optimizer state, buffers, modes) as it was:
    the rounds call a training step some thousand times, on the caller's own model."""
    import torch

    from ridgeline.equality.calls.held_state import Keeping

    kept = []
    for name, function in variants.items():
        _, args, kwargs = unpacked((function, inputs or ())) or (function, (), {})
        whole = Workload(name=name, function=function, args=args, kwargs=kwargs)
        kept.append(Keeping(whole))
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        for keeping in reversed(kept):
            keeping.restore(everything=True)
        torch.set_num_threads(threads)


def _seconds(budget: str | float, budget_s: float | None) -> float:
    if budget_s is None:
        return parse_seconds("budget", budget)
    # A stacklevel of 3 points at the caller of `compare` or `benchmark`.
    warnings.warn("budget_s is now called budget", DeprecationWarning, stacklevel=3)
    return parse_seconds("budget_s", budget_s)


def _refuse_nonsense(variants: Any, threshold: Any, goal: Any, items: Any, tolerance: Any) -> None:
    example = 'compare({"slow": f, "fast": g})'
    if not isinstance(variants, Mapping):
        raise UsageError(f"variants are a dict of functions, not a {type(variants).__name__}",
                         example)  # fmt: skip
    if len(variants) < 2:
        raise UsageError("a comparison needs two variants", example)
    if goal is not None and goal not in GOALS:
        raise UsageError(f"goal is {goal!r}", f"it may be one of: {', '.join(GOALS)}")
    numbers = {"threshold": threshold, "items": items, "tolerance": tolerance}
    for name, value in numbers.items():
        given = value is not None or name == "threshold"
        if given and not (is_number(value) and value > 0):
            raise UsageError(f"{name} is {value!r}, not a number above 0")


def _workload(
    function: Callable[..., Any],
    name: str,
    inputs: tuple[Any, ...] | Mapping[str, Any] | None,
    declared: Declared,
    seed: int,
) -> Workload:
    from ridgeline.comparison.targets import build

    if not callable(function):
        raise UsageError(f"{name!r} is {function!r}, which cannot be called")
    if inputs is None:
        return build(function, name, declared, seed)
    parts = unpacked((function, inputs))
    assert parts is not None
    _, args, kwargs = parts
    return Workload(name=name, function=function, args=args, kwargs=kwargs, declared=declared)


def _shared(opened: Opened) -> Opened:
    if opened.changed:
        raise _cannot_share(Disturbing(opened.changed))
    return opened


def _cannot_share(disturbing: Disturbing) -> RidgelineError:
    return UsageError(
        f"the variants cannot share a process: one changes {disturbing}",
        "put them into files and use `ridgeline compare --isolate`",
    )


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _encoded(document: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
