"""Checks of first gradients, parameters and buffers, and of the model's output after the last
watched step."""

from collections.abc import Collection, Iterator, Sequence
from math import isfinite, sqrt
from statistics import median

from msgspec import Struct

from ridgeline.equality.differences import small
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.distances import ULP
from ridgeline.equality.trials.noise_bands import (
    SMALL_TENSOR_LEEWAY,
    SWITCH_BUFFER,
    SWITCH_GRADIENT,
    SWITCH_MOVEMENT,
    SWITCH_OUTPUT,
    SWITCH_PARAMETER,
    UNINFORMATIVE_BAND,
    Band,
    Snapshot,
    TensorBand,
    prints_of,
)
from ridgeline.records.parity import Check
from ridgeline.records.trial import TensorPrint, Trial
from ridgeline.units import plural

MIN_MOVEMENT_RATIO = 0.5
"""A parameter that moved less than half as far, or more than twice, differs by more than rounding:
Adam under bfloat16 alters single directions, and the distance moved by a few percent."""
MAX_LENGTH_RATIO = 3.0
"""If rounding turns a tensor in any direction, the distance moved must still agree within this
factor: 0.77 to 1.23 times the baseline's was seen after 8 steps of a chaotic network."""
MAX_STUCK_SHARE = 1e-3
"""A tensor that moves less than this share of the baseline's movement does not move."""

MAX_DOUBTED_SHARE = 0.05
"""Largest share of all elements that may be doubted: biases before batch norms and of keys are
fewer."""


NEVER = "never"
MAX_INFORMATIVE_BAND = 0.5
"""A snapshot is compared if the median tensor is allowed at most this share of its movement:
leaving out half the samples, or half the layers, makes a larger difference."""
EARLIER_SNAPSHOTS: tuple[tuple[str, Snapshot], ...] = (
    ("first gradients", "gradients"),
    ("parameters after 2 steps", "early"),
)


class _TensorPair(Struct, frozen=True):
    ours: TensorPrint
    theirs: TensorPrint
    band: TensorBand
    drift: float
    snapshot: Snapshot

    @property
    def direction_lost(self) -> bool:
        """Whether it moved in another direction, as rounding alone makes it do."""
        return self.band.direction_lost and self.drift > 0

    @property
    def label(self) -> str:
        if self.snapshot == "gradients":
            return f"the first gradient of {self.ours.name}"
        return self.ours.name + (" after 2 steps" if self.snapshot == "early" else "")


