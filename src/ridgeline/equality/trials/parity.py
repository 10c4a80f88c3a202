"""Judges whether a changed program computes the same as the unchanged one, by their trials, and
names what could not be compared."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ridgeline.equality.differences import small
from ridgeline.equality.trials.counts import check_counts, check_data
from ridgeline.equality.trials.distances import of_evaluation
from ridgeline.equality.trials.losses import (
    check_direction,
    check_finite,
    check_later_steps,
    check_level,
    check_trajectory,
    count_informative_steps,
)
from ridgeline.equality.trials.noise_bands import REPEAT_FACTOR, Band, band_of, floor_of
from ridgeline.equality.trials.outputs import check_outputs, why_outputs_say_nothing
from ridgeline.equality.trials.parameters import (
    NEVER,
    check_movement,
    check_state,
    comparable_snapshot,
    unexplained,
)
from ridgeline.equality.trials.tokens import (
    check_given,
    check_tokens,
    first_other_token,
    gets_new_tokens_alone,
    until_other_token,
    writes_greedily,
)
from ridgeline.records.parity import MEANS, Alters, Check, Equality, Parity
from ridgeline.records.trial import TensorPrint, Trial
from ridgeline.units import plural

MIN_STEPS = 3
"""With fewer watched steps the answer is weak: the second step is the first that depends on an
update."""
MAX_FIRST_BAND = 0.1
"""A wider noise band at the first step shows nothing: the program varies by itself."""
MAX_OUTPUT_SHIFT = 0.2
"""Largest relative shift of the outputs under a fix that alters what is computed."""
_HALF_UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative change of a norm by rounding to these types."""
_ORDER: tuple[Equality, ...] = ("equal", "weak", "unknown", "differs")


def compare(
    baseline: Sequence[Trial],
    candidate: Trial | Sequence[Trial],
    alters: Alters,
    precision: str = "float32",
    redrawn: str = "",
    redraws_data: bool = False,
) -> Parity:
    """Compare the trials. `baseline` has repeats of the unchanged program; those with a jitter are
    perturbed runs, which show what rounding alone does to it. If there are several trials of the
    candidate, the worst counts. `precision` is the lowest that the changed program computes in.
    `redrawn` says why its losses cannot equal the baseline's although its data do; with
    `redraws_data` its data cannot either."""
    repeats = [_with_program_names(trial) for trial in baseline if trial.jitter == 0]
    given = [candidate] if isinstance(candidate, Trial) else candidate
    candidates = [_with_program_names(trial) for trial in given]
    if repeats and alters == "rounding":
        candidates = [_as_the_program_keeps_it(repeats[0], trial) for trial in candidates]
    if not repeats or not candidates:
        return Parity(equality="unknown", why="there is no trial to compare")
    perturbed = [_with_program_names(trial) for trial in baseline if trial.jitter > 0]
    base, floor = repeats[0], floor_of(alters, precision)
    greedy = writes_greedily(base)
    noise = perturbed if alters == "rounding" else []
    written = [[*check_tokens(repeats, noise, trial, floor)] for trial in candidates]
    if greedy:  # what follows an other token is another text
        repeats = [base, *(until_other_token(base, trial) for trial in repeats[1:])]
        perturbed = [until_other_token(base, trial) for trial in perturbed]
    band = band_of(repeats, perturbed, alters, precision)
    answers = [
        _compare_trial(repeats, perturbed, trial, alters, band, redrawn, redraws_data, tokens)
        for trial, tokens in zip(candidates, written, strict=True)
    ]
    return max(answers, key=lambda parity: _ORDER.index(parity.equality))


