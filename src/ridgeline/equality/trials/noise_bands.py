"""How far apart two honest runs may lie before anything is known of the program: by what the change
may alter and by the precision it computes in. Relative numbers."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import hypot, isfinite, log, sqrt
from statistics import median, pstdev
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.equality.trials import distances
from ridgeline.equality.trials.distances import ULP, Series
from ridgeline.records.parity import Alters
from ridgeline.records.trial import TensorPrint, Trial

GROWING = 12
"""Steps: 1.8 a step over 12 is a factor of a thousand, more than was seen of any program."""
DOUBT, DOUBT_KNOWN = 5.0, 2.0
"""So many times the band is doubted and not refused, where rounding may differ: a unit that
switches at a rounding, which one jittered trial need not meet, moved losses by 2.5 times it. A
jitter of a lower precision's size meets many."""
SWITCHED, SWITCHED_WAY, SWITCHED_BUFFER, SWITCHED_OUTPUT = 0.01, 0.003, 0.05, 0.05
"""Doubted at the least, as such a switch was seen to do as much with losses in the band: 0.4 and
1.1 % of a parameter's way, 7e-5 of the median way, 2.4 % of a running mean's, 5.1 % of an
output that is normalised by such means."""
SWITCHED_GRADIENT = 0.1
"""Of a first gradient: one of 24 units for one of 16 samples is 5 %; 6.8 % seen under TF32."""
DATA = 1e-5
"""Batch sums of the same data differ by the order they are summed in, those of other data by
1e-3 and more."""


class Floor(Struct, frozen=True, kw_only=True):
    loss: float
    gradient: float
    parameter: float
    """Of how far the parameter moved."""
    way: float
    """Of how far the median parameter moved."""
    buffer: float
    """Of how far the buffer moved."""
    evaluation: float
    growth: float
    """A step, over the first GROWING."""
    most: float
    """Nothing that is assumed, and not measured, is allowed more."""
    unit: float
    """Rounding error of the precision, to scale what a jitter of another size did."""

    def grown(self, steps: int) -> float:
        return self.growth ** min(steps, GROWING)

    def known(self) -> "Floor":
        """Where a jitter of this very size says what it does to the program, less is assumed.
        Not of buffers and outputs: those follow biases that move by rounding alone. Of a loss never
        less than one unit: it is one number, which a jitter may leave alone by luck. ResNet-50's
        first was 0.01 to 0.4 % off under bfloat16, 0.006 to 0.4 % under the jitter, over 14 seeds.
        """
        return replace(
            self,
            loss=max(KNOWN * self.loss, self.unit),
            gradient=KNOWN * self.gradient,
            parameter=KNOWN * self.parameter,
            way=KNOWN * self.way,
        )

    def followed(self) -> "Floor":
        """Where biases before batch norms move by rounding alone, running means go with them: 0.1 %
        of their way after 8 steps of Adam in float32."""
        return replace(self, buffer=max(self.buffer, 0.02), evaluation=max(self.evaluation, 0.005))


KNOWN = 0.2
"""Autocast to bfloat16 differed by 0.1 to 4 times what a jitter of its size did, and that by 2e-4
in the losses and 5e-3 in the parameters of small programs: a fifth of what is assumed of all."""


