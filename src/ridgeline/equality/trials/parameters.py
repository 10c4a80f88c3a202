"""First gradients, parameters and buffers, and what the model says after the last watched step."""

from collections.abc import Collection, Iterator, Sequence
from math import isfinite, sqrt
from statistics import median

from msgspec import Struct

from ridgeline.equality.differences import small
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.distances import ULP
from ridgeline.equality.trials.noise_bands import (
    LOST,
    SMALL,
    SWITCHED,
    SWITCHED_BUFFER,
    SWITCHED_GRADIENT,
    SWITCHED_OUTPUT,
    SWITCHED_WAY,
    Band,
    TensorBand,
    When,
    prints_of,
)
from ridgeline.records.parity import Check
from ridgeline.records.trial import TensorPrint, Trial
from ridgeline.units import plural

LESS = 0.5
"""A parameter that moved less than half as far, or more than twice, is not rounded otherwise: Adam
under bfloat16 alters single directions, and the length of the way by a few percent."""
LENGTH = 3.0
"""Where rounding turns a tensor's way as it likes, its length is still asked: 0.77 to 1.23 times
the baseline's seen after 8 steps of a network that runs apart."""
STUCK = 1e-3
"""Of its way in the baseline: less is standing still."""

DOUBTED = 0.05
"""Of all elements: biases before batch norms and of keys are fewer."""


NEVER = "never"
TOLD = 0.5
"""Of its way, allowed to the median tensor: half the samples, or half the layers, make more."""
EARLIER: tuple[tuple[str, When], ...] = (
    ("first gradients", "gradients"),
    ("parameters after 2 steps", "early"),
)


class _Seen(Struct, frozen=True):
    ours: TensorPrint
    theirs: TensorPrint
    band: TensorBand
    drift: float
    when: When

    @property
    def lost(self) -> bool:
        """It went elsewhere, as rounding alone makes it go."""
        return self.band.lost and self.drift > 0

    @property
    def words(self) -> str:
        if self.when == "gradients":
            return f"the first gradient of {self.ours.name}"
        return self.ours.name + (" after 2 steps" if self.when == "early" else "")


