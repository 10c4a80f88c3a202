"""A changed program's trial against the unchanged one's: whether both compute the same, and what
could not be asked."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ridgeline.equality.differences import small
from ridgeline.equality.trials.counts import counted, data
from ridgeline.equality.trials.distances import of_evaluation
from ridgeline.equality.trials.losses import direction, finite, later, level, steps_told, trajectory
from ridgeline.equality.trials.noise_bands import OWN, Band, band_of
from ridgeline.equality.trials.outputs import anchored, tells_nothing
from ridgeline.equality.trials.parameters import NEVER, doubtful, movement, state, telling
from ridgeline.records.parity import MEANS, Alters, Check, Equality, Parity
from ridgeline.records.trial import TensorPrint, Trial
from ridgeline.units import plural

FEW = 3
"""Fewer watched steps than this: the second step is the first that depends on an update."""
WIDE = 0.1
"""A band wider than this at the first step tells nothing apart: the program varies by itself."""
APART = 0.2
"""Of their norm: outputs of a change that alters what is computed, and are still like them."""
_ORDER: tuple[Equality, ...] = ("equal", "weak", "unknown", "differs")


def compare(
    baseline: Sequence[Trial],
    candidate: Trial | Sequence[Trial],
    alters: Alters,
    precision: str = "float32",
    redrawn: str = "",
) -> Parity:
    """`baseline`: repeats of the unchanged program; those with a jitter say what rounding alone
    does to it. Of several candidates' trials the worst counts. `precision`: the lowest that the
    changed program computes in. `redrawn`: why its losses cannot be the baseline's, though its data
    are."""
    repeats = [_named(trial) for trial in baseline if trial.jitter == 0]
    given = [candidate] if isinstance(candidate, Trial) else candidate
    candidates = [_named(trial) for trial in given]
    if not repeats or not candidates:
        return Parity(equality="unknown", why="there is no trial to compare")
    jitters = [_named(trial) for trial in baseline if trial.jitter > 0]
    band = band_of(repeats, jitters, alters, precision)
    found = [_one(repeats, jitters, trial, alters, band, redrawn) for trial in candidates]
    return max(found, key=lambda parity: _ORDER.index(parity.equality))


def _one(
    repeats: Sequence[Trial],
    jitters: Sequence[Trial],
    candidate: Trial,
    alters: Alters,
    band: Band,
    redrawn: str,
) -> Parity:
    base = repeats[0]
    if not _anything(base) or not _anything(candidate):
        who = "baseline" if not _anything(base) else "changed program"
        return Parity(equality="unknown", why=f"nothing was seen of the {who}")
    if alters == "semantics":
        return _alike(base, candidate)
    missing = list(_missing(repeats, candidate, band))
    others = _same_data(repeats, candidate, band)
    missing += [why for why in (others, redrawn) if why]
    check, note = finite(base, candidate)
    checks = [check, *counted(base, candidate)]
    if not others:
        checks += data(base, candidate, band.data)
    steps = len(candidate.watched)
    if others or redrawn:
        checks += _course(repeats, candidate)
        checks += movement(base, candidate, band)
    else:
        checks += anchored(repeats, candidate, band, jitters if alters == "rounding" else ())
        checks += [*trajectory(base, candidate, band), *state(base, candidate, band)]
        steps = steps_told(base, candidate, band) or steps
        until = telling(base, candidate, band)
        if until == NEVER:
            missing.append("rounding alone turns even the first gradients")
        elif until:
            note = note or f"{until} compared: later ones rounding alone turns as it likes"
    checks += later([*repeats, *jitters], candidate, band, same_data=not others)
    missing += [check.text for check in checks if check.doubt]
    if len(repeats) == 1 and not all(check.passed for check in checks):
        missing.append("the baseline ran once, so that its own variation is not known")
    return _concluded(checks, missing, note, steps)


def _course(repeats: Sequence[Trial], candidate: Trial) -> list[Check]:
    """Of the losses, beside the repeat they are most like: each of these began as it liked. One
    that asks nothing (two losses, a NaN) is like any, and counts where no other is."""
    found = [[*direction(base, candidate), *level(base, candidate)] for base in repeats]
    asked = [checks for checks in found if checks] or [[]]
    return min(asked, key=lambda checks: sum(not check.passed for check in checks))


def _concluded(checks: list[Check], missing: list[str], note: str, steps: int) -> Parity:
    if any(not check.passed for check in checks):
        why, equality = why_differs(checks), "differs"
    elif not any(check.difference is not None for check in checks if check.what != "data"):
        why, equality = "nothing that both computed was seen", "unknown"
    else:
        why = why_equal(checks, steps) or "what was counted is equal"
        equality = "weak" if missing else "equal"
        why += f"; weak: {missing[0]}" if missing else f"; {note}" if note else ""
    known: Equality = equality  # type: ignore[assignment]
    return Parity(equality=known, why=why, checks=tuple(checks), missing=tuple(missing))


def _alike(base: Trial, candidate: Trial) -> Parity:
    checks = tuple(direction(base, candidate))
    missing = ("the change alters what is computed: equality is not asked",)
    if any(not check.passed for check in checks):
        return Parity(equality="differs", why=why_differs(checks), checks=checks, missing=missing)
    if not checks and not any(step.backwards for step in base.watched):
        return _by_outputs(base, candidate, missing)
    if not checks:
        why = "the change alters what is computed, and no losses show how"
        return Parity(equality="unknown", why=why, missing=missing)
    return Parity(
        equality="weak", why=f"{checks[0].text}; weak: {missing[0]}", checks=checks, missing=missing
    )


def _by_outputs(base: Trial, candidate: Trial, missing: tuple[str, ...]) -> Parity:
    """Inference has no losses: how far the outputs moved is told, and is the user's to judge."""
    moved = [value for value in of_evaluation(base, candidate) if value is not None]
    if not moved:
        why = "the change alters what is computed, and no outputs show how"
        return Parity(equality="unknown", why=why, missing=missing)
    far = max(moved)
    check = Check(
        what="evaluation", passed=far < APART, difference=far, allowed=APART,
        text=f"outputs of the first batch are off by {small(far)} of their norm",
    )  # fmt: skip
    equality: Equality = "weak" if check.passed else "differs"
    why = f"{check.text}; weak: {missing[0]}" if check.passed else check.text
    return Parity(equality=equality, why=why, checks=(check,), missing=missing)


