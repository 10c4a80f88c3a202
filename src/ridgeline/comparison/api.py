"""The Python interface: `ridgeline.benchmark` and `ridgeline.compare`, for notebooks and tests."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from ridgeline.comparison.contenders import CONTROL, Disturbing, Options, VariantFailed, stand
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
from ridgeline.report.notebook import ShownAsPage
from ridgeline.units import parse_seconds

if TYPE_CHECKING:
    from ridgeline.report.document import Document

BUDGET_S = 10.0
Inputs = tuple[object, ...] | Mapping[str, object]


class Timing(ShownAsPage):
    """Says how long one call takes. `print` it for the median with its interval; a notebook shows
    every sample."""

    def __init__(self, name: str, record: Latency) -> None:
        self.name = name
        self.record = record
        """All that was measured."""

    @property
    def median_s(self) -> float:
        return self.record.summary.median_ns / 1e9

    @property
    def ci_s(self) -> tuple[float, float]:
        """The 95 % interval of the median, in seconds."""
        summary = self.record.summary
        return summary.ci_low_ns / 1e9, summary.ci_high_ns / 1e9

    @property
    def samples_s(self) -> tuple[float, ...]:
        return tuple(ns / 1e9 for ns in self.record.samples_ns)

    def to_json(self) -> str:
        from ridgeline.report.renderers import json

        document = {"schema": "ridgeline.timing/1", "name": self.name}
        return json.render(document | msgspec.to_builtins(self.record))

    def document(self) -> "Document":
        from ridgeline.report.views.timing import document

        return document(self.name, self.record)

    def __str__(self) -> str:
        from ridgeline.report.numbers import timing_text

        return timing_text(self.record, self.name)

    __repr__ = __str__


class Comparison(ShownAsPage):
    """The result of a comparison. `print` it for the whole report; a notebook shows its page.

    `verdict`, `ratio`, `ci` and `results` are those of the one candidate; with several, ask
    `candidates["name"]`.
    """

    def __init__(self, record: records.Comparison) -> None:
        self.record = record
        """All that was measured."""

    @property
    def verdict(self) -> Verdict:
        """FASTER, SLOWER, SAME, UNDECIDED, or INVALID if the results differ."""
        return self._only.verdict

    @property
    def ratio(self) -> float:
        """The baseline's time over the candidate's: above 1 the candidate is faster."""
        return self._only.deciding.ratio

    @property
    def ci(self) -> tuple[float, float]:
        """The 95 % interval of the ratio."""
        return self._only.deciding.ci_low, self._only.deciding.ci_high

    @property
    def results(self) -> records.Results:
        """Whether the candidate computes what the baseline computes, and how well that is known."""
        return self._only.results

    @property
    def candidates(self) -> dict[str, records.Candidate]:
        return {candidate.variant.name: candidate for candidate in self.record.candidates}

    def to_json(self) -> str:
        from ridgeline.report.renderers import json
        from ridgeline.report.views.comparison import data

        return json.render(data(self.record))

    def to_markdown(self) -> str:
        from ridgeline.report.renderers import markdown

        return markdown.render(self.document())

    def to_html(self) -> str:
        """Return a page with charts that needs nothing else."""
        from ridgeline.report.renderers import html

        return html.render(self.document())

    def document(self) -> "Document":
        from ridgeline.report.views.comparison import document

        return document(self.record)

    @property
    def _only(self) -> records.Candidate:
        if len(self.record.candidates) != 1:
            names = ", ".join(self.candidates)
            raise UsageError(f"there are several candidates ({names})", "ask `.candidates[name]`")
        return self.record.candidates[0]


def benchmark(
    function: Callable[..., object],
    *args: object,
    budget: str | float = 2.0,
    budget_s: float | None = None,
    device: str | None = None,
    name: str | None = None,
    **kwargs: object,
) -> Timing:
    """Time `function(*args, **kwargs)` to steady state.

    >>> import ridgeline, torch
    >>> x = torch.randn(512, 512)
    >>> timing = ridgeline.benchmark(torch.mm, x, x)
    >>> print(timing)  # the median with its interval, percentiles, warnings
    >>> timing.median_s, timing.ci_s

    The function is called until its times are steady, then sampled. Compilation, autotuning and
    caches are warm by then, and on a GPU each sample waits for the device. Use `compare` to learn
    which of two functions is faster: two timings one after the other call identical code different
    in 41 to 87 % of cases.

    Args:
        function: What is timed. It is called some hundred times; what it changes stays changed,
            except for the state of random number generators.
        budget: The time limit: "500ms", "2s", or seconds.
        budget_s: The old name of `budget`.
        device: "cpu" or "cuda:0". By default the GPU, once anything has used one, else the CPU.
        name: What the timing is called when printed; by default the function's name.
    """
    from functools import partial

    from ridgeline.comparison.host import Host
    from ridgeline.equality.calls.calling import preserve_generators
    from ridgeline.measure.timing import time_calls

    if not callable(function):
        raise UsageError(f"{function!r} cannot be called")
    seconds = _seconds(budget, budget_s)
    call = partial(function, *args, **kwargs) if args or kwargs else function
    with preserve_generators():
        call()  # from now on the device that it uses is known
        record = time_calls(call, device or Host().device(), budget_s=seconds)
    return Timing(name or str(getattr(function, "__name__", type(function).__name__)), record)


def compare(
    variants: Mapping[str, Callable[..., object]],
    *,
    inputs: Inputs | None = None,
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
    """Find out which variant is faster, and whether all compute the same.

    >>> import ridgeline, torch
    >>> x = torch.randn(4096, 4096)
    >>> def with_relu(x): return x.relu().sum()
    >>> def with_clamp(x): return x.clamp(min=0).sum()
    >>> found = ridgeline.compare({"relu": with_relu, "clamp": with_clamp}, inputs=(x,))
    >>> print(found)
    >>> found.verdict, found.ratio, found.ci, found.results.ok

    The first variant is the baseline. All are timed in the same shuffled rounds, the baseline
    twice: the second time is the A/A control, which shows how far apart identical code looks here.
    The rounds end as soon as the verdict is clear. Results are checked against a float64 reference
    where there can be one; a variant with other results is INVALID, however fast it is.

    Everything runs in the caller's process. Weights, gradients, optimizer states and random
    numbers are put back afterwards.

    Args:
        variants: Functions by name. Each takes `inputs`. Without inputs, each is called without
            arguments; one that returns a callable, or (callable, arguments), is a factory, and
            what it returned is timed.
        inputs: The arguments of every variant: a tuple, or a mapping of keyword arguments.
        budget: The time limit: "90s", "2m", or seconds.
        budget_s: The old name of `budget`.
        threshold: The share that matters: differences below 0.02, which is 2 %, are SAME.
        goal: "speed", "memory" or "throughput"; by default speed.
        items: How many samples or tokens a call handles, for the goal throughput.
        check: Whether results are compared, or your own
            `check(baseline_output, candidate_output)`. It rejects a variant by False, by a
            sentence, or by an AssertionError.
        tolerance: The relative error allowed to variants that change precision on purpose.
        cold: Empty the device's last-level cache before each call.
        seed: For the order of the rounds and for the variants' random numbers.
        on_progress: Called with a sentence as work goes on.
    """
    from ridgeline.comparison.functions import together
    from ridgeline.comparison.host import Host
    from ridgeline.equality.calls.calling import preserve_generators

    seconds = _seconds(budget, budget_s)
    _refuse_nonsense(variants, threshold, goal, items, tolerance)
    own = check if callable(check) else None
    declared = Declared(goal=goal, items=items, rtol=tolerance, check=own)
    options = Options(
        budget_s=seconds, threshold=threshold, goal=goal, cold=cold, checked=bool(check), seed=seed
    )
    host = Host(cold=cold)
    with preserve_generators(), _state_restored(variants, inputs):
        contenders = stand(list(variants), lambda variant, name: host)
        for contender in contenders:
            if contender.variant == CONTROL:
                continue
            function = variants[contender.name]
            workload = _workload(function, contender.name, inputs, declared, seed)
            contender.opened = host.adopt(contender.variant, workload)
            if contender.opened.changed:
                raise _cannot_share(Disturbing(contender.opened.changed))
        try:
            return Comparison(together(host, contenders, options, on_progress or _say_nothing))
        except VariantFailed as failed:
            raise failed.error from failed
        except Disturbing as disturbing:
            raise _cannot_share(disturbing) from None


def _say_nothing(text: str) -> None:
    """Show no progress: nobody asked for any."""


@contextmanager
def _state_restored(
    variants: Mapping[str, Callable[..., object]], inputs: Inputs | None
) -> Iterator[None]:
    """Put back what the variants can reach (weights, gradients, optimizer states, buffers, modes):
    the rounds call a training step some thousand times, on the caller's own model."""
    import torch

    from ridgeline.equality.calls.held_state import SavedState

    kept = []
    for name, function in variants.items():
        _, args, kwargs = unpacked((function, inputs or ())) or (function, (), {})
        kept.append(SavedState(Workload(name=name, function=function, args=args, kwargs=kwargs)))
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


