"""Noise bands: how far two correct runs may lie apart, given what the fix may alter and the
precision it computes in. All distances are relative."""

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

MAX_GROWTH_STEPS = 12
"""Differences grow for at most this many steps: 1.8 a step over 12 steps is a factor of a thousand,
more than was seen in any program."""
DOUBT_FACTOR, MEASURED_DOUBT_FACTOR = 5.0, 2.0
"""If rounding may differ, a difference of up to this many times the noise band makes the answer
weak, not different. A unit that switches at a rounding, which a single perturbed run need not meet,
moved losses by 2.5 times the band. A perturbation of a lower precision's size meets many such
units, so the factor is smaller once the noise was measured."""
SWITCH_PARAMETER, SWITCH_MOVEMENT, SWITCH_BUFFER, SWITCH_OUTPUT = 0.01, 0.003, 0.05, 0.05
"""Differences that are at most doubted, whatever the band, because one unit that switches caused as
much while the losses were in the band: 0.4 and 1.1 % of a parameter's movement, 7e-5 of the median
movement, 2.4 % of a running mean's movement, 5.1 % of an output that is normalised by such means.
"""
SWITCH_GRADIENT = 0.1
"""The same for a first gradient: one of 24 units for one of 16 samples is 5 %; 6.8 % was seen under
TF32."""
BATCH_SUM_TOLERANCE = 1e-5
"""Sums of equal batches differ by the order of addition; those of other batches differ by 1e-3 and
more."""


class Floor(Struct, frozen=True, kw_only=True):
    """The smallest differences that a noise band allows, at a precision."""

    loss: float
    gradient: float
    parameter: float
    """The band as a share of how far the parameter moved."""
    movement: float
    """For the distance that the median parameter moved, as a share of it."""
    buffer: float
    """The band as a share of how far the buffer moved."""
    evaluation: float
    growth: float
    """Factor by which differences grow in each of the first MAX_GROWTH_STEPS steps."""
    max_assumed: float
    """Upper limit of what is allowed by assumption and not by measurement."""
    unit: float
    """Rounding unit of the precision; drifts of perturbed runs are scaled by it."""

    def growth_after(self, steps: int) -> float:
        return self.growth ** min(steps, MAX_GROWTH_STEPS)

    def with_measured_noise(self) -> "Floor":
        """Return the floor to use once a perturbation of this precision's size was measured: less
        has to be assumed. Buffers and outputs keep theirs, because they follow biases that move by
        rounding alone. A loss keeps at least one unit: it is a single number, which a perturbation
        may leave alone by luck. ResNet-50's first loss was 0.01 to 0.4 % off under bfloat16, and
        0.006 to 0.4 % under the perturbation, over 14 seeds."""
        return replace(
            self,
            loss=max(MEASURED_FLOOR_SHARE * self.loss, self.unit),
            gradient=MEASURED_FLOOR_SHARE * self.gradient,
            parameter=MEASURED_FLOOR_SHARE * self.parameter,
            movement=MEASURED_FLOOR_SHARE * self.movement,
        )

    def with_noisy_biases(self) -> "Floor":
        """Return the floor for a model with biases before batch norms, which move by rounding
        alone. Running means follow them: 0.1 % of their movement after 8 steps of Adam in
        float32."""
        return replace(self, buffer=max(self.buffer, 0.02), evaluation=max(self.evaluation, 0.005))


MEASURED_FLOOR_SHARE = 0.2
"""Share of the assumed floor that is kept once the noise was measured. Autocast to bfloat16
differed by 0.1 to 4 times what a perturbation of its size did, and that moved losses by 2e-4 and
parameters by 5e-3 in small programs: a fifth of what is assumed of all programs."""