EXACT = Floor(
    # The program itself does the same arithmetic. What is left: our own sums over tensors that
    # lie at other addresses, where the vector loop starts elsewhere, 1 to 4 ulps, and what the
    # program makes of such an ulp of its own.
    loss=8 * ULP, gradient=16 * ULP, parameter=64 * ULP, way=32 * ULP, buffer=64 * ULP,
    evaluation=16 * ULP, growth=1.15, most=1e-4, unit=ULP,
)  # fmt: skip
_ROUNDING = {
    "float64": Floor(
        loss=1e-13, gradient=1e-12, parameter=1e-11, way=1e-12, buffer=1e-12, evaluation=1e-12,
        growth=1.8, most=1e-4, unit=2.0**-52,
    ),
    # Reordered sums: 2e-7 for a fused optimizer or a compiled GPT, 6e-5 after 10 steps for a
    # batch-norm network in channels_last; 2e-5 after 5 steps for one of 6 convolutions and SGD.
    "float32": Floor(
        loss=3e-6, gradient=5e-5, parameter=1e-4, way=2e-5, buffer=5e-5, evaluation=2e-5,
        growth=1.8, most=0.05, unit=ULP,
    ),
    "tf32": Floor(
        loss=2e-3, gradient=1e-2, parameter=3e-2, way=1e-2, buffer=1e-2, evaluation=1e-2,
        growth=1.15, most=0.25, unit=2.0**-11,
    ),
    "float16": Floor(
        loss=5e-3, gradient=2e-2, parameter=5e-2, way=1e-2, buffer=2e-2, evaluation=3e-2,
        growth=1.15, most=0.25, unit=2.0**-11,
    ),
    # 2e-5 to 1e-2 seen on losses of eight programs; 18 % after 33 steps on a memorised batch.
    "bfloat16": Floor(
        loss=1e-2, gradient=5e-2, parameter=0.1, way=2e-2, buffer=5e-2, evaluation=5e-2,
        growth=1.15, most=0.25, unit=2.0**-8,
    ),
}  # fmt: skip
_NAMES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "half": "float16",
          "bf16": "bfloat16", "tensorfloat32": "tf32"}  # fmt: skip


def floor_of(alters: Alters, precision: str) -> Floor:
    """An unknown precision (float8, int8) is given what the coarsest known one is."""
    if alters == "nothing":
        return EXACT
    name = precision.removeprefix("torch.").lower()
    return _ROUNDING.get(_NAMES.get(name, name), _ROUNDING["bfloat16"])


PERTURBED = 16.0
"""A jitter moves the inputs alone, a reordering rounds anew in every layer."""
MATCHED = 8.0
"""A jitter of the size of the precision's rounding: autocast differed by up to 4 times as much."""
SKETCHED, MATCHED_SKETCHED, MUCH = 6.0, 3.0, 0.1
"""Beyond a tenth of a tensor's way: compiled, in channels_last and under autocast, ways and first
gradients differed by 0.3 to 2.5 times what a jitter of their precision did."""
SCALED = 3.0
"""Where the jitter is of another size than the precision's rounding, it is scaled: less is then
added, as the scaling is already generous."""
STEEP = 1e-3
"""Moved so far by one ulp, a program runs apart, and what a thousand ulps do does not follow."""
LOST = 1.0
"""The most that means anything: two ways that have nothing in common lie 1.4 apart."""

Moved = Sequence[tuple[float, float]]
"""(jitter, how far it drifted)"""


def allowed_by_perturbation(floor: Floor, moved: Moved, *, sketched: bool = False) -> float:
    """`sketched`: drifts are of many numbers, not one or two; what is lost is then more than 1."""
    own = [drifted for jitter, drifted in moved if matches(floor, jitter)]
    if own:
        return _of_its_size(floor, max(own), sketched)
    below = [item for item in moved if item[0] < floor.unit]
    above = [item for item in moved if item[0] > floor.unit]
    if below and above:
        return _of_its_size(floor, _between(max(below), min(above), floor.unit), sketched)
    return max((_scaled(floor, *item) for item in below), default=0.0)


def matches(floor: Floor, jitter: float) -> bool:
    return 0.25 <= jitter / floor.unit <= 4


def is_known(floor: Floor, jitters: Sequence[float]) -> bool:
    """Of this size, or of sizes on both sides of it."""
    between = any(j < floor.unit for j in jitters) and any(j > floor.unit for j in jitters)
    return between or any(matches(floor, jitter) for jitter in jitters)


def usable(floor: Floor, jitter: float) -> bool:
    """One that is far larger than what the change rounds would let anything pass."""
    return jitter < floor.unit or matches(floor, jitter)


def _of_its_size(floor: Floor, drifted: float, sketched: bool) -> float:
    fine = floor.unit <= ULP
    wide = (PERTURBED if fine else MATCHED) * drifted
    if not sketched:
        return min(wide, LOST)
    # Without one number's luck, less is needed of much.
    return min(wide, max(MUCH, (SKETCHED if fine else MATCHED_SKETCHED) * drifted))


