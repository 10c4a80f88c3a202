"""Gradients dropped instead of filled with zeros.

Equal only while every parameter whose gradient was dropped gets another before its next update:
one with a gradient of zeros is still moved by momentum, moments and weight decay, one without is
left where it is. That is checked at every update of a trial; until it has held for some the change
counts as not applied, and where it breaks then, zeros are put back and the program goes on as it
was.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import Fix
from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

FIX = Fix(
    id="set-to-none",
    group="optimizer",
    title="gradients dropped, not zeroed",
    alters="nothing",
    answers=("zero-grad-fill",),
    why="Zeros are written, read, added to and written again; a gradient that is None is taken "
    "from the backward as it is.",
    wrong_when="In some steps a parameter gets no gradient (a layer left out, an expert without "
    "tokens): zeros would still have moved it, by momentum, moments or weight decay. Or the "
    "program reads p.grad before the backward, or keeps gradients in a buffer of its own.",
    edit_why="gradients are taken from the backward, not added to zeros",
)
MIN_UPDATES = 4
"""The fix counts as applied when every dropped gradient came back in so many updates."""


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.optimizers:
        return because(Skip.NO_OPTIMIZER)
    found = "zero-grad-fill" in ground.findings
    return None if found else because(Skip.NO_ZERO_FILL)


def apply(program: Program, options: Mapping[str, str]) -> None:
    module = importlib.import_module("torch.optim.optimizer")
    program.found_nothing(FIX.id, because(Skip.NO_ZERO_GRAD_CALL))
    dropping = Dropping(program)
    for owner in (module.Optimizer, program.torch.nn.Module):
        owner.zero_grad = dropping.instead_of(owner.zero_grad)
    module.register_optimizer_step_pre_hook(dropping.update)


class Dropping:
    """The gradients that were dropped, and whether each came back."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._off = False
        self._held = 0
        self._places: dict[str, None] = {}
        self._dropped: dict[int, Any] = {}
        """Parameters by id, because `==` of parameters compares tensors."""

    def instead_of(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if set_to_none or self._off:
                return theirs(owner, set_to_none)
            self._drops(owner)
            return theirs(owner, True)

        return zero_grad

    def update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        if self._off or not self._dropped:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self._dropped.pop(id(parameter), None) is None or parameter.grad is not None:
                    continue
                self._missing(parameter, _moves(optimizer, group))
        self._held += 1
        if self._held == MIN_UPDATES and not self._off:
            done = because(Done.OPTION, call="zero_grad", option="set_to_none", value=True)
            for place in self._places:
                self._program.did(FIX.id, done, place)

    def _drops(self, owner: Any) -> None:
        if self._held < MIN_UPDATES:
            self._places[user_line()] = None
            reason = because(Skip.TOO_FEW_UPDATES, min_updates=MIN_UPDATES)
            self._program.found_nothing(FIX.id, reason)
        if hasattr(owner, "param_groups"):
            given = [p for group in owner.param_groups for p in group["params"]]
        else:
            given = list(owner.parameters())
        self._dropped.update((id(p), p) for p in given if p.grad is not None)

    def _missing(self, parameter: Any, moves: bool) -> None:
        """Give the parameter the zeros that it would have had in the program."""
        parameter.grad = self._program.torch.zeros_like(parameter)
        if not moves:
            return
        if self._held >= MIN_UPDATES:  # it was called equal too soon
            raise RuntimeError("a parameter got no gradient: zeros would still have moved it")
        self._off = True
        self._program.found_nothing(FIX.id, because(Skip.MISSING_GRADIENT))


def _moves(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Return whether a gradient of zeros moves a parameter or its state: plain SGD's is sure not
    to."""
    plain = type(optimizer).__name__ == "SGD" and type(optimizer).__module__.startswith("torch.")
    return not plain or bool(group.get("momentum")) or bool(group.get("weight_decay"))