EXACT = Floor(
    # The program does the same arithmetic. What remains: our own sums over tensors at other
    # addresses, where the vector loop starts elsewhere, 1 to 4 ulps, and what the program makes of
    # such an ulp.
    loss=8 * ULP, gradient=16 * ULP, parameter=64 * ULP, movement=32 * ULP, buffer=64 * ULP,
    evaluation=16 * ULP, growth=1.15, max_assumed=1e-4, unit=ULP,
)  # fmt: skip
_ROUNDING = {
    "float64": Floor(
        loss=1e-13, gradient=1e-12, parameter=1e-11, movement=1e-12, buffer=1e-12,
        evaluation=1e-12, growth=1.8, max_assumed=1e-4, unit=2.0**-52,
    ),
    # Reordered sums: 2e-7 for a fused optimizer or a compiled GPT, 6e-5 after 10 steps for a
    # batch-norm network in channels_last; 2e-5 after 5 steps for one of 6 convolutions and SGD.
    "float32": Floor(
        loss=3e-6, gradient=5e-5, parameter=1e-4, movement=2e-5, buffer=5e-5, evaluation=2e-5,
        growth=1.8, max_assumed=0.05, unit=ULP,
    ),
    "tf32": Floor(
        loss=2e-3, gradient=1e-2, parameter=3e-2, movement=1e-2, buffer=1e-2, evaluation=1e-2,
        growth=1.15, max_assumed=0.25, unit=2.0**-11,
    ),
    "float16": Floor(
        loss=5e-3, gradient=2e-2, parameter=5e-2, movement=1e-2, buffer=2e-2, evaluation=3e-2,
        growth=1.15, max_assumed=0.25, unit=2.0**-11,
    ),
    # 2e-5 to 1e-2 seen on losses of eight programs; 18 % after 33 steps on a memorised batch.
    "bfloat16": Floor(
        loss=1e-2, gradient=5e-2, parameter=0.1, movement=2e-2, buffer=5e-2, evaluation=5e-2,
        growth=1.15, max_assumed=0.25, unit=2.0**-8,
    ),
}  # fmt: skip
_NAMES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "half": "float16",
          "bf16": "bfloat16", "tensorfloat32": "tf32"}  # fmt: skip


def floor_of(alters: Alters, precision: str) -> Floor:
    """Return the floor. An unknown precision (float8, int8) gets that of the coarsest known one."""
    if alters == "nothing":
        return EXACT
    name = precision.removeprefix("torch.").lower()
    return _ROUNDING.get(_NAMES.get(name, name), _ROUNDING["bfloat16"])


ULP_DRIFT_FACTOR = 16.0
"""A float32 run may differ by this many times what a perturbed run did: the perturbation moves the
parameters alone, a reordering rounds anew in every layer."""
MATCHED_DRIFT_FACTOR = 8.0
"""The same for lower precisions and a perturbation of their size: autocast differed by up to 4
times as much."""
SKETCH_DRIFT_FACTOR, MATCHED_SKETCH_DRIFT_FACTOR, LARGE_DRIFT = 6.0, 3.0, 0.1
"""Smaller factors for sketches (many numbers), beyond a tenth of a tensor's movement: compiled, in
channels_last and under autocast, movements and first gradients differed by 0.3 to 2.5 times what a
perturbation of their precision's size did."""
SCALED_DRIFT_FACTOR = 3.0
"""Factor for a drift that is scaled from a perturbation of another size. It is small because the
scaling itself is generous."""
CHAOTIC_DRIFT = 1e-3
"""A program that drifts this far after a perturbation of one ulp is chaotic: what a thousand ulps
do does not follow from it."""
UNINFORMATIVE_BAND = 1.0
"""A band this wide compares nothing: two movements that have nothing in common lie 1.4 apart."""

Drifts = Sequence[tuple[float, float]]
"""(size of the perturbation, how far the run drifted)"""


def allowed_by_perturbation(floor: Floor, drifts: Drifts, *, sketched: bool = False) -> float:
    """Return the allowed difference. `sketched`: drifts are taken over many numbers, not one or
    two; a tensor that has lost its direction then drifts by more than 1."""
    own = [drifted for jitter, drifted in drifts if is_of_unit_size(floor, jitter)]
    if own:
        return _widened(floor, max(own), sketched)
    below = [item for item in drifts if item[0] < floor.unit]
    above = [item for item in drifts if item[0] > floor.unit]
    if below and above:
        return _widened(floor, _interpolated(max(below), min(above), floor.unit), sketched)
    return max((_scaled(floor, *item) for item in below), default=0.0)