def _between(below: tuple[float, float], above: tuple[float, float], unit: float) -> float:
    """Along a power of the jitter: 1 where rounding only adds up, less where it has run apart."""
    (small, least), (large, most) = below, above
    if least <= 0 or most <= least:
        return max(most * unit / large, least)
    return float(least * (most / least) ** (log(unit / small) / log(large / small)))


def _scaled(floor: Floor, jitter: float, drifted: float) -> float:
    if drifted > STEEP * jitter / ULP:
        return LOST
    return min(SCALED * floor.unit / jitter * drifted, floor.most)


OTHERS = 0.2
"""Of how far the sums of one program's own batches lie apart. What a model has made of random
numbers (a fake that another judges) is moved by rounding, by less than a hundredth of that."""


def the_same(repeats: Sequence[Trial], perturbed: Sequence[Trial]) -> bool:
    """Whether the unchanged program sees the same batches each time. A jitter moves parameters, and
    may move what a model makes, but makes no other data of them."""
    base = repeats[0]
    exact = all(
        value is None or value <= ULP
        for place, one in enumerate(repeats)
        for other in repeats[place + 1 :]
        for value in distances.of_batch_sums(one, other)
    )
    return exact and not any(_has_other_batches(base, trial) for trial in perturbed)


def _has_other_batches(base: Trial, trial: Trial) -> bool:
    known = [
        (ours.batch_sum, theirs.batch_sum)
        for ours, theirs in zip(base.watched, trial.watched, strict=False)
        if ours.batch_sum is not None and theirs.batch_sum is not None
    ]
    apart = max((abs(a - b) for a, b in known), default=0.0)
    usual = pstdev([a for a, _ in known]) if known else 0.0
    return usual > 0 and apart > OTHERS * usual


def allowed_batch_drift(base: Trial, perturbed: Sequence[Trial], floor: Floor) -> float:
    """As the sums of what a model makes differ by rounding, where it makes some."""
    moved = [
        (trial.jitter, max((v for v in distances.of_batch_sums(base, trial) if v), default=0.0))
        for trial in perturbed
    ]
    return max(DATA, allowed_by_perturbation(floor, [item for item in moved if item[1] > ULP]))


BY_ROUNDING, APART = 0.02, 30.0
"""A tensor that rounding moves by a fiftieth of its own way, and 30 times as far as it moves the
median tensor, follows nothing but rounding: a bias before a batch norm, a bias of keys, both under
Adam, which takes a full step for any gradient. 5e-4 beside 1e-8 seen after a jitter of one ulp."""
FAINT, ANOTHER = 1e-3, 0.01
"""A first gradient a thousandth of the usual one, of which a jitter makes another: it is zero, but
for rounding. 1e-6 and 0.7 seen of a bias of keys, to whose shift a softmax is blind, and of parts
of one as little as 0.09; of what is not zero, moved by one ulp, 1e-5."""
SMALL = 8.0
"""One direction that Adam takes the other way is an eighth of the way of 16 elements."""
MOVES = 1e-5
"""Of the typical movement: below it a parameter has moved by rounding alone."""

When = Literal["gradients", "early", "tensors"]
Widened = Callable[[Moved], float]
"""What is allowed."""


class TensorBand(Struct, frozen=True, kw_only=True):
    name: str
    scale: float
    """What a difference is divided by."""
    allowed: float
    moves: bool
    """By more than rounding does."""
    by_rounding: bool = False
    """Follows rounding alone, and cannot be compared."""
    faint: frozenset[int] = frozenset()
    """Places of its sketch that do."""

    @property
    def lost(self) -> bool:
        """Allowed as much as its whole way, it is asked how far it went, not where."""
        return self.allowed >= LOST


class Faint(Struct, frozen=True):
    """What follows rounding alone, as first gradients and jittered trials show it."""

    whole: frozenset[str]
    parts: dict[str, frozenset[int]]


def prints_of(trial: Trial, when: When) -> tuple[TensorPrint, ...]:
    found: tuple[TensorPrint, ...] = getattr(trial, when)
    return found


