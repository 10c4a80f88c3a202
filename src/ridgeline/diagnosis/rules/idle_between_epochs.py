"""Training stands still now and then: a checkpoint is written, an evaluation run."""

import ast
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._loaders import loaders_seen, made_anew
from ridgeline.diagnosis.step_times import duration
from ridgeline.records.finding import Confidence, Finding
from ridgeline.records.run import PauseSeen, Phase, Step
from ridgeline.records.trace import Place
from ridgeline.source.calls import (
    PauseKind,
    SourceCall,
    call_on_line,
    evaluates,
    kind_of,
    start_of_statement,
)

MIN_SHARE = 0.02
MIN_EVALUATION_SHARE = 0.25
"""Share of all time. An evaluation is work one wants, and below this hardly a fault."""
PAUSE_STEPS = 1.0
"""Median steps that a pause is longer than the rest of its kind. A step that only stalls for a
scheduler's slice is no pause of the program's."""
SEEN_PAUSE_STEPS = 0.25
"""The same limit if a line was seen running in the pauses and they come evenly, which stalls of the
machine do not."""
MIN_PAUSE_NS = 5_000_000
MIN_STEPS = 8
"""Timed steps. Fewer do not tell a pause from how the program runs."""
MAX_PAUSED_STEPS_SHARE = 0.4
"""Share of the steps. What happens in every other step is part of the step."""
MIN_PAUSES = 2
"""Pauses. A single one may be the machine's."""
MIN_REGULAR_PAUSES = 3
"""This many pauses, evenly apart, are believed though no line was seen running in them."""
MIN_PAUSES_SEEN = 2
"""Number of pauses in which a line must be seen: a single one may be a stall of the machine. For a
call that is known to take long (a checkpoint), one pause is enough."""
MIN_DOMINANT_SHARE = 0.6
"""Share of the sampled time that a line must take to be the reason of a pause. If it takes less,
its caller may be the reason."""
_PAUSING_PHASES = ("", "other", "transfer", "evaluation")
"""Phases whose samples count. A late step is also sampled in its forward or backward, after the
pause."""
MIN_EVEN_SHARE = 0.6
"""Share of the distances between pauses that are the usual one. A stall in between makes two
others."""

RULE = Rule(id="idle-between-epochs", family="machine", budget="pauses", needs=("timed",))


class _Pauses(Struct, frozen=True):
    steps: tuple[Step, ...]
    lost_ns: float
    whole_ns: float
    kind: Literal["evaluation", "other"]
    between: int
    """Steps from one pause to the next; 0 if they do not come evenly."""

    @property
    def share(self) -> float:
        return self.lost_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def regular(self) -> bool:
        return (
            self.between > 1 and len(self.steps) >= MIN_REGULAR_PAUSES
        )  # one after the other: a stall


class PausePlace(Struct, frozen=True, kw_only=True):
    path: tuple[Place, ...]
    """The call stack, from the outermost of the user's functions to the line that took the time."""
    share: float
    """Share of the sampled time that the line took."""
    pauses: int
    """Number of pauses in which the line was seen."""

    @property
    def place(self) -> Place:
        return self.path[-1]


class _Cause(Struct, frozen=True):
    """The line or function that was running during pauses."""

    seen: PausePlace | None
    """The line sampled during the pauses. None if only the evaluating function is known, from its
    first call of the model."""
    place: Place
    call: SourceCall | None
    """The call that the line makes."""
    name: str
    kind: PauseKind

    @property
    def innermost(self) -> Place:
        """The line in the function that took the time; `place` may be the line that calls it."""
        return self.seen.place if self.seen is not None else self.place


def look(case: Case) -> Iterator[Finding]:
    light = _light(case)
    if len(light) < MIN_STEPS:
        return
    device = case.times.clock == "device"
    for seen, cause in (_evaluations(case, light, device), _others(case, light, device)):
        if seen is not None and not _restarts(case, seen):
            yield _finding(case, seen, cause)