def _compare_trial(
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial],
    candidate: Trial,
    alters: Alters,
    band: Band,
    redrawn: str,
    redraws_data: bool,
    tokens: Sequence[Check],
) -> Parity:
    base = repeats[0]
    if not _has_results(base) or not _has_results(candidate):
        who = "baseline" if not _has_results(base) else "changed program"
        return Parity(equality="unknown", why=f"nothing was seen of the {who}")
    if alters == "semantics":
        return _compare_altered(base, candidate, tokens)
    if tokens and (other := first_other_token(base, candidate)) is not None:
        candidate = replace(candidate, watched=candidate.watched[: other.steps])
        base = replace(base, watched=base.watched[: other.steps])
        repeats = [base, *repeats[1:]]
    missing = list(_find_missing(repeats, candidate, band))
    other_data = _why_other_data(repeats, candidate, band) or (redrawn if redraws_data else "")
    missing += dict.fromkeys(why for why in (other_data, redrawn) if why)
    check, note = check_finite(base, candidate)
    checks = [*tokens, check, *check_counts(base, candidate)]
    cached = gets_new_tokens_alone(base, candidate)
    if not other_data:
        same = check_data(base, candidate, band.batch_sums)
        checks += [check_given(base, candidate)] if cached else same
    steps = len(candidate.watched)
    if other_data or redrawn:
        checks += _check_course(repeats, candidate)
        checks += check_movement(base, candidate, band)
    else:
        checks += check_outputs(repeats, candidate, band, perturbed if alters == "rounding" else ())
        checks += [*check_trajectory(base, candidate, band), *check_state(base, candidate, band)]
        steps = count_informative_steps(base, candidate, band) or steps
        snapshot = comparable_snapshot(base, candidate, band)
        if snapshot == NEVER:
            missing.append("rounding alone changes even the first gradients completely")
        elif snapshot:
            note = note or f"{snapshot} compared; after that rounding alone changes the parameters"
    checks += check_later_steps(
        [*repeats, *perturbed], candidate, band, same_data=not (other_data or cached)
    )
    missing += [check.text for check in checks if check.doubt]
    if len(repeats) == 1 and not all(check.passed for check in checks):
        missing.append("the baseline ran only once, so its own variation is unknown")
    return _conclude(checks, missing, note, steps)


def _check_course(repeats: Sequence[Trial], candidate: Trial) -> list[Check]:
    """Check the course of the losses against the repeat they resemble most, since each repeat
    begins differently. A repeat that allows no check (two losses, a NaN) counts only if all are
    such."""
    by_repeat = [
        [*check_direction(base, candidate), *check_level(base, candidate)] for base in repeats
    ]
    made = [checks for checks in by_repeat if checks] or [[]]
    return min(made, key=lambda checks: sum(not check.passed for check in checks))


def _conclude(checks: list[Check], missing: list[str], note: str, steps: int) -> Parity:
    if any(not check.passed for check in checks):
        why, equality = why_differs(checks), "differs"
    elif not any(check.difference is not None for check in checks if check.what != "data"):
        why, equality = "nothing was seen that both computed", "unknown"
    else:
        why = why_equal(checks, steps) or "what was counted is equal"
        equality = "weak" if missing else "equal"
        why += f"; weak: {missing[0]}" if missing else f"; {note}" if note else ""
    known: Equality = equality  # type: ignore[assignment]
    return Parity(equality=known, why=why, checks=tuple(checks), missing=tuple(missing))


def _compare_altered(base: Trial, candidate: Trial, tokens: Sequence[Check]) -> Parity:
    checks = tuple(check_direction(base, candidate))
    missing = ("the fix alters what is computed, so equality was not tested",)
    if any(not check.passed for check in checks):
        return Parity(equality="differs", why=why_differs(checks), checks=checks, missing=missing)
    if not checks and not any(step.backwards for step in base.watched):
        return _compare_outputs(base, candidate, tokens, missing)
    if not checks:
        why = "the fix alters what is computed, and there are no losses to compare"
        return Parity(equality="unknown", why=why, missing=missing)
    return Parity(
        equality="weak", why=f"{checks[0].text}; weak: {missing[0]}", checks=checks, missing=missing
    )


def _compare_outputs(
    base: Trial, candidate: Trial, tokens: Sequence[Check], missing: tuple[str, ...]
) -> Parity:
    """Compare outputs, because inference has no losses. How far they moved is reported, and the
    first greedy token that differs; whether that is acceptable is the user's decision."""
    moved = [value for value in of_evaluation(base, candidate) if value is not None]
    if not moved:
        why = "the fix alters what is computed, and there are no outputs to compare"
        return Parity(equality="unknown", why=why, missing=missing)
    shift = max(moved)
    check = Check(
        what="evaluation", passed=shift < MAX_OUTPUT_SHIFT, difference=shift,
        allowed=MAX_OUTPUT_SHIFT,
        text=f"outputs of the first batch are off by {small(shift)} of their norm",
    )  # fmt: skip
    equality: Equality = "weak" if check.passed else "differs"
    shown = "; ".join(one.text for one in (check, *tokens))
    why = f"{shown}; weak: {missing[0]}" if check.passed else check.text
    reported = (replace(one, passed=True) for one in tokens)
    return Parity(equality=equality, why=why, checks=(check, *reported), missing=missing)