def tensor_bands(
    when: When,
    repeats: Sequence[Trial],
    jitters: Sequence[Trial],
    floor: Floor,
    faint: Faint,
    widened: Widened,
    own: float,
) -> tuple[TensorBand, ...]:
    """`own`: times the distance of the baseline's repeats."""
    ours = prints_of(repeats[0], when)
    steps = {"gradients": 1, "early": 2, "tensors": len(repeats[0].watched)}[when]
    typical = distances.typical_move(ours)
    others = [_by_name(other, when) for other in repeats[1:]]
    moved = [(trial.jitter, _by_name(trial, when)) for trial in jitters]
    # One tensor's luck is not its band: none is held tighter than the jittered median.
    usual = [median(_drifts(ours, found, typical) or [0.0]) for _, found in moved]
    bands = []
    for tensor in ours:
        scale = distances.scale_of(tensor, typical)
        parts = faint.parts.get(tensor.name, frozenset())
        wide = [
            (jitter, max(_drift(tensor, found, scale, parts), all_))
            for (jitter, found), all_ in zip(moved, usual, strict=True)
        ]
        lowest = _lowest(tensor, floor, steps, bool(jitters))
        # The weights themselves are rounded at every step, which counts where they hardly move.
        norm = tensor.norm if isfinite(tensor.norm) else 0.0
        stored = 2 * ULP * norm * sqrt(steps + 1) / scale
        spread = [own * _drift(tensor, found, scale, parts) for found in others]
        bands.append(
            TensorBand(
                name=tensor.name,
                scale=scale,
                allowed=max(lowest + stored, widened(wide), *spread),
                moves=_moves(tensor, typical),
                by_rounding=not tensor.buffer and tensor.name in faint.whole,
                faint=parts,
            )
        )
    return tuple(bands)


def gradients_apart(one: Trial, other: Trial) -> list[float]:
    """First gradients, a parameter each."""
    typical = distances.typical_move(one.gradients)
    return _drifts(one.gradients, _by_name(other, "gradients"), typical)


def faint_of(base: Trial, jitters: Sequence[Trial], floor: Floor) -> Faint:
    whole, parts = _by_gradients(base, jitters)
    return Faint(whole | _followers(base, jitters, floor, parts), parts)


def _by_gradients(
    base: Trial, jitters: Sequence[Trial]
) -> tuple[frozenset[str], dict[str, frozenset[int]]]:
    least = min(jitters, key=lambda trial: trial.jitter, default=None)
    if least is None or least.jitter > 100 * ULP:
        return frozenset(), {}
    whole: set[str] = set()
    parts: dict[str, frozenset[int]] = {}
    found = _by_name(least, "gradients")
    typical = distances.typical_move(base.gradients)
    for tensor in base.gradients:
        other = found.get(tensor.name)
        if other is None or len(other.sketch) != len(tensor.sketch) or not tensor.sketch:
            continue
        size = max(tensor.moved, typical * sqrt(max(tensor.numel, 1)))
        places = _faint_places(tensor.sketch, other.sketch, size)
        if len(places) == len(tensor.sketch):
            whole.add(tensor.name)
        elif places:
            parts[tensor.name] = places
    return frozenset(whole), parts


def _faint_places(
    ours: tuple[float, ...], theirs: tuple[float, ...], size: float
) -> frozenset[int]:
    """Two by two, as they stand for one block of neighbours."""
    usual = size / sqrt(len(ours))
    places: set[int] = set()
    for at in range(0, len(ours) - 1, 2):
        own = hypot(*ours[at : at + 2])
        other = hypot(ours[at] - theirs[at], ours[at + 1] - theirs[at + 1])
        # A small tensor has fewer elements than blocks: nothing is neither faint nor loud.
        if own <= FAINT * usual and (other > ANOTHER * own or own == 0.0):
            places |= {at, at + 1}
    loud = any(ours[at] for at in places)
    return frozenset(places) if loud else frozenset()


def _followers(
    base: Trial, jitters: Sequence[Trial], floor: Floor, parts: dict[str, frozenset[int]]
) -> frozenset[str]:
    """Parameters that follow rounding alone, seen by where they went."""
    typical = distances.typical_move(base.tensors)
    names = set()
    for trial in jitters:
        found = _by_name(trial, "tensors")
        usual = median(_drifts(base.tensors, found, typical) or [0.0])
        least = max(BY_ROUNDING * min(trial.jitter / floor.unit, 1), APART * usual)
        for tensor in base.tensors:
            without = parts.get(tensor.name, frozenset())
            if _drift(tensor, found, distances.scale_of(tensor, typical), without) > least:
                names.add(tensor.name)
    return frozenset(names)