def _finding(case: Case, seen: _Pauses, cause: _Cause | None) -> Finding:
    share, each = seen.share, seen.lost_ns / len(seen.steps) / 1e9
    unknown = "an evaluation" if seen.kind == "evaluation" else "something between steps"
    name = cause.name if cause is not None else unknown
    each_, every = units.seconds(each), units.plural(seen.between, "step")
    facts = [
        measured(
            "pauses",
            f"{len(seen.steps)} of {each_} each" + (f", every {every}" if seen.between else ""),
            each,
        ),
        measured("of all time", units.percent(share), share),
    ]
    if cause is not None and cause.seen is not None:
        text = f"line {cause.place.line}, {units.percent(cause.seen.share)} of the time in "
        text += units.plural(cause.seen.pauses, "sampled pause")
        facts.append(measured("seen running", text, cause.seen.share))
    return make_finding(
        RULE,
        claim=f"training stands still {units.percent(share)} of the time: {name} takes "
        f"{each_}" + (f" after every {every}" if seen.between else ""),
        share=share,
        confidence=_level(seen, cause),
        place=cause.place if cause is not None else None,
        evidence=facts,
        change=_change(case, seen, cause),
        doubt=_doubt(seen, cause),
    )


def _light(case: Case) -> list[Step]:
    """Return the light steps. Those that follow a trace of ours are not light, and compiling is
    another matter."""
    light = [s for s in case.steps if s.window == "light" and s.dur_ns > 0 and not s.compile_ns]
    return light[case.times.warmup_steps and 1 :]


def _evaluations(
    case: Case, light: list[Step], device: bool
) -> tuple[_Pauses | None, _Cause | None]:
    """Return the evaluations, as the steps' own phases have them. Later only some steps are looked
    into, which may fall together with the evaluations: the first ones, all looked into, are taken
    if they suffice."""
    first = next((i for i, s in enumerate(light) if not s.detailed), len(light))
    known = light[:first]
    if sum(1 for s in known if _phase(s, "evaluation", device)) < MIN_PAUSES or first < MIN_STEPS:
        known = [s for s in light if s.detailed]
    holding = [s for s in known if _phase(s, "evaluation", device) > 0]
    cause = _evaluation_cause(case, holding)
    often = len(holding) > MAX_PAUSED_STEPS_SHARE * len(known)
    named = cause is not None and evaluates(case.sources, cause.innermost)
    if len(holding) < MIN_PAUSES or (often and not named):
        return None, None  # a frozen teacher that every step calls is no evaluation
    lost = sum(_phase(s, "evaluation", device) for s in holding)
    whole = sum(duration(s, device) for s in known)
    seen = _Pauses(tuple(holding), lost, whole, "evaluation", _between(holding, light))
    return (seen, cause) if seen.share >= MIN_EVALUATION_SHARE else (None, None)


def _others(case: Case, light: list[Step], device: bool) -> tuple[_Pauses | None, _Cause | None]:
    """Return the pauses that are neither data, nor forward, backward and update, nor evaluation. If
    there are evaluations, a step that was only timed may be long for one of them."""
    if any(_phase(s, "evaluation", device) for s in light):
        light = [s for s in light if s.detailed]
        if len(light) < MIN_STEPS:
            return None, None
    near = _pauses(light, device, SEEN_PAUSE_STEPS)
    if near is not None and near.regular and near.share >= MIN_SHARE:
        cause = _cause(case, near.steps)
        if cause is not None and not _may_be_preemption(case, near, cause):
            return near, cause
    far = _pauses(light, device, PAUSE_STEPS)
    if far is None or far.share < MIN_SHARE:
        return None, None
    cause = _cause(case, far.steps)
    # steps that were only timed may be long for any reason
    looked_into = any(s.detailed for s in far.steps)
    believed = far.regular or (cause is not None and looked_into)
    if not believed or _may_be_preemption(case, far, cause):
        return None, None
    return far, cause


def _may_be_preemption(case: Case, seen: _Pauses, cause: _Cause | None) -> bool:
    """Return whether other programs held the processors for at least as long as the pauses took.
    Whatever line runs when the program is interrupted is then sampled in a pause: on two cores with
    a load of 14, `loss.backward` was called a pause of 52 % of the time. Only a call that is known
    to take long, such as a checkpoint, is believed beside that."""
    known = cause is not None and cause.kind != "other"
    return not known and seen.share <= (case.telemetered.preempted_share or 0.0)