def _named(trial: Trial) -> Trial:
    """Tensors by the names the program gave them: a compiled or wrapped module adds its own."""
    return replace(
        trial,
        tensors=_plainly(trial.tensors),
        early=_plainly(trial.early),
        gradients=_plainly(trial.gradients),
        stood=tuple(map(_plain, trial.stood)),
    )


def _plainly(tensors: Sequence[TensorPrint]) -> tuple[TensorPrint, ...]:
    return tuple(replace(tensor, name=_plain(tensor.name)) for tensor in tensors)


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _anything(trial: Trial) -> bool:
    return bool(trial.watched or trial.tensors or trial.evaluation)


def _same_data(repeats: Sequence[Trial], candidate: Trial, band: Band) -> str:
    """Why equal data cannot be asked for; "" where they can. Workers that draw need not draw
    otherwise than they did: where every batch is seen and equal, the data are."""
    if not band.same_data:
        return "the baseline itself does not see the same data twice"
    if not band.repeatable:
        return "the baseline itself does not begin alike twice"
    base = repeats[0]
    if not (base.workers_draw or candidate.workers_draw):
        return ""
    seen = all(step.batch_sum is not None for step in (*base.watched, *candidate.watched))
    if seen and base.watched and all(check.passed for check in data(base, candidate, band.data)):
        return ""
    return "samples are made in worker processes that draw random numbers"


def _missing(repeats: Sequence[Trial], candidate: Trial, band: Band) -> Iterator[str]:
    base = repeats[0]
    steps = min(len(base.watched), len(candidate.watched))
    if steps < FEW:
        yield f"only {plural(steps, 'step')} watched"
    pairs = list(zip(base.watched, candidate.watched, strict=False))
    losses = sum(one.loss is not None and other.loss is not None for one, other in pairs)
    if losses == 0 and any(step.backwards for step in base.watched):
        yield "no losses were seen"
    elif 0 < losses < FEW <= steps:
        yield f"a loss was seen at {losses} of {plural(steps, 'step')} alone"
    if not base.tensors or not candidate.tensors:
        yield "the parameters were not seen"
    else:
        lost = {t.name for t in base.tensors} - {t.name for t in candidate.tensors}
        if lost:
            yield f"{plural(len(lost), 'tensor')} of the baseline were not found by name"
    moved = any(tensor.moved > 0 for tensor in base.tensors if not tensor.buffer)
    if base.tensors and not moved and any(step.backwards for step in base.watched):
        yield "no parameter moved: no update was seen"
    if blank := tells_nothing(base):
        yield blank
    doubted = doubtful(base, candidate, band)
    if doubted:
        yield f"{doubted[0]} went another way, perhaps by rounding alone: no jittered trial tells"
    if band.losses and band.losses[0] > WIDE:
        yield f"the baseline differs from itself by {small(band.losses[0] / OWN)} at its first step"


def why_differs(checks: Sequence[Check]) -> str:
    """Return the first check that failed, in words, and the names of the others."""
    first, *others = [check for check in checks if not check.passed]
    if not others:
        return first.text
    names = ", ".join(check.what for check in others[:3])
    return f"{first.text}; so do {names}{' …' if len(others) > 3 else ''}"


def why_equal(checks: Sequence[Check], steps: int) -> str:
    """Return "losses equal to 2e-7 over 8 steps, parameters to 3e-7"."""
    measured = {check.what: check.difference for check in checks}
    parts = [
        f"outputs {_equal_to(check.difference)} over {batches}"
        for check in checks
        if check.what == "outputs" and check.difference is not None and not check.doubt
        for batches in [plural(check.batches or 0, "batch", "batches")]
    ]
    parameters = "parameters"
    if measured.get(parameters) is None:
        early = ("parameters after 2 steps", "first gradients")
        parameters = next((what for what in early if measured.get(what) is not None), parameters)
    over = f" over {plural(steps, 'step')}"
    if (apart := measured.get(MEANS)) is not None:
        parts.append(f"{MEANS} {small(apart)} apart{over}")
    for what in ("losses", "gradient norms", parameters, "evaluation"):
        difference = measured.get(what)
        if difference is None:
            continue
        if parts:
            parts.append(f"{what} {f'to {small(difference)}' if difference else 'exactly'}")
        else:
            parts.append(f"{what} {_equal_to(difference)}{over}")
    return ", ".join(parts[:1] + parts[-2:] if len(parts) > 3 else parts)


def _equal_to(difference: float) -> str:
    return f"equal to {small(difference)}" if difference else "equal exactly"