def _lowest(tensor: TensorPrint, floor: Floor, steps: int, perturbed: bool) -> float:
    few = 1 + SMALL / sqrt(max(tensor.numel, 1))
    if perturbed:
        return floor.buffer if tensor.buffer else floor.parameter * few
    # Buffers follow the activations, as losses do; parameters are sums over all steps, most of
    # which were early.
    grown = floor.grown(steps)
    if tensor.buffer:
        return max(min(floor.buffer * grown, floor.most), floor.buffer)
    return min(floor.parameter * sqrt(grown), max(floor.most, floor.parameter)) * few


def _moves(tensor: TensorPrint, typical: float) -> bool:
    least = MOVES * typical * sqrt(max(tensor.numel, 1))
    return tensor.moved > max(least, 2 * ULP * tensor.norm if tensor.buffer else least)


def _by_name(trial: Trial, when: When) -> dict[str, TensorPrint]:
    return {tensor.name: tensor for tensor in prints_of(trial, when)}


def _drift(
    tensor: TensorPrint,
    found: dict[str, TensorPrint],
    scale: float,
    without: frozenset[int] = frozenset(),
) -> float:
    other = found.get(tensor.name)
    return (distances.of_tensor(tensor, other, scale, without) or 0.0) if other else 0.0


def _drifts(
    ours: Sequence[TensorPrint], found: dict[str, TensorPrint], typical: float
) -> list[float]:
    return [
        _drift(tensor, found, distances.scale_of(tensor, typical))
        for tensor in ours
        if not tensor.buffer
    ]


FLOAT32_OUTPUTS = 1e-6
"""Of their norm: 3e-7 seen of a residual network and of a transformer."""
ALIKE = 0.5
"""Two repeats whose losses are near each other by luck say nothing of a third: gradients of other
weights, or of other masks, lie 1 apart and more, and have no luck."""
OWN = 6.0
"""How far two repeats lie apart says little of a third: of normal values 9 % lie further than 6
times that at a given step, few where the widest of all steps before counts."""


class Band(Struct, frozen=True, kw_only=True):
    losses: tuple[float, ...]
    """What is allowed at each step."""
    gradient_norms: tuple[float, ...]
    tensors: tuple[TensorBand, ...]
    """After the last step; `early` after the second, `gradients` of the first."""
    evaluation: float
    outputs: float
    """How far the model's first outputs may lie from float64, beside the baseline's own error."""
    way: float
    """For the way of the median parameter."""
    typical_move: float
    deterministic: bool
    """The repeats are equal in every number. Two equal ones do not prove it."""
    same_data: bool = True
    """The repeats saw the same batches."""
    data: float = DATA
    """How far sums of batches may lie apart."""
    repeatable: bool = True
    """They began alike: their first gradients have something in common."""
    doubt: float = 1.0
    """So many times the band is doubted and not refused; 1 where nothing is."""
    first_doubt: float = 1.0
    """The same of the first losses, before which nothing has grown: more than 1 only where a lower
    precision moves them by luck."""
    early: tuple[TensorBand, ...] = ()
    gradients: tuple[TensorBand, ...] = ()
    perturbed: bool = False
    """What rounding does to this program was seen, not assumed."""