def _cause(case: Case, steps: tuple[Step, ...]) -> _Cause | None:
    """Return the line that was seen running in these steps, or None if it was not seen often
    enough."""
    pauses = case.capture.pauses if case.capture is not None else ()
    seen = pause_place(pauses, {step.index for step in steps})
    if seen is None:
        return None
    call = call_on_line(case.sources, seen.place)
    kind = kind_of(call)
    if seen.pauses < MIN_PAUSES_SEEN and kind == "other":
        return None
    name = f"`{_callee(call)}`" if call is not None else f"line {seen.place.line}"
    return _Cause(seen, seen.place, call, name, kind)


def _evaluation_cause(case: Case, steps: list[Step]) -> _Cause | None:
    """Return the function that evaluates. If it was sampled in late steps, its place is the line
    that calls it; else its place is the model's first call in eval mode."""
    if case.capture is None or not steps:
        return None
    evaluating = [one for one in case.capture.pauses if one.phase in ("", "evaluation")]
    seen = pause_place(evaluating, {step.index for step in steps})
    if seen is not None:
        above = seen.path[-2] if len(seen.path) > 1 else seen.place
        function = seen.place.function.rpartition(".")[2]
        call = call_on_line(case.sources, above, function)
        name = f"`{function}()`" if len(seen.path) > 1 else "an evaluation"
        return _Cause(seen, above, call, name, "other")
    first = [module.evaluation_place for module in case.capture.modules if not module.loss]
    place = next((at for text in first if (at := place_of_frame(text)) is not None), None)
    if place is None:
        return None
    function = place.function.rpartition(".")[2]
    name = f"`{function}()`" if function.isidentifier() else "an evaluation"
    return _Cause(None, place, None, name, "other")


def _pauses(light: list[Step], device: bool, far: float) -> _Pauses | None:
    usual = median(duration(s, device) for s in light)
    looked_into = _longer([s for s in light if s.detailed], device, max(far * usual, MIN_PAUSE_NS))
    timed = _longer(
        [s for s in light if not s.detailed], device, max(PAUSE_STEPS * usual, MIN_PAUSE_NS)
    )
    held = sorted([*looked_into, *timed], key=lambda pair: pair[0].index)
    if len(held) < MIN_PAUSES or len(held) > MAX_PAUSED_STEPS_SHARE * len(light):
        return None
    steps = [s for s, _ in held]
    whole = sum(duration(s, device) for s in light)
    return _Pauses(tuple(steps), sum(ns for _, ns in held), whole, "other", _between(steps, light))


def _longer(alike: list[Step], device: bool, least: float) -> list[tuple[Step, float]]:
    """Return those of steps known alike (looked into, or only timed) that hold a pause, and its
    length."""
    if not alike:
        return []
    rests = median(_rest(s, device) for s in alike)
    over = [(s, _rest(s, device) - rests) for s in alike]
    return [(s, ns) for s, ns in over if ns >= least]


def _between(far: list[Step], light: list[Step]) -> int:
    """Return the steps from one pause to the next if they come evenly, else 0. A distance across
    steps of ours, traced or not timed, may hold a pause that was not looked at."""
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
    return usual if alike >= MIN_EVEN_SHARE * len(gaps) else 0


def _restarts(case: Case, seen: _Pauses) -> bool:
    """Return whether these are starts of a loader's workers, which another rule reports. Starts are
    seen only in steps that are looked into: steps that were only timed are taken for the same."""
    known = [s for s in seen.steps if s.detailed] or seen.steps
    for loader in loaders_seen(case):
        again = not loader.persistent_workers or made_anew(case, loader)
        starts = set(loader.begun) if loader.workers and again else set()
        if starts and all(starts & {s.index - 1, s.index, s.index + 1} for s in known):
            return True
    return False


def _rest(step: Step, device: bool) -> float:
    """Return what is neither data, nor forward, backward, update and evaluation; for a step that
    was only timed its whole length. `transfer`, between data and forward, counts: a checkpoint at
    the end of an epoch comes after the loader's last look and is booked there. The usual copies
    of a batch go out with the median."""
    whole = duration(step, device)
    if not step.detailed:
        return whole
    named: tuple[Phase, ...] = ("input", "forward", "backward", "optimizer", "evaluation")
    return whole - sum(_phase(step, phase, device) for phase in named)


def _phase(step: Step, phase: Phase, device: bool) -> float:
    clock = step.device if device and step.device_ns is not None else step.host
    return float(clock.get(phase, 0))