def is_of_unit_size(floor: Floor, jitter: float) -> bool:
    return 0.25 <= jitter / floor.unit <= 4


def is_measured(floor: Floor, sizes: Sequence[float]) -> bool:
    """Return whether the precision's noise was measured: by a perturbation of its size, or by
    smaller and larger ones."""
    between = any(size < floor.unit for size in sizes) and any(size > floor.unit for size in sizes)
    return between or any(is_of_unit_size(floor, size) for size in sizes)


def is_usable(floor: Floor, jitter: float) -> bool:
    """Return whether the perturbation is small enough: a much larger one than the precision's
    rounding would let anything pass."""
    return jitter < floor.unit or is_of_unit_size(floor, jitter)


def _widened(floor: Floor, drifted: float, sketched: bool) -> float:
    fine = floor.unit <= ULP
    wide = (ULP_DRIFT_FACTOR if fine else MATCHED_DRIFT_FACTOR) * drifted
    if not sketched:
        return min(wide, UNINFORMATIVE_BAND)
    # Over many numbers luck averages out, so a smaller factor is enough.
    return min(
        wide,
        max(LARGE_DRIFT, (SKETCH_DRIFT_FACTOR if fine else MATCHED_SKETCH_DRIFT_FACTOR) * drifted),
    )


def _interpolated(below: tuple[float, float], above: tuple[float, float], unit: float) -> float:
    """Interpolate the drift along a power of the perturbation: 1 where rounding only adds up, less
    where the run is chaotic."""
    (small, least), (large, most) = below, above
    if least <= 0 or most <= least:
        return max(most * unit / large, least)
    return float(least * (most / least) ** (log(unit / small) / log(large / small)))


def _scaled(floor: Floor, jitter: float, drifted: float) -> float:
    if drifted > CHAOTIC_DRIFT * jitter / ULP:
        return UNINFORMATIVE_BAND
    return min(SCALED_DRIFT_FACTOR * floor.unit / jitter * drifted, floor.max_assumed)


MIN_OTHER_BATCH_SHARE = 0.2
"""Sums of other batches lie further apart than this share of their usual spread. What a model makes
of random numbers (an image that a discriminator judges) moves by rounding, by less than a hundredth
of that."""


def sees_same_batches(repeats: Sequence[Trial], perturbed: Sequence[Trial]) -> bool:
    """Return whether the baseline sees the same batches each time. A perturbed run may move batches
    that a model makes, but does not replace the data."""
    base = repeats[0]
    exact = all(
        value is None or value <= ULP
        for place, trial in enumerate(repeats)
        for other in repeats[place + 1 :]
        for value in distances.of_batch_sums(trial, other)
    )
    return exact and not any(_has_other_batches(base, trial) for trial in perturbed)


def _has_other_batches(base: Trial, trial: Trial) -> bool:
    sums = [
        (ours.batch_sum, theirs.batch_sum)
        for ours, theirs in zip(base.watched, trial.watched, strict=False)
        if ours.batch_sum is not None and theirs.batch_sum is not None
    ]
    apart = max((abs(a - b) for a, b in sums), default=0.0)
    usual = pstdev([a for a, _ in sums]) if sums else 0.0
    return usual > 0 and apart > MIN_OTHER_BATCH_SHARE * usual


def allowed_batch_drift(base: Trial, perturbed: Sequence[Trial], floor: Floor) -> float:
    """Return how far batch sums may differ: more where a model makes the batches."""
    drifts = [
        (trial.jitter, max((v for v in distances.of_batch_sums(base, trial) if v), default=0.0))
        for trial in perturbed
    ]
    return max(
        BATCH_SUM_TOLERANCE,
        allowed_by_perturbation(floor, [item for item in drifts if item[1] > ULP]),
    )