def _refuse_nonsense(
    variants: object, threshold: object, goal: object, items: object, tolerance: object
) -> None:
    example = 'compare({"slow": f, "fast": g})'
    if not isinstance(variants, Mapping):
        kind = type(variants).__name__
        raise UsageError(f"variants are a dict of functions, not a {kind}", example)
    if len(variants) < 2:
        raise UsageError("a comparison needs two variants", example)
    if goal is not None and goal not in GOALS:
        raise UsageError(f"goal is {goal!r}", f"it may be one of: {', '.join(GOALS)}")
    numbers = {"threshold": threshold, "items": items, "tolerance": tolerance}
    for name, value in numbers.items():
        is_given = value is not None or name == "threshold"
        if is_given and not (is_number(value) and value > 0):  # type: ignore[operator]
            raise UsageError(f"{name} is {value!r}, not a number above 0")


def _workload(
    function: Callable[..., object], name: str, inputs: Inputs | None, declared: Declared, seed: int
) -> Workload:
    from ridgeline.comparison.host import build

    if not callable(function):
        raise UsageError(f"{name!r} is {function!r}, which cannot be called")
    if inputs is None:
        return build(function, name, declared, seed)
    parts = unpacked((function, inputs))
    assert parts is not None
    _, args, kwargs = parts
    return Workload(name=name, function=function, args=args, kwargs=kwargs, declared=declared)


def _cannot_share(disturbing: Disturbing) -> RidgelineError:
    return UsageError(
        f"the variants cannot share a process: one changes {disturbing}",
        "put them into files and use `ridgeline compare --isolate`",
    )
