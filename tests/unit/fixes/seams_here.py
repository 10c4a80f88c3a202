"""A program whose seams are moments of a test: handlers are kept and called by hand, and no class
of torch's is changed."""

from collections.abc import Iterable
from typing import Any

import torch

from ridgeline.fixes.program import Made, OnMade, Program
from ridgeline.records.facts import Place, Reason, because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied, FixTarget, NotApplied


class Here(Program):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__(torch)
        self.device = device

    def on_loader(self, fix: str, do: OnMade) -> None:
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_LOADER))

    def on_optimizer(self, fix: str, do: OnMade) -> None:
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_KNOWN_OPTIMIZER))

    def makes(self, kind: str = "DataLoader", place: str = "train.py:1", **given: Any) -> Any:
        """Return the arguments as the fixes leave them."""
        made = Made(kind, given, place)
        doing = self._on_loader if kind == "DataLoader" else self._on_optimizer
        for fix, do in doing:
            self._try(fix, do, made, place)
        return made.arguments

    @property
    def done(self) -> list[Reason]:
        return done(self.outcome()[0])

    @property
    def why_not(self) -> Reason | None:
        """Why the only fix that was not applied was not; None if all were."""
        left = self.outcome()[1]
        assert len(left) < 2
        return left[0].reason if left else None


def done(applied: Iterable[Applied]) -> list[Reason]:
    """Return what was done to the targets of all fixes, each thing once."""
    found = [target.done for one in applied for target in one.targets]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def why(left: Iterable[NotApplied]) -> list[Reason]:
    return [one.reason for one in left]


def applied(fix: str, *reasons: Reason, places: Iterable[str] = ()) -> Applied:
    """Return a fix that did each of these at each of these places."""
    at = [Place.parse(place) for place in places] or [None]
    return Applied(
        fix=fix, targets=tuple(FixTarget(done=one, place=place) for one in reasons for place in at)
    )


def option(call: str, name: str, value: int | bool) -> Reason:
    """Return what is done by a keyword of a call."""
    return because(Done.OPTION, call=call, option=name, value=value)


def no_source(file: str) -> str | None:
    """The source for fixes whose edits need no look at it."""
    return None


def code(reason: Reason | None) -> str:
    return reason.code if reason is not None else ""


def codes(reasons: Iterable[Reason]) -> list[str]:
    return [one.code for one in reasons]