MIN_NOISE_MOVEMENT, MIN_NOISE_MEDIAN_FACTOR = 0.02, 30.0
"""A tensor that rounding moves by a fiftieth of its own movement, and 30 times as far as it moves
the median tensor, follows rounding alone: a bias before a batch norm or a bias of keys, both under
Adam, which takes a full step for any gradient. 5e-4 beside 1e-8 was seen after a perturbation of
one ulp."""
MAX_FAINT_SHARE, MIN_FAINT_CHANGE = 1e-3, 0.01
"""A first gradient of a thousandth of the usual size, which a perturbation changes by more than
1 %, is zero but for rounding. 1e-6 and 0.7 were seen in a bias of keys, to whose shift a softmax is
blind, and as little as 0.09 in parts of one; gradients that are not zero changed by 1e-5 after one
ulp."""
SMALL_TENSOR_LEEWAY = 8.0
"""Small tensors get more leeway: one direction in which Adam steps the other way is an eighth of
the movement of 16 elements."""
MIN_MOVEMENT_SHARE = 1e-5
"""A parameter that moved by less than this share of the typical movement moved by rounding alone.
"""

Snapshot = Literal["gradients", "early", "tensors"]
AllowedBy = Callable[[Drifts], float]
"""Returns the allowed difference for the drifts of the perturbed runs."""


class TensorBand(Struct, frozen=True, kw_only=True):
    """Says how one tensor is compared."""

    name: str
    scale: float
    """Differences are divided by this."""
    allowed: float
    moves: bool
    """Whether it moves by more than rounding in the baseline."""
    noise_only: bool = False
    """Whether it follows rounding alone, so that it cannot be compared."""
    noise_only_indices: frozenset[int] = frozenset()
    """Indices of its sketch that follow rounding alone and cannot be compared."""

    @property
    def direction_lost(self) -> bool:
        """Whether rounding may turn it in any direction: only how far it moved is compared."""
        return self.allowed >= UNINFORMATIVE_BAND


class NoiseOnly(Struct, frozen=True):
    """Tensors, and parts of tensors, that follow rounding alone, as first gradients and perturbed
    runs show."""

    tensors: frozenset[str]
    indices: dict[str, frozenset[int]]


def prints_of(trial: Trial, snapshot: Snapshot) -> tuple[TensorPrint, ...]:
    prints: tuple[TensorPrint, ...] = getattr(trial, snapshot)
    return prints


def tensor_bands(
    snapshot: Snapshot,
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial],
    floor: Floor,
    noise_only: NoiseOnly,
    allowed_by: AllowedBy,
    own: float,
) -> tuple[TensorBand, ...]:
    """Return the band of each tensor. `own` is the factor for the distance between repeats of the
    baseline."""
    ours = prints_of(repeats[0], snapshot)
    steps = {"gradients": 1, "early": 2, "tensors": len(repeats[0].watched)}[snapshot]
    typical = distances.typical_move(ours)
    others = [_by_name(other, snapshot) for other in repeats[1:]]
    perturbed_prints = [(trial.jitter, _by_name(trial, snapshot)) for trial in perturbed]
    # No tensor is held tighter than the median drift: its own drift may be small by luck.
    usual = [median(_drifts(ours, prints, typical) or [0.0]) for _, prints in perturbed_prints]
    bands = []
    for tensor in ours:
        scale = distances.scale_of(tensor, typical)
        indices = noise_only.indices.get(tensor.name, frozenset())
        wide = [
            (jitter, max(_drift(tensor, prints, scale, indices), median_drift))
            for (jitter, prints), median_drift in zip(perturbed_prints, usual, strict=True)
        ]
        lowest = _lowest(tensor, floor, steps, bool(perturbed))
        # The weights themselves are rounded at every step, which matters where they hardly move.
        norm = tensor.norm if isfinite(tensor.norm) else 0.0
        stored = 2 * ULP * norm * sqrt(steps + 1) / scale
        spread = [own * _drift(tensor, prints, scale, indices) for prints in others]
        bands.append(
            TensorBand(
                name=tensor.name,
                scale=scale,
                allowed=max(lowest + stored, allowed_by(wide), *spread),
                moves=_moves(tensor, typical),
                noise_only=not tensor.buffer and tensor.name in noise_only.tensors,
                noise_only_indices=indices,
            )
        )
    return tuple(bands)


def gradient_distances(one: Trial, other: Trial) -> list[float]:
    """Return the distance of the first gradient of each parameter."""
    typical = distances.typical_move(one.gradients)
    return _drifts(one.gradients, _by_name(other, "gradients"), typical)