def _callee(call: SourceCall) -> str:
    """Return what is called, as written if it is called on a name; `.tolist` of an expression."""
    on = call.on if call.on.replace(".", "").isidentifier() else ""
    return f"{on}.{call.name}" if call.on else call.name


def _level(seen: _Pauses, cause: _Cause | None) -> Confidence:
    if cause is None:
        return "low"
    if seen.kind == "evaluation" or cause.seen is None or cause.seen.pauses < MIN_PAUSES_SEEN:
        return "medium"
    return "high"


def _doubt(seen: _Pauses, cause: _Cause | None) -> str:
    if seen.kind == "evaluation":
        return "the evaluation may be needed as it is"
    return "" if cause is not None else "no line was seen running in the pauses"


def _change(case: Case, seen: _Pauses, cause: _Cause | None) -> str:
    text = _statement(case, cause) if cause is not None else ""
    if seen.kind == "evaluation":
        text = text or "evaluate(model)"
        return f"with torch.inference_mode():   # larger batches, and less often\n    {text}"
    if cause is None:
        return "ridgeline run --python …   # which line it is"
    if cause.kind == "checkpoint" and cause.call is not None:
        thread = _in_a_thread(cause.call)
        if thread:
            return thread
    often = f"every {units.plural(seen.between, 'step')} now: " if seen.between else ""
    change = f"# {often}less often, or outside the training loop\n{text}"
    if cause.kind == "conversion":
        change += "\n# tolist() makes a Python number of each value: keep the tensor"
    return change


def _statement(case: Case, cause: _Cause) -> str:
    """Return the call on the line that was seen, with what it is assigned to, if that is a single
    line; else the source line itself."""
    source = case.sources.get(cause.place.file)
    line = source.line(cause.place.line) if source is not None else ""
    if cause.call is not None:
        written = start_of_statement(case.sources, cause.call) + cause.call.text
        return written if "\n" not in written else line
    return line


def _in_a_thread(call: SourceCall) -> str:
    """Return code that saves a copy with `torch.save` from a thread, or "" if the call is not
    `torch.save`."""
    made = call.node
    if made is None or len(made.args) < 2 or call.on != "torch":
        return ""
    kept, path = ast.unparse(made.args[0]), ast.unparse(made.args[1])
    if kept.endswith(".state_dict()"):
        copied = "{k: v.detach().to('cpu', copy=True) for k, v in " + kept + ".items()}"
    else:
        copied = f"copy.deepcopy({kept})"
    imported = "threading" if "deepcopy" not in copied else "copy, threading"
    return (
        f"import {imported}\nstate = {copied}\n"
        f"threading.Thread(target=torch.save, args=(state, {path})).start()   # or less often"
    )


def pause_place(seen: Sequence[PauseSeen], steps: Collection[int]) -> PausePlace | None:
    """Return the deepest line that took most of the sampled time in these steps. Return None if the
    steps were not sampled, or if no line stands out."""
    looks = [
        one for one in seen if one.step in steps and one.phase in _PAUSING_PHASES and one.frames
    ]
    total = sum(look.seconds for look in looks)
    path: tuple[str, ...] = ()
    share = 0.0
    while looks:
        spent: dict[str, float] = {}
        for look in looks:
            if len(look.frames) > len(path):
                frame = look.frames[-1 - len(path)]
                spent[frame] = spent.get(frame, 0.0) + look.seconds
        most = max(spent, key=lambda frame: spent[frame], default="")
        if not total or spent.get(most, 0.0) < MIN_DOMINANT_SHARE * total:
            break
        looks = [o for o in looks if len(o.frames) > len(path) and o.frames[-1 - len(path)] == most]
        path, share = (*path, most), spent[most] / total
        held = {look.step for look in looks}
    places = tuple(place for frame in path if (place := place_of_frame(frame)) is not None)
    return PausePlace(path=places, share=share, pauses=len(held)) if places else None


def place_of_frame(frame: str) -> Place | None:
    """Return the place for a text file:line:function, or None if the text has no line number."""
    file, line, function = [*frame.rsplit(":", 2), "", ""][:3]
    if not line.isdecimal():
        return None
    return Place(file=file, line=int(line), function=function)