def band_of(
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial] = (),
    alters: Alters = "nothing",
    precision: str = "float32",
) -> Band:
    """Around `repeats[0]`."""
    floor = floor_of(alters, precision)
    base = repeats[0]
    # A jitter alters every number by rounding: it says nothing of a change that must alter none.
    every = [] if alters == "nothing" else [trial for trial in perturbed if trial.jitter > 0]
    jitters = every if any(usable(floor, trial.jitter) for trial in every) else []
    known = floor.unit > ULP and is_known(floor, [trial.jitter for trial in jitters])
    faint = faint_of(base, every, floor)
    if faint.whole or (alters == "rounding" and not every):
        floor = floor.followed()
    # Adam's first ways are signs, which turn at any rounding, and a first gradient is of one batch,
    # in which a unit that switches counts: more is assumed of them.
    early, floor = floor, floor.known() if known else floor

    def along(of: Callable[[Trial, Trial], Series], lowest: float) -> tuple[float, ...]:
        return _along(base, repeats, jitters, of, floor, lowest)

    def of_tensors(when: When, floor: Floor) -> tuple[TensorBand, ...]:
        sketched = all(one.sketch for trial in jitters for one in prints_of(trial, when))
        wide = partial(allowed_by_perturbation, floor, sketched=sketched)
        return tensor_bands(when, repeats, jitters, floor, faint, wide, OWN)

    return Band(
        losses=along(distances.of_losses, floor.loss),
        gradient_norms=along(distances.of_gradient_norms, floor.gradient),
        tensors=of_tensors("tensors", floor),
        early=of_tensors("early", early),
        gradients=of_tensors("gradients", early),
        way=_way(repeats, jitters, floor),
        evaluation=_evaluation(repeats, jitters, floor),
        outputs=_outputs(base, jitters, floor),
        typical_move=distances.typical_move(base.tensors),
        deterministic=all(_same(base, other) for other in repeats[1:]),
        doubt=1.0 if alters == "nothing" else DOUBT_KNOWN if known else DOUBT,
        first_doubt=DOUBT_KNOWN if known else 1.0,
        perturbed=bool(jitters),
        repeatable=all(_alike(base, other) for other in repeats[1:]),
        same_data=the_same(repeats, perturbed),
        data=allowed_batch_drift(base, jitters, floor),
    )


def _along(
    base: Trial,
    repeats: Sequence[Trial],
    jitters: Sequence[Trial],
    of: Callable[[Trial, Trial], Series],
    floor: Floor,
    lowest: float,
) -> tuple[float, ...]:
    own = [of(one, other) for one, other in combinations(repeats, 2)]
    moved = [(trial.jitter, of(base, trial)) for trial in jitters]
    allowed: list[float] = []
    for step in range(len(base.watched)):
        # One perturbed trial may miss a unit that switches at a rounding: 4e-5 of a loss at step
        # 11 under two honest changes, 1e-6 under the jitter. So the floor grows with it, too.
        floored = min(lowest * floor.grown(step), floor.most)
        here = [OWN * _at(series, step) for series in own]
        wide = allowed_by_perturbation(
            floor, [(jitter, _at(series, step)) for jitter, series in moved]
        )
        # Never back: paths that went apart may cross.
        before = allowed[-1] if allowed else 0.0
        allowed.append(max(floored, before, wide, *here))
    return tuple(allowed)


def _way(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * (distances.of_way(base, other) or 0.0) for other in repeats[1:]]
    wide = allowed_by_perturbation(
        floor, [(t.jitter, distances.of_way(base, t) or 0.0) for t in jitters]
    )
    steps = len(base.watched)
    grown = floor.way * (1 + steps / 8 if jitters else sqrt(floor.grown(steps)))
    return max(min(grown, floor.most), wide, *own)


def _at(series: Series, step: int) -> float:
    return (series[step] or 0.0) if step < len(series) else 0.0


def _evaluation(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * _most(distances.of_evaluation(base, other)) for other in repeats[1:]]
    moved = [(trial.jitter, _most(distances.of_evaluation(base, trial))) for trial in jitters]
    wide = allowed_by_perturbation(floor, moved)
    grown = floor.evaluation * (1.0 if jitters else floor.grown(len(base.watched)))
    return max(min(grown, floor.most), wide, *own)


def _outputs(base: Trial, jitters: Sequence[Trial], floor: Floor) -> float:
    if floor.unit <= ULP:
        return FLOAT32_OUTPUTS
    moved = [(trial.jitter, _most(distances.of_outputs(base, trial))) for trial in jitters]
    return max(floor.evaluation, allowed_by_perturbation(floor, moved))


def _most(series: Series) -> float:
    return max((value for value in series if value is not None), default=0.0)


def _alike(one: Trial, other: Trial) -> bool:
    drifts = gradients_apart(one, other)
    return not drifts or median(drifts) <= ALIKE


def _same(one: Trial, other: Trial) -> bool:
    return (one.watched, one.tensors, one.evaluation) == (
        other.watched,
        other.tensors,
        other.evaluation,
    )