def _with_program_names(trial: Trial) -> Trial:
    """Give tensors the names of the user's program: a compiled or wrapped module adds its own."""
    return replace(
        trial,
        tensors=_renamed(trial.tensors),
        early=_renamed(trial.early),
        gradients=_renamed(trial.gradients),
        stood=tuple(map(_program_name, trial.stood)),
    )


def _as_the_program_keeps_it(base: Trial, candidate: Trial) -> Trial:
    """Return a candidate whose weights are kept in fewer bits with the baseline's prints of them,
    where they are the same but for that rounding. In a program that trains, fewer bits would lose
    updates, and stay as they are."""
    if any(step.backwards for step in (*base.watched, *candidate.watched)):
        return candidate
    known = {tensor.name: tensor for tensor in base.tensors if not tensor.buffer}

    def kept(tensor: TensorPrint) -> TensorPrint:
        ours = known.get(tensor.name)
        unit = _HALF_UNITS.get(tensor.dtype)
        if ours is None or unit is None or ours.dtype == tensor.dtype:
            return tensor
        same = ours.numel == tensor.numel and abs(ours.norm - tensor.norm) <= unit * ours.norm
        return ours if same else tensor

    return replace(
        candidate,
        tensors=tuple(map(kept, candidate.tensors)),
        early=tuple(map(kept, candidate.early)),
    )


def _renamed(tensors: Sequence[TensorPrint]) -> tuple[TensorPrint, ...]:
    return tuple(replace(tensor, name=_program_name(tensor.name)) for tensor in tensors)


def _program_name(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _has_results(trial: Trial) -> bool:
    return bool(trial.watched or trial.tensors or trial.evaluation)


def _why_other_data(repeats: Sequence[Trial], candidate: Trial, band: Band) -> str:
    """Return why the data cannot be expected to be equal; "" if they can. If every batch was seen
    and is equal, the data are equal although workers draw random numbers."""
    if not band.same_data:
        return "the baseline does not see the same data in every run"
    if not band.repeatable:
        return "the baseline does not begin alike in every run"
    base = repeats[0]
    if not (base.workers_draw or candidate.workers_draw):
        return ""
    seen = all(step.batch_sum is not None for step in (*base.watched, *candidate.watched))
    if (
        seen
        and base.watched
        and all(check.passed for check in check_data(base, candidate, band.batch_sums))
    ):
        return ""
    return "samples are made in worker processes that draw random numbers"


def _find_missing(repeats: Sequence[Trial], candidate: Trial, band: Band) -> Iterator[str]:
    base = repeats[0]
    steps = min(len(base.watched), len(candidate.watched))
    if steps < MIN_STEPS:
        yield f"only {plural(steps, 'step')} watched"
    pairs = list(zip(base.watched, candidate.watched, strict=False))
    losses = sum(ours.loss is not None and theirs.loss is not None for ours, theirs in pairs)
    if losses == 0 and any(step.backwards for step in base.watched):
        yield "no losses were seen"
    elif 0 < losses < MIN_STEPS <= steps:
        yield f"a loss was seen at only {losses} of {plural(steps, 'step')}"
    if not base.tensors or not candidate.tensors:
        yield "the parameters were not seen"
    else:
        unmatched = {t.name for t in base.tensors} - {t.name for t in candidate.tensors}
        if unmatched:
            yield f"{plural(len(unmatched), 'tensor')} of the baseline were not found by name"
    moved = any(tensor.moved > 0 for tensor in base.tensors if not tensor.buffer)
    if base.tensors and not moved and any(step.backwards for step in base.watched):
        yield "no parameter moved: no update was seen"
    if nothing := why_outputs_say_nothing(base):
        yield nothing
    names = unexplained(base, candidate, band)
    if names:
        yield (
            f"{names[0]} moved differently; rounding noise could explain it, but no perturbed run "
            "was made to tell"
        )
    if band.losses and band.losses[0] > MAX_FIRST_BAND:
        own = small(band.losses[0] / REPEAT_FACTOR)
        yield f"the baseline differs from itself by {own} at its first step"


def why_differs(checks: Sequence[Check]) -> str:
    """Return the first failed check in words, and the names of the others."""
    first, *others = [check for check in checks if not check.passed]
    if not others:
        return first.text
    names = ", ".join(check.what for check in others[:3])
    return f"{first.text}; also failed: {names}{' …' if len(others) > 3 else ''}"


def why_equal(checks: Sequence[Check], steps: int) -> str:
    """Return for example "losses equal to 2e-7 over 8 steps, parameters to 3e-7"."""
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
    if (difference_of_means := measured.get(MEANS)) is not None:
        parts.append(f"{MEANS} {small(difference_of_means)} apart{over}")
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
