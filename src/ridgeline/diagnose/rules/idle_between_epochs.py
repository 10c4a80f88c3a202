"""Training stands still now and then: a checkpoint is written, an evaluation run."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._loaders import loaders_seen, made_anew
from ridgeline.diagnose.rules._machine import own_files
from ridgeline.diagnose.source.calls import SourceCall
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
NEAR = 0.25
"""The same, where the source has a call that fits and the pauses come evenly: stalls do not."""
LEAST_NS = 5_000_000
FEWEST = 8
"""Timed steps: fewer do not tell a pause from how the program runs."""
MOST = 0.4
"""Of the steps: what happens in every other is part of the step, not between them."""
LIKELY = 2
"""Pauses: one alone may be the machine's."""
REGULAR = 3
"""Pauses, evenly apart, that are believed with nothing in the source to explain them."""
MOST_NAMED = 3
EVEN = 0.6
"""Of the distances between pauses that are the usual one: a stall in between makes two others."""

RULE = Rule(
    id="idle-between-epochs",
    family="machine",
    title="Training pauses between steps",
    budget="pauses",
    needs=("timed",),
    looks_at="The timed steps that are far longer than the others for a reason that is neither "
    "their data nor their forward, backward or update; and calls in the source that would be: "
    "checkpoints, evaluations, figures. Where several calls of one function may take the time, the "
    "function is named.",
    threshold="Two pauses or more, in no more than two fifths of the steps, and 2 % of all time; "
    "of evaluations, a quarter of it. Each is longer than a whole step; than a quarter of one "
    "where they come evenly and the training loop has a call that explains them.",
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
    """Steps from one pause to the next; 0: not evenly."""

    @property
    def share(self) -> float:
        return self.lost_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def regular(self) -> bool:
        return self.between > 1 and len(self.steps) >= REGULAR  # one after the other: a stall


def look(case: Case) -> Iterator[Finding]:
    light = _light(case)
    if len(light) < FEWEST:
        return
    calls = pause_calls(case.sources, own_files(case))
    evaluations = next((c for c in calls if c.kind == "evaluation"), None)
    others = next((c for c in calls if c.kind != "evaluation"), None)
    device = case.times.clock == "device"
    drawn = (
        (_evaluations(light, device, evaluations), evaluations),
        (_others(light, device, others), others),
    )
    for seen, cause in drawn:
        if seen is not None and not _restarts(case, seen):
            yield _finding(seen, cause)


def _finding(seen: _Pauses, cause: PauseCall | None) -> Finding:
    share, each = seen.share, seen.lost_ns / len(seen.steps) / 1e9
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
        said.append(Evidence(what="the source says", text=_read(cause), source="read"))
    at = _at(cause)
    return found(
        RULE,
        claim=f"training stands still {units.percent(share)} of the time: {name} takes "
        f"{units.seconds(each)}"
        + (f" after every {units.plural(seen.between, 'step')}" if seen.between else ""),
        share=share,
        confidence=_level(seen, cause),
        place=Place(file=at.file, line=at.line) if at is not None else None,
        evidence=said,
        change=_change(seen, cause),
        doubt="an evaluation is work one wants" if seen.kind == "evaluation" else "",
    )


def _light(case: Case) -> list[Step]:
    """Those that follow a trace of ours are not light, and not looked at; compiling is another
    matter."""
    light = [s for s in case.steps if s.window == "light" and s.dur_ns > 0 and not s.compile_ns]
    return light[case.times.warmup_steps and 1 :]


def _evaluations(light: list[Step], device: bool, cause: PauseCall | None) -> _Pauses | None:
    """As the steps' own phases have them. Later only some steps are looked into, which may fall
    together with the evaluations: the first ones, all looked into, are taken if they suffice."""
    first = next((i for i, s in enumerate(light) if not s.detailed), len(light))
    known = light[:first]
    if sum(1 for s in known if _phase(s, "evaluation", device)) < LIKELY or first < FEWEST:
        known = [s for s in light if s.detailed]
    holding = [s for s in known if _phase(s, "evaluation", device) > 0]
    often = len(holding) > MOST * len(known)
    if len(holding) < LIKELY or (often and cause is None):
        return None  # a frozen teacher that is asked in every step is no evaluation
    lost = sum(_phase(s, "evaluation", device) for s in holding)
    whole = sum(duration(s, device) for s in known)
    seen = _Pauses(tuple(holding), lost, whole, "evaluation", _between(holding, light))
    return seen if seen.share >= EVALUATION else None


def _others(light: list[Step], device: bool, cause: PauseCall | None) -> _Pauses | None:
    """Neither data, nor forward, backward and update, nor evaluation. Where there are
    evaluations, a step that was only timed may be long for one of them."""
    if any(_phase(s, "evaluation", device) for s in light):
        light = [s for s in light if s.detailed]
        if len(light) < FEWEST:
            return None
    if cause is not None:
        near = _pauses(light, device, NEAR)
        if near is not None and near.regular and near.share >= LEAST:
            return near
    far = _pauses(light, device, FAR)
    if far is None or far.share < LEAST:
        return None
    # steps that were only timed may be long for any reason
    looked_into = any(s.detailed for s in far.steps)
    believed = far.regular if cause is None else looked_into or far.regular
    return far if believed else None


def _pauses(light: list[Step], device: bool, far: float) -> _Pauses | None:
    usual = median(duration(s, device) for s in light)
    looked_into = _longer([s for s in light if s.detailed], device, max(far * usual, LEAST_NS))
    timed = _longer([s for s in light if not s.detailed], device, max(FAR * usual, LEAST_NS))
    held = sorted([*looked_into, *timed], key=lambda pair: pair[0].index)
    if len(held) < LIKELY or len(held) > MOST * len(light):
        return None
    steps = [s for s, _ in held]
    whole = sum(duration(s, device) for s in light)
    return _Pauses(tuple(steps), sum(ns for _, ns in held), whole, "other", _between(steps, light))


def _longer(alike: list[Step], device: bool, least: float) -> list[tuple[Step, float]]:
    """Of steps known alike (looked into, or only timed) those that hold a pause, and how long."""
    if not alike:
        return []
    rests = median(_rest(s, device) for s in alike)
    over = [(s, _rest(s, device) - rests) for s in alike]
    return [(s, ns) for s, ns in over if ns >= least]


def _between(far: list[Step], light: list[Step]) -> int:
    """Steps from one pause to the next, where they come evenly. A distance across steps of ours,
    traced or not timed, may hold a pause that was not looked at."""
    known = {s.index for s in light}
    gaps = [
        b.index - a.index
        for a, b in pairwise(far)
        if all(index in known for index in range(a.index, b.index))
    ]
    if not gaps:
        return 0
    usual = round(median(gaps))
    alike = sum(1 for gap in gaps if abs(gap - usual) <= max(usual / 4, 0.5))
    return usual if alike >= EVEN * len(gaps) else 0


def _restarts(case: Case, seen: _Pauses) -> bool:
    """Whether these are the starts of a loader's workers, of which another rule speaks. Starts are
    seen only in steps that are looked into: those only timed are taken for what these are."""
    known = [s for s in seen.steps if s.detailed] or seen.steps
    for loader in loaders_seen(case):
        again = not loader.persistent_workers or made_anew(case, loader)
        starts = set(loader.begun) if loader.workers and again else set()
        if starts and all(starts & {s.index - 1, s.index, s.index + 1} for s in known):
            return True
    return False


def _rest(step: Step, device: bool) -> float:
    """What is neither data, nor forward, backward, update and evaluation: of a step that was only
    timed, all of it, so that its length decides. Between data and forward, `transfer`, is in it: a
    checkpoint at an epoch's end comes after the loader's last look, and is booked there. The usual
    copies of a batch go out with the median."""
    whole = duration(step, device)
    if not step.detailed:
        return whole
    named: tuple[Phase, ...] = ("input", "forward", "backward", "optimizer", "evaluation")
    return whole - sum(_phase(step, phase, device) for phase in named)


def _phase(step: Step, phase: Phase, device: bool) -> float:
    clock = step.device if device and step.device_ns is not None else step.host
    return float(clock.get(phase, 0))


def _named(seen: _Pauses, cause: PauseCall | None) -> str:
    if cause is None:
        return "an evaluation" if seen.kind == "evaluation" else "something between steps"
    if cause.kind == "evaluation":
        return f"`{cause.call.name}()`" if cause.call.name != "eval" else "an evaluation"
    if not _others_too(cause):
        return f"`{_callee(cause.call)}`"
    if cause.around is not None:
        return f"`{_callee(cause.around)}()`"
    names = dict.fromkeys(f"`{_callee(call)}`" for call in _all(cause))
    return " or ".join([*names][:MOST_NAMED])


def _others_too(cause: PauseCall) -> bool:
    """Whether calls of another name may take the time as well: which one does is not measured."""
    return any(call.name != cause.call.name for call in cause.beside)


def _all(cause: PauseCall) -> list[SourceCall]:
    return sorted([cause.call, *cause.beside], key=lambda call: call.line)


def _callee(call: SourceCall) -> str:
    """As written where what it is called on is a name; `.tolist` of an expression."""
    on = call.on if call.on.replace(".", "").isidentifier() else ""
    return f"{on}.{call.name}" if call.on else call.name


def _at(cause: PauseCall | None) -> SourceCall | None:
    if cause is None:
        return None
    return cause.around if cause.around is not None and _others_too(cause) else cause.call


def _read(cause: PauseCall) -> str:
    if not _others_too(cause):
        return f"{cause.call.text}, line {cause.call.line}"
    said = ", ".join(f"{_callee(call)} in line {call.line}" for call in _all(cause))
    return f"{said}: which of them takes the time is not measured"


def _level(seen: _Pauses, cause: PauseCall | None) -> Confidence:
    if cause is None:
        return "low"
    return "high" if cause.kind == "checkpoint" and not _others_too(cause) else "medium"


def _change(seen: _Pauses, cause: PauseCall | None) -> str:
    if seen.kind == "evaluation":
        called = cause is not None and cause.call.name != "eval"
        text = cause.call.text if cause is not None and called else "evaluate(model)"
        return f"with torch.inference_mode():   # larger batches, and less often\n    {text}"
    if cause is None:
        return "ridgeline run --python …   # which line it is"
    if _others_too(cause):
        at = cause.around or cause.call
        return f"if epoch % 10 == 0:   # less often, or from a thread\n    {at.text}{_slow(cause)}"
    if cause.kind == "checkpoint":
        return (
            "state = {k: v.detach().to('cpu', copy=True) for k, v in model.state_dict().items()}\n"
            f"Thread(target={cause.call.on + '.' if cause.call.on else ''}{cause.call.name}, "
            "args=(state, path)).start()   # or less often"
        )
    return f"if epoch % 10 == 0:   # less often\n    {cause.call.text}"


def _slow(cause: PauseCall) -> str:
    lists = next((call for call in _all(cause) if call.name == "tolist"), None)
    if lists is None:
        return ""
    return f"\n# line {lists.line}: tolist() makes a Python number of each value; keep the tensor"