def find_noise_only(base: Trial, perturbed: Sequence[Trial], floor: Floor) -> NoiseOnly:
    tensors, indices = _noise_only_by_gradients(base, perturbed)
    return NoiseOnly(tensors | _noise_only_by_movement(base, perturbed, floor, indices), indices)


def _noise_only_by_gradients(
    base: Trial, perturbed: Sequence[Trial]
) -> tuple[frozenset[str], dict[str, frozenset[int]]]:
    least = min(perturbed, key=lambda trial: trial.jitter, default=None)
    if least is None or least.jitter > 100 * ULP:
        return frozenset(), {}
    tensors: set[str] = set()
    indices: dict[str, frozenset[int]] = {}
    prints = _by_name(least, "gradients")
    typical = distances.typical_move(base.gradients)
    for tensor in base.gradients:
        other = prints.get(tensor.name)
        if other is None or len(other.sketch) != len(tensor.sketch) or not tensor.sketch:
            continue
        size = max(tensor.moved, typical * sqrt(max(tensor.numel, 1)))
        faint = _faint_indices(tensor.sketch, other.sketch, size)
        if len(faint) == len(tensor.sketch):
            tensors.add(tensor.name)
        elif faint:
            indices[tensor.name] = faint
    return frozenset(tensors), indices


def _faint_indices(
    ours: tuple[float, ...], theirs: tuple[float, ...], size: float
) -> frozenset[int]:
    """Return the indices that are noise. Sketch numbers come in pairs, one pair for a block of
    neighbours."""
    usual = size / sqrt(len(ours))
    faint: set[int] = set()
    for start in range(0, len(ours) - 1, 2):
        own = hypot(*ours[start : start + 2])
        other = hypot(ours[start] - theirs[start], ours[start + 1] - theirs[start + 1])
        # A small tensor has fewer elements than blocks: an empty block is no evidence.
        if own <= MAX_FAINT_SHARE * usual and (other > MIN_FAINT_CHANGE * own or own == 0.0):
            faint |= {start, start + 1}
    loud = any(ours[start] for start in faint)
    return frozenset(faint) if loud else frozenset()


def _noise_only_by_movement(
    base: Trial, perturbed: Sequence[Trial], floor: Floor, indices: dict[str, frozenset[int]]
) -> frozenset[str]:
    """Return parameters that follow rounding alone, judged by how perturbed runs moved them."""
    typical = distances.typical_move(base.tensors)
    names = set()
    for trial in perturbed:
        prints = _by_name(trial, "tensors")
        usual = median(_drifts(base.tensors, prints, typical) or [0.0])
        least = max(
            MIN_NOISE_MOVEMENT * min(trial.jitter / floor.unit, 1), MIN_NOISE_MEDIAN_FACTOR * usual
        )
        for tensor in base.tensors:
            ignored = indices.get(tensor.name, frozenset())
            if _drift(tensor, prints, distances.scale_of(tensor, typical), ignored) > least:
                names.add(tensor.name)
    return frozenset(names)


def _lowest(tensor: TensorPrint, floor: Floor, steps: int, measured: bool) -> float:
    few = 1 + SMALL_TENSOR_LEEWAY / sqrt(max(tensor.numel, 1))
    if measured:
        return floor.buffer if tensor.buffer else floor.parameter * few
    # Buffers follow the activations, as losses do. Parameters are sums over all steps, most of
    # which came before differences had grown.
    grown = floor.growth_after(steps)
    if tensor.buffer:
        return max(min(floor.buffer * grown, floor.max_assumed), floor.buffer)
    highest = max(floor.max_assumed, floor.parameter)
    return min(floor.parameter * sqrt(grown), highest) * few


def _moves(tensor: TensorPrint, typical: float) -> bool:
    least = MIN_MOVEMENT_SHARE * typical * sqrt(max(tensor.numel, 1))
    return tensor.moved > max(least, 2 * ULP * tensor.norm if tensor.buffer else least)


def _by_name(trial: Trial, snapshot: Snapshot) -> dict[str, TensorPrint]:
    return {tensor.name: tensor for tensor in prints_of(trial, snapshot)}


