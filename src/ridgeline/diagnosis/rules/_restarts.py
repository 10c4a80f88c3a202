"""Workers that are started again: what the first step of an epoch takes longer than the others."""

from statistics import median

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._loaders import loaders_seen, made_anew
from ridgeline.records.run import LoaderSeen
from ridgeline.records.step import Step

FEWEST = 2
"""Beginnings: one slow step has many reasons."""
TELLING = 0.25
"""Of a median step: what beginnings take longer at least; less is noise."""


class Restarts(Struct, frozen=True, kw_only=True):
    loader: LoaderSeen
    anew: bool = False
    """The loader itself is made again in each epoch, and its workers with it."""
    epochs: int
    """Beginnings seen among untraced steps."""
    extra_ms: float
    """The first step of an epoch, more than the median step."""
    every: float
    """Steps from one beginning to the next."""
    share: float
    """Of all time of the steps looked at."""
    input_share: float
    """The part of it that is counted as input wait, of the mean step."""


def restarts(case: Case) -> Restarts | None:
    again = [one for one in loaders_seen(case) if one.workers and one.epochs > FEWEST]
    loader = max(again, key=lambda one: one.batches, default=None)
    anew = made_anew(case, loader)
    if loader is None or (loader.persistent_workers and not anew):
        return None
    light = [s for s in case.steps if s.window == "light" and s.detailed]
    first = {index for index in loader.begun if index}  # the very first is the program's start
    begins = [s for s in light if s.index in first]
    others = [s for s in light if s.index not in first]
    if len(begins) < FEWEST or not others:
        return None
    usual, waited = median(_ms(s) for s in others), median(_input_ms(s) for s in others)
    extra = median(_ms(s) for s in begins) - usual
    if extra < TELLING * usual:
        return None
    whole = sum(_ms(s) for s in light)
    # New workers are at it in the step after, too; and steps beside them are slower than alone.
    near = [s for s in light if s.index in first or s.index - 1 in first]
    calm = sorted(_ms(s) for s in light if s not in near) or [usual]
    lost = sum(max(_ms(s) - calm[len(calm) // 4], 0.0) for s in near)
    waits = sum(max(_input_ms(s) - waited, 0.0) for s in near)
    return Restarts(
        loader=loader,
        anew=anew,
        epochs=len(begins),
        extra_ms=extra,
        every=len(light) / len(begins),
        share=min(lost / whole, 1.0),
        input_share=min(waits / whole, 1.0),
    )


def _ms(step: Step) -> float:
    return step.dur_ns / 1e6


def _input_ms(step: Step) -> float:
    return step.host.get("input", 0) / 1e6
