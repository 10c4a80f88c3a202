"""Training stands still now and then: a checkpoint is written, an evaluation run."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._machine import own_files
from ridgeline.diagnose.source.pauses import PauseCall, pause_calls
from ridgeline.diagnose.steady_steps import duration
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.step import Phase, Step
from ridgeline.records.trace import Place

LEAST = 0.02
EVALUATION = 0.25
"""Of all time: an evaluation is work one wants, and below this hardly a fault."""
FAR = 1.0
"""Median steps that a pause is longer than the rest of its kind: a step that only stalls for a
scheduler's slice is no pause of the program's."""
LEAST_NS = 5_000_000
FEWEST = 8
"""Timed steps: fewer do not tell a pause from how the program runs."""
MOST = 0.34
"""Of the steps: what happens in every third is part of the step, not between them."""
LIKELY = 2
"""Pauses: one alone may be the machine's."""
REGULAR = 3
"""Pauses, evenly apart, that are believed with nothing in the source to explain them."""

RULE = Rule(
    id="idle-between-epochs",
    family="machine",
    title="Training pauses between steps",
    budget="pauses",
    needs=("timed",),
    looks_at="The timed steps that are far longer than the others for a reason that is neither "
    "their data nor their forward, backward or update; and calls in the source that would be: "
    "checkpoints, evaluations, figures.",
    threshold="Two pauses or more, each longer than a whole step, in no more than a third of the "
    "steps, and 2 % of all time; of evaluations, a quarter of it.",
    why="While a checkpoint is serialised and written, or an evaluation runs sample by sample, "
    "nothing is trained. The step's time does not show it, since pauses are left out of it; the "
    "run's length does.",
    fix="Write from a thread, from a copy in host memory; or less often:\n\n"
    "```python\n"
    "state = {k: v.detach().to('cpu', copy=True) for k, v in model.state_dict().items()}\n"
    "Thread(target=torch.save, args=(state, path)).start()\n"
    "```\n\n"
    "`torch.distributed.checkpoint.async_save` does that for sharded models. Evaluate with "
    "`torch.inference_mode()`, larger batches and workers that persist; less often if each costs "
    "as much as an epoch.",
    wrong_when="Evaluation is work one wants: the bound says what it costs, not that it is wasted. "
    "The timed window is short: a pause at the end of a long epoch weighs more in it than over "
    "the whole run.",
)


class _Pauses(Struct, frozen=True):
    steps: tuple[Step, ...]
    lost_ns: float
    whole_ns: float
    kind: Literal["evaluation", "other"]
    between: int
    """Steps from one pause to the next."""


def look(case: Case) -> Iterator[Finding]:
    seen = _pauses(case)
    if seen is None or not seen.whole_ns:
        return
    share = seen.lost_ns / seen.whole_ns
    if share < (EVALUATION if seen.kind == "evaluation" else LEAST) or _restarts(case, seen):
        return
    cause = _cause(case, seen)
    if cause is None and seen.kind == "other" and not (seen.between and len(seen.steps) >= REGULAR):
        return
    each = seen.lost_ns / len(seen.steps) / 1e9
    name = _named(seen, cause)
    said = [
        Evidence(
            what="pauses",
            text=f"{len(seen.steps)} of {units.seconds(each)} each"
            + (f", every {units.plural(seen.between, 'step')}" if seen.between else ""),
            value=each,
        ),
        Evidence(what="of all time", text=units.percent(share), value=share),
    ]
    if cause is not None:
        where = f"{cause.call.text}, line {cause.call.line}"
        said.append(Evidence(what="the source says", text=where, source="read"))
    yield found(
        RULE,
        claim=f"training stands still {units.percent(share)} of the time: {name} takes "
        f"{units.seconds(each)}"
        + (f" after every {units.plural(seen.between, 'step')}" if seen.between else ""),
        share=share,
        confidence=_level(seen, cause),
        place=Place(file=cause.call.file, line=cause.call.line) if cause is not None else None,
        evidence=said,
        change=_change(seen, cause),
        doubt="an evaluation is work one wants" if seen.kind == "evaluation" else "",
    )