def _drift(
    tensor: TensorPrint,
    prints: dict[str, TensorPrint],
    scale: float,
    ignored: frozenset[int] = frozenset(),
) -> float:
    other = prints.get(tensor.name)
    return (distances.of_tensor(tensor, other, scale, ignored) or 0.0) if other else 0.0


def _drifts(
    ours: Sequence[TensorPrint], prints: dict[str, TensorPrint], typical: float
) -> list[float]:
    return [
        _drift(tensor, prints, distances.scale_of(tensor, typical))
        for tensor in ours
        if not tensor.buffer
    ]


FLOAT32_OUTPUT_TOLERANCE = 1e-6
"""Relative to the norm: 3e-7 was seen with a residual network and with a transformer."""
MAX_GRADIENT_DISTANCE = 0.5
"""Two repeats whose losses agree by luck say nothing of a third run. First gradients of other
weights or other dropout masks lie 1 apart or more, so a median above this shows that the baseline
does not begin alike."""
REPEAT_FACTOR = 6.0
"""Factor on the distance of two repeats, which says little of a third: of normal values 9 % lie
further off than 6 times that at a given step, and few where the widest step so far counts."""


class Band(Struct, frozen=True, kw_only=True):
    """Says how far a candidate may lie from the baseline."""

    losses: tuple[float, ...]
    """Allowed difference at each step."""
    gradient_norms: tuple[float, ...]
    tensors: tuple[TensorBand, ...]
    """After the last step; `early` is after the second, `gradients` those of the first."""
    evaluation: float
    outputs: float
    """How far the model's first outputs may lie from float64, beyond the baseline's own error."""
    movement: float
    """Allowed difference in the distance that the median parameter moved."""
    typical_move: float
    deterministic: bool
    """Whether the repeats are equal in every number. Two equal runs do not prove it."""
    same_data: bool = True
    """Whether the repeats saw the same batches."""
    batch_sums: float = BATCH_SUM_TOLERANCE
    """How far sums of batches may lie apart."""
    repeatable: bool = True
    """Whether the repeats began alike: their first gradients have something in common."""
    doubt_factor: float = 1.0
    """A difference of up to this many times the band makes the answer weak; 1: none does."""
    first_doubt_factor: float = 1.0
    """The same for the first losses, before anything has grown: more than 1 only where a lower
    precision moves them by luck."""
    early: tuple[TensorBand, ...] = ()
    gradients: tuple[TensorBand, ...] = ()
    noise_measured: bool = False
    """Whether rounding noise of this program was measured with perturbed runs, not assumed."""


def band_of(
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial] = (),
    alters: Alters = "nothing",
    precision: str = "float32",
) -> Band:
    """Return the band around `repeats[0]`."""
    floor = floor_of(alters, precision)
    base = repeats[0]
    # A perturbation alters every number by rounding: it does not apply to a fix that may alter
    # none.
    every = [] if alters == "nothing" else [trial for trial in perturbed if trial.jitter > 0]
    usable = every if any(is_usable(floor, trial.jitter) for trial in every) else []
    measured = floor.unit > ULP and is_measured(floor, [trial.jitter for trial in usable])
    noise_only = find_noise_only(base, every, floor)
    if noise_only.tensors or (alters == "rounding" and not every):
        floor = floor.with_noisy_biases()
    # Adam's first steps are signs, which turn at any rounding, and a first gradient is of one
    # batch, in which a single switching unit counts: more is assumed for both.
    early, floor = floor, floor.with_measured_noise() if measured else floor

    def along(of: Callable[[Trial, Trial], Series], lowest: float) -> tuple[float, ...]:
        return _allowed_by_step(base, repeats, usable, of, floor, lowest)

    def of_tensors(snapshot: Snapshot, floor: Floor) -> tuple[TensorBand, ...]:
        sketched = all(tensor.sketch for trial in usable for tensor in prints_of(trial, snapshot))
        wide = partial(allowed_by_perturbation, floor, sketched=sketched)
        return tensor_bands(snapshot, repeats, usable, floor, noise_only, wide, REPEAT_FACTOR)

    return Band(
        losses=along(distances.of_losses, floor.loss),
        gradient_norms=along(distances.of_gradient_norms, floor.gradient),
        tensors=of_tensors("tensors", floor),
        early=of_tensors("early", early),
        gradients=of_tensors("gradients", early),
        movement=_allowed_movement(repeats, usable, floor),
        evaluation=_allowed_evaluation(repeats, usable, floor),
        outputs=_allowed_output_error(base, usable, floor),
        typical_move=distances.typical_move(base.tensors),
        deterministic=all(_are_identical(base, other) for other in repeats[1:]),
        doubt_factor=1.0
        if alters == "nothing"
        else MEASURED_DOUBT_FACTOR
        if measured
        else DOUBT_FACTOR,
        first_doubt_factor=MEASURED_DOUBT_FACTOR if measured else 1.0,
        noise_measured=bool(usable),
        repeatable=all(_begin_alike(base, other) for other in repeats[1:]),
        same_data=sees_same_batches(repeats, perturbed),
        batch_sums=allowed_batch_drift(base, usable, floor),
    )


