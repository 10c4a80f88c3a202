"""Greedy tokens: the text that a language model writes where each next token is the likeliest one.

Rounding may turn two tokens around whose logits are nearly equal, and then everything that follows
is another text. So the first token that differs is what is judged: it is accepted only if the gap
of the two logits is within the noise band, and it is named in any case. The steps after it have
other inputs, and are compared with nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.equality.trials.noise_bands import (
    REPEAT_FACTOR,
    Floor,
    allowed_by_perturbation,
    is_usable,
)
from ridgeline.records.parity import Check
from ridgeline.records.reason_codes import Done
from ridgeline.records.trial import Predicted, Trial
from ridgeline.units import plural

MIN_FED_BACK_SHARE = 0.5
"""Smallest share of the likeliest tokens that must come back as the next call's input: otherwise
the program samples its tokens, or does not write text at all, and nothing is said of tokens."""
MAX_GAP = 0.05
"""Largest gap that is accepted whatever the noise, as a share of the largest logit. Logits of a
trained model reach 20 to 30, and bfloat16 moves them by 0.1 to 0.3."""


class OtherToken(Struct, frozen=True, kw_only=True):
    """The first token that differs from the baseline's."""

    call: int
    """Index of the model's call that predicts it."""
    row: int
    steps: int
    """Number of steps that ended before anything follows from it."""
    token: int
    base_token: int
    logit: float | None
    """The baseline's logit of `token`; None if it is not among the likeliest."""
    base_logit: float
    gap: float
    """How far the baseline's logits of the two lie apart; at least, if `logit` is None."""


def writes_greedily(trial: Trial) -> bool:
    """Return whether most likeliest tokens are what the next call is given."""
    calls = [call for _, call in _calls(trial)]
    fed = [
        given == tokens[0]
        for before, after in pairwise(calls)
        if len(before.tokens) == len(after.given)
        for tokens, given in zip(before.tokens, after.given, strict=True)
    ]
    return bool(fed) and sum(fed) >= MIN_FED_BACK_SHARE * len(fed)


def first_other_token(base: Trial, other: Trial) -> OtherToken | None:
    """Return the first token that differs; None if none does, up to where the inputs do."""
    ours, theirs = list(_calls(base)), list(_calls(other))
    for index, ((step, before), (_, after)) in enumerate(zip(ours, theirs, strict=False)):
        if before.given != after.given or len(before.tokens) != len(after.tokens):
            return None  # the data differ, which is judged by itself
        for row, (tokens, others) in enumerate(zip(before.tokens, after.tokens, strict=True)):
            if tokens[0] != others[0]:
                logits = dict(zip(tokens, before.logits[row], strict=True))
                logit, lowest = logits.get(others[0]), before.logits[row][-1]
                last = index + 1 == len(ours) or ours[index + 1][0] != step
                return OtherToken(
                    call=index, row=row, steps=step + 1 if last else step,
                    token=others[0], base_token=tokens[0], logit=logit,
                    base_logit=logits[tokens[0]],
                    gap=logits[tokens[0]] - (lowest if logit is None else logit),
                )  # fmt: skip
    return None


def until_other_token(base: Trial, other: Trial) -> Trial:
    """Return a trial with the steps up to its first other token: what follows is another text."""
    found = first_other_token(base, other)
    return other if found is None else replace(other, watched=other.watched[: found.steps])


def check_tokens(
    repeats: Sequence[Trial], perturbed: Sequence[Trial], candidate: Trial, floor: Floor
) -> Iterator[Check]:
    """Check the greedy tokens of a program that writes text against those of `repeats[0]`. The
    noise is what the logits of other repeats and of `perturbed` runs show: if all are alike, or
    there are none, no other token is accepted."""
    base = repeats[0]
    if not writes_greedily(base):
        return
    found = first_other_token(base, candidate)
    if found is None:
        calls = min(len(list(_calls(base))), len(list(_calls(candidate))))
        text = f"the greedy tokens of {plural(calls, 'call')} are equal"
        yield Check(what="tokens", passed=calls > 0, text=text, difference=0.0)
        return
    size = max(abs(row[0]) for _, call in _calls(base) for row in call.logits) or 1.0
    drifts = [
        (trial.jitter, _drift(base, trial) / size)
        for trial in perturbed
        if is_usable(floor, trial.jitter)
    ]
    own = [REPEAT_FACTOR * _drift(base, trial) / size for trial in repeats[1:]]
    allowed = min(max(allowed_by_perturbation(floor, drifts), *own, 0.0), MAX_GAP) * size
    passed = found.logit is not None and found.gap <= allowed
    yield Check(
        what="tokens", passed=passed, doubt=passed, difference=found.gap, allowed=allowed,
        step=max(found.steps - 1, 0), text=_sentence(found, allowed),
    )  # fmt: skip


def gets_new_tokens_alone(base: Trial, candidate: Trial) -> bool:
    """Return whether a fix makes the model keep what it knows of earlier tokens, so that it is
    given the new ones alone."""
    codes = {target.done.code for fix in candidate.applied for target in fix.targets}
    return Done.KV_CACHE in codes and writes_greedily(base)


def check_given(base: Trial, candidate: Trial) -> Check:
    """Check the last token of each row, where a cache stands for the tokens before it."""
    pairs = list(zip(_calls(base), _calls(candidate), strict=False))
    others = [step for (step, ours), (_, theirs) in pairs if ours.given != theirs.given]
    text = f"the last token of each row is the baseline's in {plural(len(pairs), 'call')}"
    if others:
        text = f"the last tokens that are given in step {others[0] + 1} are not the baseline's"
    return Check(what="data", passed=not others, text=text)


def _sentence(found: OtherToken, allowed: float) -> str:
    logit = "below the fourth" if found.logit is None else f"{found.logit:.4g}"
    least = "at least " if found.logit is None else ""
    return (
        f"the first greedy token that differs is token {found.call + 1} of row {found.row + 1}: "
        f"{found.token} where the baseline has {found.base_token}; their logits are {logit} and "
        f"{found.base_logit:.4g}, {least}{found.gap:.2g} apart, and noise explains {allowed:.2g}"
    )


def _drift(base: Trial, perturbed: Trial) -> float:
    """Return how far a perturbed run moved the gap between the two likeliest tokens of any row, up
    to its first other token and there too."""
    moved = [0.0]
    found = first_other_token(base, perturbed)
    pairs = list(zip(_calls(base), _calls(perturbed), strict=False))
    for (_, ours), (_, theirs) in pairs[: len(pairs) if found is None else found.call + 1]:
        if ours.given != theirs.given:
            break
        rows = zip(ours.tokens, ours.logits, theirs.tokens, theirs.logits, strict=False)
        for tokens, logits, other_tokens, other_logits in rows:
            known = dict(zip(other_tokens, other_logits, strict=True))
            if tokens[0] in known and tokens[1] in known:
                gap = logits[0] - logits[1]
                moved.append(abs(gap - (known[tokens[0]] - known[tokens[1]])))
    return max(moved)


def _calls(trial: Trial) -> Iterator[tuple[int, Predicted]]:
    """Yield the calls of a language model in their order, each with the index of its step."""
    for step, watched in enumerate(trial.watched):
        for call in watched.predicted:
            yield step, call