def _pauses(case: Case) -> _Pauses | None:
    """Steps that hold a pause. Those that follow a trace of ours are not light, and not looked at;
    compiling is another matter."""
    light = [s for s in case.steps if s.window == "light" and s.dur_ns > 0 and not s.compile_ns]
    light = light[case.times.warmup_steps and 1 :]
    if len(light) < FEWEST:
        return None
    device = case.times.clock == "device"
    usual = median(duration(s, device) for s in light)
    rests = median(_rest(s, device) for s in light)
    least = max(FAR * usual, LEAST_NS)
    far = [
        s for s in light
        if _rest(s, device) - rests >= least and duration(s, device) - usual >= least
    ]  # fmt: skip
    if len(far) < LIKELY or len(far) > MOST * len(light):
        return None
    lost = sum(min(_rest(s, device) - rests, duration(s, device) - usual) for s in far)
    evaluating = sum(_phase(s, "evaluation", device) for s in far)
    gaps = [b.index - a.index for a, b in pairwise(far)]
    return _Pauses(
        tuple(far),
        lost,
        sum(duration(s, device) for s in light),
        "evaluation" if evaluating >= lost / 2 else "other",
        round(median(gaps)) if gaps and max(gaps) <= 1.5 * min(gaps) else 0,
    )


def _restarts(case: Case, seen: _Pauses) -> bool:
    """Whether these are the starts of a loader's workers, of which another rule speaks."""
    loaders = case.capture.loaders if case.capture is not None else ()
    for loader in loaders:
        starts = set(loader.begun) if loader.workers and not loader.persistent_workers else set()
        if starts and all(starts & {s.index - 1, s.index, s.index + 1} for s in seen.steps):
            return True
    return False


def _rest(step: Step, device: bool) -> float:
    """What is neither data, nor forward, backward and update: of a step that was only timed, all
    of it, so that its length decides."""
    whole = duration(step, device)
    if not step.detailed:
        return whole
    named: tuple[Phase, ...] = ("input", "transfer", "forward", "backward", "optimizer")
    return whole - sum(_phase(step, phase, device) for phase in named)


def _phase(step: Step, phase: Phase, device: bool) -> float:
    clock = step.device if device and step.device_ns is not None else step.host
    return float(clock.get(phase, 0))


def _cause(case: Case, seen: _Pauses) -> PauseCall | None:
    """The call in the source that fits: an evaluation where modules ran in eval mode; of several
    the surest."""
    calls = pause_calls(case.sources, own_files(case))
    fits = [c for c in calls if (c.kind == "evaluation") == (seen.kind == "evaluation")]
    return next(iter(fits), None)


def _named(seen: _Pauses, cause: PauseCall | None) -> str:
    if cause is None:
        return "an evaluation" if seen.kind == "evaluation" else "something between steps"
    if cause.kind == "evaluation":
        return f"`{cause.call.name}()`"
    on = f"{cause.call.on}." if cause.call.on else ""
    return f"`{on}{cause.call.name}`"


def _level(seen: _Pauses, cause: PauseCall | None) -> Confidence:
    if seen.kind == "evaluation" or cause is None:
        return "low"
    return "high" if cause.kind == "checkpoint" else "medium"


def _change(seen: _Pauses, cause: PauseCall | None) -> str:
    if seen.kind == "evaluation":
        return (
            "with torch.inference_mode():   # larger batches, and less often\n    evaluate(model)"
        )
    if cause is None:
        return "ridgeline run --python …   # which line it is"
    if cause.kind == "checkpoint":
        return (
            "state = {k: v.detach().to('cpu', copy=True) for k, v in model.state_dict().items()}\n"
            f"Thread(target={cause.call.on + '.' if cause.call.on else ''}{cause.call.name}, "
            "args=(state, path)).start()   # or less often"
        )
    return f"if epoch % 10 == 0:   # less often\n    {cause.call.text}"