def _allowed_by_step(
    base: Trial,
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial],
    of: Callable[[Trial, Trial], Series],
    floor: Floor,
    lowest: float,
) -> tuple[float, ...]:
    own = [of(one, other) for one, other in combinations(repeats, 2)]
    drifts = [(trial.jitter, of(base, trial)) for trial in perturbed]
    allowed: list[float] = []
    for step in range(len(base.watched)):
        # A perturbed run may miss a unit that switches at a rounding: two correct fixes moved the
        # loss of step 11 by 4e-5, the perturbation by 1e-6. So the floor grows with the steps, too.
        floored = min(lowest * floor.growth_after(step), floor.max_assumed)
        here = [REPEAT_FACTOR * _value_at(series, step) for series in own]
        wide = allowed_by_perturbation(
            floor, [(jitter, _value_at(series, step)) for jitter, series in drifts]
        )
        # The band never narrows: trajectories that went apart may cross.
        before = allowed[-1] if allowed else 0.0
        allowed.append(max(floored, before, wide, *here))
    return tuple(allowed)


def _allowed_movement(repeats: Sequence[Trial], perturbed: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [
        REPEAT_FACTOR * (distances.of_median_movement(base, other) or 0.0) for other in repeats[1:]
    ]
    wide = allowed_by_perturbation(
        floor, [(t.jitter, distances.of_median_movement(base, t) or 0.0) for t in perturbed]
    )
    steps = len(base.watched)
    grown = floor.movement * (1 + steps / 8 if perturbed else sqrt(floor.growth_after(steps)))
    return max(min(grown, floor.max_assumed), wide, *own)


def _value_at(series: Series, step: int) -> float:
    return (series[step] or 0.0) if step < len(series) else 0.0


def _allowed_evaluation(
    repeats: Sequence[Trial], perturbed: Sequence[Trial], floor: Floor
) -> float:
    base = repeats[0]
    own = [REPEAT_FACTOR * _largest(distances.of_evaluation(base, other)) for other in repeats[1:]]
    drifts = [(trial.jitter, _largest(distances.of_evaluation(base, trial))) for trial in perturbed]
    wide = allowed_by_perturbation(floor, drifts)
    grown = floor.evaluation * (1.0 if perturbed else floor.growth_after(len(base.watched)))
    return max(min(grown, floor.max_assumed), wide, *own)


def _allowed_output_error(base: Trial, perturbed: Sequence[Trial], floor: Floor) -> float:
    if floor.unit <= ULP:
        return FLOAT32_OUTPUT_TOLERANCE
    drifts = [(trial.jitter, _largest(distances.of_outputs(base, trial))) for trial in perturbed]
    return max(floor.evaluation, allowed_by_perturbation(floor, drifts))


def _largest(series: Series) -> float:
    return max((value for value in series if value is not None), default=0.0)


def _begin_alike(one: Trial, other: Trial) -> bool:
    drifts = gradient_distances(one, other)
    return not drifts or median(drifts) <= MAX_GRADIENT_DISTANCE


def _are_identical(one: Trial, other: Trial) -> bool:
    return (one.watched, one.tensors, one.evaluation) == (
        other.watched,
        other.tensors,
        other.evaluation,
    )