def check_state(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    pairs = _pairs(baseline, candidate, band)
    yield from check_movement(baseline, candidate, band)
    unexplained_names = unexplained(baseline, candidate, band)
    for what, snapshot in EARLIER_SNAPSHOTS:
        if snapshot == "early" and not comparable_snapshot(baseline, candidate, band):
            continue  # Adam's first steps are all signs: the last snapshot says more
        early = [p for p in _pairs(baseline, candidate, band, snapshot) if not p.ours.buffer]
        early = [pair for pair in early if pair.ours.name not in unexplained_names]
        if early:
            yield _check_tensors(
                what, early, band.doubt_factor, systematic_shift(baseline, candidate)
            )
    for what, buffers in (("parameters", False), ("buffers", True)):
        seen = [
            pair
            for pair in pairs
            if pair.ours.buffer == buffers and pair.ours.name not in unexplained_names
        ]
        if seen:
            systematic = 0.0 if buffers else systematic_shift(baseline, candidate)
            yield _check_tensors(what, seen, band.doubt_factor, systematic)
        if not buffers:
            yield from _check_median_movement(baseline, candidate, band)
    yield from _check_evaluation(baseline, candidate, band)


def comparable_snapshot(baseline: Trial, candidate: Trial, band: Band) -> str:
    """Return which snapshot of the parameters can be compared: "" for the last, or the name of an
    earlier one; NEVER if rounding alone changes even the first gradients completely."""
    views: tuple[tuple[str, Snapshot], ...] = (("", "tensors"), *reversed(EARLIER_SNAPSHOTS))
    for words, snapshot in views:
        pairs = [p for p in _pairs(baseline, candidate, band, snapshot) if not p.ours.buffer]
        compared = [p.band.allowed if p.drift else 0.0 for p in pairs if not p.band.noise_only]
        if pairs and (not compared or median(compared) <= MAX_INFORMATIVE_BAND):
            return words
    return NEVER if baseline.tensors and candidate.tensors else ""


def check_movement(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    """Check that the same parameters moved at all, whatever the noise band is."""
    if not baseline.tensors or not candidate.tensors:
        return
    by_name = {tensor.name: tensor for tensor in candidate.tensors}
    missing = [tensor.name for tensor in baseline.tensors if tensor.name not in by_name]
    others = {tensor.name for tensor in candidate.tensors} - {t.name for t in baseline.tensors}
    words = []
    if missing and len(missing) < len(baseline.tensors) and not others:
        words.append(f"{missing[0]} no longer exists{_more(len(missing))}")
    pairs = _pairs(baseline, candidate, band)
    words += [
        f"{pair.ours.name} is {pair.theirs.dtype}, not {pair.ours.dtype}"
        for pair in pairs
        if pair.ours.dtype and pair.theirs.dtype and pair.ours.dtype != pair.theirs.dtype
    ]
    stuck = [pair.ours.name for pair in pairs if _is_stuck(pair)]
    if stuck:
        words.append(f"{stuck[0]} does not move{_more(len(stuck))}")
    began = [pair.ours.name for pair in pairs if _began_to_move(pair, band.typical_move)]
    if began:
        words.append(f"{began[0]} moves, but not in the baseline{_more(len(began))}")
    moving = sum(pair.band.moves for pair in pairs)
    text = words[0] if words else f"the same {plural(moving, 'tensor')} moved"
    yield Check(what="movement", passed=not words, text=text)


def _more(number: int) -> str:
    return f" ({number - 1} more)" if number > 1 else ""


def _is_stuck(pair: _TensorPair) -> bool:
    return _moves(pair) and not pair.theirs.moved > MAX_STUCK_SHARE * pair.ours.moved


def _moves(pair: _TensorPair) -> bool:
    return pair.band.moves and not pair.band.noise_only


def tensors_that_should_move(
    baseline: Trial, candidate: Trial, band: Band, names: Collection[str]
) -> tuple[str, ...]:
    """Return those of the named tensors that move in the baseline by more than rounding."""
    pairs = _pairs(baseline, candidate, band)
    return tuple(pair.ours.name for pair in pairs if pair.ours.name in names and _moves(pair))


def _began_to_move(pair: _TensorPair, typical: float) -> bool:
    """Return whether a tensor that stands still in the baseline moves as much as others do. A
    movement that rounds to nothing in one precision need not in another."""
    like_others = typical * sqrt(max(pair.ours.numel, 1))
    if pair.ours.buffer:
        return pair.ours.moved == 0 and pair.theirs.moved > pair.band.allowed * pair.band.scale
    if pair.band.noise_only:
        return False
    return not pair.band.moves and pair.theirs.moved > max(pair.band.allowed, 0.1) * like_others


def unexplained(baseline: Trial, candidate: Trial, band: Band) -> tuple[str, ...]:
    """Return parameters beyond the band whose difference rounding noise could explain, where no
    perturbed run was made to tell. They still move and hold few of the elements, and make the
    answer weak."""
    pairs = [pair for pair in _pairs(baseline, candidate, band) if not pair.ours.buffer]
    if band.noise_measured or band.doubt_factor <= 1:
        return ()
    wrong = [pair for pair in pairs if _is_beyond(pair)]
    share = sum(pair.ours.numel for pair in wrong) / max(sum(p.ours.numel for p in pairs), 1)
    return tuple(pair.ours.name for pair in wrong) if share <= MAX_DOUBTED_SHARE else ()


def _check_tensors(
    what: str, seen: Sequence[_TensorPair], doubt_factor: float, systematic: float
) -> Check:
    compared = [pair for pair in seen if not pair.band.noise_only]
    noise_only = len(seen) - len(compared)
    turned = sum(pair.direction_lost for pair in compared)
    if not compared:
        text = f"all {plural(noise_only, 'tensor')} follow rounding alone"
        return Check(what=what, passed=True, text=text)
    beyond = [pair for pair in compared if _is_beyond(pair)]
    wrong = [pair for pair in beyond if systematic or not _is_doubtful(pair, doubt_factor)]
    movement = "" if seen[0].snapshot == "gradients" else " of its movement"
    if turned == len(compared) and not beyond:
        text = f"{what} were not compared: rounding alone can turn them in any direction"
        return Check(what=what, passed=True, text=text)
    worst = max(
        wrong or beyond or compared, key=lambda pair: pair.drift / (pair.band.allowed or 1e-300)
    )
    if beyond and worst.direction_lost:
        text = (
            f"{worst.label} moved {worst.theirs.moved / worst.ours.moved:.2g} times as far"
            f"{_more(len(beyond))}"
        )
    elif beyond:
        text = (
            f"{worst.label} is off by {small(worst.drift)}{movement}, allowed "
            f"{small(worst.band.allowed)}{_more(len(beyond))}"
        )
        text += f", all by {small(systematic)} of their norm" if systematic and wrong else ""
    else:
        worst = max((p for p in compared if not p.direction_lost), key=lambda pair: pair.drift)
        near = "exactly"
        if worst.drift:
            near = f"to {small(worst.drift)}{movement.replace('its', 'their')}"
        text = f"{what} equal {near}"
        text += f"; {plural(noise_only, 'tensor')} moved by rounding alone" if noise_only else ""
        text += f"; only the distance moved of {plural(turned, 'tensor')}" if turned else ""
    return Check(
        what=what, passed=not wrong, text=text, difference=worst.drift,
        allowed=worst.band.allowed, doubt=bool(beyond) and not wrong,
    )  # fmt: skip


def _is_doubtful(pair: _TensorPair, doubt_factor: float) -> bool:
    """Return whether a difference beyond the band may still come from rounding."""
    if _holds_integers(pair) or doubt_factor <= 1 or pair.direction_lost:
        return False
    few = 1 + SMALL_TENSOR_LEEWAY / sqrt(max(pair.ours.numel, 1))
    switched = SWITCH_BUFFER if pair.ours.buffer else SWITCH_PARAMETER * few
    if pair.snapshot == "gradients":
        switched = SWITCH_GRADIENT
    return pair.drift <= min(max(doubt_factor * pair.band.allowed, switched), MIN_MOVEMENT_RATIO)


def _is_beyond(pair: _TensorPair) -> bool:
    if _holds_integers(pair):
        return pair.drift > 0
    ratio = pair.theirs.moved / pair.ours.moved if pair.ours.moved else 1.0
    if pair.direction_lost:
        known = pair.band.moves and pair.ours.moved > 100 * ULP * pair.ours.norm
        return known and not 1 / MAX_LENGTH_RATIO <= ratio <= MAX_LENGTH_RATIO
    compared = (
        pair.band.moves
        and not pair.band.noise_only_indices
        and pair.band.allowed < MIN_MOVEMENT_RATIO
    )
    far = compared and not MIN_MOVEMENT_RATIO <= ratio <= 1 / MIN_MOVEMENT_RATIO
    own = pair.ours.moved >= MIN_MOVEMENT_RATIO * pair.band.scale
    return not pair.drift <= pair.band.allowed or (far and own)


def _holds_integers(pair: _TensorPair) -> bool:
    """Return whether the tensor holds integers; if no dtype was noted, a buffer that counts batches
    does."""
    tensor = pair.ours
    if tensor.dtype.startswith(("int", "uint", "bool")):
        return True
    whole = tensor.norm.is_integer() and tensor.moved.is_integer()
    return tensor.buffer and not tensor.dtype and tensor.numel == 1 and whole and tensor.moved >= 1


def _check_median_movement(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    difference = distances.of_median_movement(baseline, candidate)
    if difference is None:
        return
    near = difference <= band.movement
    passed = near or (band.doubt_factor > 1 and difference <= SWITCH_MOVEMENT)
    text = f"the distance that the median parameter moved is {'the same' if near else 'different'}:"
    text += f" {small(difference)} off, allowed {small(band.movement)}"
    yield Check(
        what="distance moved", passed=passed, text=text, difference=difference,
        allowed=band.movement, doubt=passed and not near,
    )  # fmt: skip


def _check_evaluation(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    if not baseline.evaluation or not candidate.evaluation:
        return
    if len(baseline.evaluation) != len(candidate.evaluation):
        text = "the evaluation returns another number of outputs"
        yield Check(what="evaluation", passed=False, text=text)
        return
    if band.evaluation >= UNINFORMATIVE_BAND:
        text = "the evaluation output was not compared: rounding alone changes it completely"
        yield Check(what="evaluation", passed=True, text=text)
        return
    drifts = [v for v in distances.of_evaluation(baseline, candidate) if v is not None]
    worst = max(drifts, default=0.0)
    near = worst <= band.evaluation
    passed = near or (
        band.doubt_factor > 1 and worst <= max(band.doubt_factor * band.evaluation, SWITCH_OUTPUT)
    )
    text = f"the evaluation output is equal to {small(worst)}, allowed {small(band.evaluation)}"
    if not near:
        text = f"the evaluation output is off by {small(worst)}, allowed {small(band.evaluation)}"
    yield Check(
        what="evaluation", passed=passed, text=text, difference=worst, allowed=band.evaluation,
        doubt=passed and not near,
    )  # fmt: skip


def _pairs(
    baseline: Trial, candidate: Trial, band: Band, snapshot: Snapshot = "tensors"
) -> list[_TensorPair]:
    by_name = {tensor.name: tensor for tensor in prints_of(candidate, snapshot)}
    limits: tuple[TensorBand, ...] = getattr(band, snapshot)
    pairs = []
    for tensor, limit in zip(prints_of(baseline, snapshot), limits, strict=True):
        other = by_name.get(tensor.name)
        if other is None:
            continue
        value = distances.of_tensor(tensor, other, limit.scale, limit.noise_only_indices)
        # Not finite in both counts as equal here; in one alone, `check_finite` reports it.
        pairs.append(_TensorPair(tensor, other, limit, value or 0.0, snapshot))
    return pairs


MIN_STANDARD_ERRORS = 12.0
"""A common shift of the norms must exceed this many standard errors of the median: 80 correct fixes
of a small program reached 6.6, weight decay that was dropped 197 and more."""
MIN_TENSORS = 4


def systematic_shift(baseline: Trial, candidate: Trial) -> float:
    """Return by what share the norms shifted in the median, as dropped weight decay makes them do;
    0 if they differ without a common direction."""
    by_name = {tensor.name: tensor for tensor in candidate.tensors}
    shares = [
        (by_name[tensor.name].norm - tensor.norm) / tensor.norm
        for tensor in baseline.tensors
        if not tensor.buffer
        and tensor.name in by_name
        and tensor.norm > 0
        # Decay does not show in what began at zero.
        and tensor.moved < 0.5 * tensor.norm
        and isfinite(tensor.norm)
        and isfinite(by_name[tensor.name].norm)
    ]
    if len(shares) < MIN_TENSORS:
        return 0.0
    middle = median(shares)
    spread = 1.4826 * median(abs(share - middle) for share in shares)
    error = 1.2533 * spread / sqrt(len(shares))
    return abs(middle) if abs(middle) > MIN_STANDARD_ERRORS * error else 0.0
