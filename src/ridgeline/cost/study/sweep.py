"""One dimension varied: counted and timed at each size, a law fitted, the next size predicted and
then tried, so that the law is judged on a point it never saw."""

from collections.abc import Callable
from itertools import pairwise

from ridgeline.cost.study.inputs import Dimension
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.model import Law, Sweep, SweepPoint
from ridgeline.statistics.law import fit_law, predict

QUANTITIES = {"flops": "FLOP", "peak_bytes": "B", "median_ms": "ms"}


def parse(text: str) -> tuple[Dimension, tuple[int, ...]]:
    name, equals, values = text.partition("=")
    sizes = tuple(int(v) for v in values.split(",") if v.strip().isdecimal() and int(v) > 0)
    if name not in ("batch", "seq") or not equals or len(sizes) != len(values.split(",")):
        raise UsageError(
            f"--sweep {text!r} is not understood", "write batch=1,2,4,8 or seq=128,256,512"
        )
    if len(set(sizes)) < 2:
        raise UsageError(
            "--sweep needs at least two sizes to fit a law", "for example batch=1,2,4,8"
        )
    dimension: Dimension = "batch" if name == "batch" else "seq"
    return dimension, tuple(sorted(set(sizes)))


def sweep(
    dimension: Dimension, sizes: tuple[int, ...], point_at: Callable[[int], SweepPoint]
) -> Sweep:
    found: list[SweepPoint] = []
    notes: list[str] = []
    failure: RidgelineError | None = None
    for size in sizes:
        try:
            found.append(point_at(size))
        except RidgelineError as error:  # one size that fails costs one row
            notes.append(f"{dimension} {size}: {error.message}")
            failure = error
    if len(found) < 2 and failure is not None:
        raise failure
    points = tuple(found)
    notes += [f"{dimension} {p.size}: {p.note}" for p in points if p.note]
    laws = _laws(points)
    next_size = 2 * sizes[-1] - sizes[-2] if _evenly_spaced(sizes) else 2 * sizes[-1]
    predicted = {name: predict(law, next_size) for name, law in laws.items()}
    observed: dict[str, float] = {}
    try:
        check = point_at(next_size)
    except RidgelineError as error:
        notes.append(f"{dimension} {next_size} could not be tried: {error.message}")
    else:
        observed = {n: v for n in QUANTITIES if (v := getattr(check, n)) is not None}
        if check.note:
            notes.append(f"{dimension} {next_size}: {check.note}")
    return Sweep(
        dimension=dimension,
        points=points,
        laws=laws,
        next_size=next_size,
        predicted=predicted,
        observed=observed,
        notes=tuple(notes),
    )


def _evenly_spaced(sizes: tuple[int, ...]) -> bool:
    steps = {b - a for a, b in pairwise(sizes)}
    return len(sizes) > 2 and len(steps) == 1


def _laws(points: tuple[SweepPoint, ...]) -> dict[str, Law]:
    laws: dict[str, Law] = {}
    for name, unit in QUANTITIES.items():
        known = [(p.size, getattr(p, name)) for p in points if getattr(p, name) is not None]
        if len(known) >= 2:
            sizes, values = zip(*known, strict=True)
            laws[name] = fit_law(sizes, values, unit=unit)
    return laws