def state(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    pairs = _pairs(baseline, candidate, band)
    yield from movement(baseline, candidate, band)
    doubted = doubtful(baseline, candidate, band)
    for what, when in EARLIER:
        if when == "early" and not telling(baseline, candidate, band):
            continue  # Adam's first ways are all signs: the last ones say more
        early = [p for p in _pairs(baseline, candidate, band, when) if not p.ours.buffer]
        early = [pair for pair in early if pair.ours.name not in doubted]
        if early:
            yield _judged(what, early, band.doubt, pulled(baseline, candidate))
    for what, buffers in (("parameters", False), ("buffers", True)):
        seen = [
            pair for pair in pairs if pair.ours.buffer == buffers and pair.ours.name not in doubted
        ]
        if seen:
            systematic = 0.0 if buffers else pulled(baseline, candidate)
            yield _judged(what, seen, band.doubt, systematic)
        if not buffers:
            yield from _way(baseline, candidate, band)
    yield from _evaluation(baseline, candidate, band)


def telling(baseline: Trial, candidate: Trial, band: Band) -> str:
    """What of the parameters can be compared: "" the last of them, else what was before; NEVER
    where rounding alone turns even the first gradients."""
    views: tuple[tuple[str, When], ...] = (("", "tensors"), *reversed(EARLIER))
    for words, when in views:
        pairs = [p for p in _pairs(baseline, candidate, band, when) if not p.ours.buffer]
        asked = [p.band.allowed if p.drift else 0.0 for p in pairs if not p.band.by_rounding]
        if pairs and (not asked or median(asked) <= TOLD):
            return words
    return NEVER if baseline.tensors and candidate.tensors else ""


def movement(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    """Whether the same parameters moved at all: asked whatever the tolerance is."""
    if not baseline.tensors or not candidate.tensors:
        return
    found = {tensor.name: tensor for tensor in candidate.tensors}
    lost = [tensor.name for tensor in baseline.tensors if tensor.name not in found]
    others = {tensor.name for tensor in candidate.tensors} - {t.name for t in baseline.tensors}
    words = []
    if lost and len(lost) < len(baseline.tensors) and not others:
        words.append(f"{lost[0]} is not there any more{_more(len(lost))}")
    pairs = _pairs(baseline, candidate, band)
    words += [
        f"{pair.ours.name} is {pair.theirs.dtype}, not {pair.ours.dtype}"
        for pair in pairs
        if pair.ours.dtype and pair.theirs.dtype and pair.ours.dtype != pair.theirs.dtype
    ]
    stuck = [pair.ours.name for pair in pairs if _stuck(pair)]
    if stuck:
        words.append(f"{stuck[0]} does not move{_more(len(stuck))}")
    roused = [pair.ours.name for pair in pairs if _roused(pair, band.typical_move)]
    if roused:
        words.append(f"{roused[0]} moves and did not in the baseline{_more(len(roused))}")
    moving = sum(pair.band.moves for pair in pairs)
    text = words[0] if words else f"the same {plural(moving, 'tensor')} moved"
    yield Check(what="movement", passed=not words, text=text)


def _more(number: int) -> str:
    return f" ({number - 1} more)" if number > 1 else ""


def _stuck(pair: _Seen) -> bool:
    return _moves(pair) and not pair.theirs.moved > STUCK * pair.ours.moved


def _moves(pair: _Seen) -> bool:
    return pair.band.moves and not pair.band.by_rounding


def stands(
    baseline: Trial, candidate: Trial, band: Band, names: Collection[str]
) -> tuple[str, ...]:
    """Those of these tensors that move in the baseline, and not by rounding alone."""
    pairs = _pairs(baseline, candidate, band)
    return tuple(pair.ours.name for pair in pairs if pair.ours.name in names and _moves(pair))


def _roused(pair: _Seen, typical: float) -> bool:
    """By as much as others move: what rounds to nothing in one precision need not in another."""
    like_others = typical * sqrt(max(pair.ours.numel, 1))
    if pair.ours.buffer:
        return pair.ours.moved == 0 and pair.theirs.moved > pair.band.allowed * pair.band.scale
    if pair.band.by_rounding:
        return False
    return not pair.band.moves and pair.theirs.moved > max(pair.band.allowed, 0.1) * like_others


def doubtful(baseline: Trial, candidate: Trial, band: Band) -> tuple[str, ...]:
    """Parameters beyond the band that may have moved by rounding alone, where no perturbed trial
    tells: they still move, and hold few of the elements. What they are is not known, so that the
    answer is weak."""
    pairs = [pair for pair in _pairs(baseline, candidate, band) if not pair.ours.buffer]
    if band.perturbed or band.doubt <= 1:
        return ()
    wrong = [pair for pair in pairs if _wrong(pair)]
    share = sum(pair.ours.numel for pair in wrong) / max(sum(p.ours.numel for p in pairs), 1)
    return tuple(pair.ours.name for pair in wrong) if share <= DOUBTED else ()


def _judged(what: str, seen: Sequence[_Seen], doubt: float, systematic: float) -> Check:
    asked = [pair for pair in seen if not pair.band.by_rounding]
    left = len(seen) - len(asked)
    turned = sum(pair.lost for pair in asked)
    if not asked:
        text = f"all {plural(left, 'tensor')} move by rounding alone"
        return Check(what=what, passed=True, text=text)
    beyond = [pair for pair in asked if _wrong(pair)]
    wrong = [pair for pair in beyond if systematic or not _doubted(pair, doubt)]
    way = "" if seen[0].when == "gradients" else " of its way"
    if turned == len(asked) and not beyond:
        text = f"{what}: rounding alone turns each of the {plural(turned, 'tensor')} as it likes"
        return Check(what=what, passed=True, text=text)
    worst = max(
        wrong or beyond or asked, key=lambda pair: pair.drift / (pair.band.allowed or 1e-300)
    )
    if beyond and worst.lost:
        text = (
            f"{worst.words} went {worst.theirs.moved / worst.ours.moved:.2g} times as far"
            f"{_more(len(beyond))}"
        )
    elif beyond:
        text = (
            f"{worst.words} is off by {small(worst.drift)}{way}, allowed "
            f"{small(worst.band.allowed)}{_more(len(beyond))}"
        )
        text += f", all by {small(systematic)} of their norm" if systematic and wrong else ""
    else:
        worst = max((p for p in asked if not p.lost), key=lambda pair: pair.drift)
        near = f"to {small(worst.drift)}{way.replace('its', 'their')}" if worst.drift else "exactly"
        text = f"{what} equal {near}"
        text += f"; {plural(left, 'tensor')} moved by rounding alone" if left else ""
        text += f"; of {plural(turned, 'tensor')} the length of the way alone" if turned else ""
    return Check(
        what=what, passed=not wrong, text=text, difference=worst.drift,
        allowed=worst.band.allowed, doubt=bool(beyond) and not wrong,
    )  # fmt: skip


def _doubted(pair: _Seen, doubt: float) -> bool:
    """Beyond the band, and yet perhaps honest."""
    if _whole(pair) or doubt <= 1 or pair.lost:
        return False
    few = 1 + SMALL / sqrt(max(pair.ours.numel, 1))
    switched = SWITCHED_BUFFER if pair.ours.buffer else SWITCHED * few
    if pair.when == "gradients":
        switched = SWITCHED_GRADIENT
    return pair.drift <= min(max(doubt * pair.band.allowed, switched), LESS)


def _wrong(pair: _Seen) -> bool:
    if _whole(pair):
        return pair.drift > 0
    ratio = pair.theirs.moved / pair.ours.moved if pair.ours.moved else 1.0
    if pair.lost:
        known = pair.band.moves and pair.ours.moved > 100 * ULP * pair.ours.norm
        return known and not 1 / LENGTH <= ratio <= LENGTH
    asked = pair.band.moves and not pair.band.faint and pair.band.allowed < LESS
    far = asked and not LESS <= ratio <= 1 / LESS
    own = pair.ours.moved >= LESS * pair.band.scale
    return not pair.drift <= pair.band.allowed or (far and own)


def _whole(pair: _Seen) -> bool:
    """Integers; where no dtype was noted, a buffer that counts batches."""
    tensor = pair.ours
    if tensor.dtype.startswith(("int", "uint", "bool")):
        return True
    whole = tensor.norm.is_integer() and tensor.moved.is_integer()
    return tensor.buffer and not tensor.dtype and tensor.numel == 1 and whole and tensor.moved >= 1


def _way(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    further = distances.of_way(baseline, candidate)
    if further is None:
        return
    near = further <= band.way
    passed = near or (band.doubt > 1 and further <= SWITCHED_WAY)
    text = f"the parameters went {'as far' if near else 'further or less far'}: their median way "
    text += f"is {small(further)} off, allowed {small(band.way)}"
    yield Check(
        what="way", passed=passed, text=text, difference=further, allowed=band.way,
        doubt=passed and not near,
    )  # fmt: skip


def _evaluation(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    if not baseline.evaluation or not candidate.evaluation:
        return
    if len(baseline.evaluation) != len(candidate.evaluation):
        yield Check(what="evaluation", passed=False, text="it returns another number of outputs")
        return
    if band.evaluation >= LOST:
        text = "the evaluation output is not asked: rounding alone makes another of it"
        yield Check(what="evaluation", passed=True, text=text)
        return
    drifts = [v for v in distances.of_evaluation(baseline, candidate) if v is not None]
    worst = max(drifts, default=0.0)
    near = worst <= band.evaluation
    passed = near or (
        band.doubt > 1 and worst <= max(band.doubt * band.evaluation, SWITCHED_OUTPUT)
    )
    text = f"the evaluation output is equal to {small(worst)}, allowed {small(band.evaluation)}"
    if not near:
        text = f"the evaluation output is off by {small(worst)}, allowed {small(band.evaluation)}"
    yield Check(
        what="evaluation", passed=passed, text=text, difference=worst, allowed=band.evaluation,
        doubt=passed and not near,
    )  # fmt: skip


def _pairs(baseline: Trial, candidate: Trial, band: Band, when: When = "tensors") -> list[_Seen]:
    found = {tensor.name: tensor for tensor in prints_of(candidate, when)}
    limits: tuple[TensorBand, ...] = getattr(band, when)
    pairs = []
    for tensor, limit in zip(prints_of(baseline, when), limits, strict=True):
        other = found.get(tensor.name)
        if other is None:
            continue
        value = distances.of_tensor(tensor, other, limit.scale, limit.faint)
        # Not finite in both is equal here; in one alone, `finite` has said so.
        pairs.append(_Seen(tensor, other, limit, value or 0.0, when))
    return pairs


SURE = 12.0
"""Standard errors of a median. 80 honest changes of a small program reached 6.6, left-out decay
197 and more."""
FEWEST = 4


def pulled(baseline: Trial, candidate: Trial) -> float:
    """By how much of their norms, in the median; 0 where they differ each its own way."""
    found = {tensor.name: tensor for tensor in candidate.tensors}
    shares = [
        (found[tensor.name].norm - tensor.norm) / tensor.norm
        for tensor in baseline.tensors
        if not tensor.buffer
        and tensor.name in found
        and tensor.norm > 0
        # What hardly moved at all has nothing to say; what began at zero has no decay.
        and tensor.moved < 0.5 * tensor.norm
        and isfinite(tensor.norm)
        and isfinite(found[tensor.name].norm)
    ]
    if len(shares) < FEWEST:
        return 0.0
    middle = median(shares)
    spread = 1.4826 * median(abs(share - middle) for share in shares)
    error = 1.2533 * spread / sqrt(len(shares))
    return abs(middle) if abs(middle) > SURE * error else 0.0
