"""Lets the program of a race go on when a candidate raises: the candidate is taken off, and what
raised is done again without it.

Starting the program again would take as long as timing several candidates. Nothing that a race
computes is a result, so a step may be half that of the candidate. An error outside of the model,
the backward pass and the optimizer still ends the program, and the race starts it again.
"""

import functools
import traceback
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

MAX_ERROR_LENGTH = 300
Given = Callable[[Any, Any], tuple[Any, Any]]


class Racing(Protocol):
    """A race as a rescue needs it."""

    def is_program_calling(self) -> bool:
        """Return whether a call comes from the program itself, not from inside a call that is
        followed already."""

    def given(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return what a model is called with, `args` and `kwargs`, as it is to be given. The first
        of `args` is the model."""

    def gives_up(self, error: Exception) -> bool:
        """Take off the candidate that is on, because of this error. Return False if none was on
        when it was raised: the error is the program's own."""


class Rescue:
    """Guards the calls of models, the backward passes and the updates of the program."""

    def __init__(self, torch: Any, race: Racing) -> None:
        self._torch = torch
        self._race = race
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._guarded: set[Any] = set()
        """Classes of optimizers whose `step` is guarded, and ids of optimizers with a `step` of
        their own."""
        self._undo = ExitStack()
        """Puts back what was guarded."""

    def install(self) -> None:
        self._guard_in(self._torch.nn.Module, "__call__", given=self._race.given)
        self._guard_in(self._torch.autograd, "backward", self._fill_gradients)

    def take_off(self) -> None:
        self._undo.close()
        self._guarded.clear()

    def _guard_in(
        self, owner: Any, name: str, instead: Callable[..., Any] | None = None,
        given: Given | None = None,
    ) -> None:  # fmt: skip
        held = vars(owner)
        theirs = held.get(name)
        guarded = self._guard(getattr(owner, name), instead, given)
        setattr(owner, name, guarded)

        def put_back() -> None:
            if vars(owner).get(name) is not guarded:
                return  # somebody else has replaced it meanwhile
            if theirs is None:
                delattr(owner, name)
            else:
                setattr(owner, name, theirs)

        self._undo.callback(put_back)

    def guard_update(self, optimizer: Any) -> None:
        """Guard the updates of this optimizer. A scheduler puts a `step` of its own on it."""
        self._optimizers.add(optimizer)
        owner = optimizer if "step" in vars(optimizer) else type(optimizer)
        known = owner if owner is not optimizer else id(optimizer)
        if known not in self._guarded:
            self._guarded.add(known)
            self._guard_in(owner, "step")

    def _guard(
        self, function: Callable[..., Any], instead: Callable[..., Any] | None, given: Given | None
    ) -> Callable[..., Any]:
        """Return `function` with a second attempt, or with `instead`, if a candidate raised.
        `given` returns the arguments that it is called with."""
        is_compiling, race = self._torch.compiler.is_dynamo_compiling, self._race

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not race.is_program_calling():
                return function(*args, **kwargs)
            if given is not None:
                args, kwargs = given(args, kwargs)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not race.gives_up(error):
                    raise
                self._free(error)
            return (instead or function)(*args, **kwargs)

        return guarded

    def _free(self, error: Exception) -> None:
        """Free what the failed call holds: it may have failed for want of memory."""
        traceback.clear_frames(error.__traceback__)
        if self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()

    def _fill_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Leave gradients of zero where a backward pass has failed: its graph is gone, and the
        program goes on to its update."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None and parameter.requires_grad:
                        parameter.grad = self._torch.zeros_like(parameter)


def words_of(error: Exception) -> str:
    """Return the error as the last line of its traceback has it."""
    return "".join(traceback.format_exception_only(error)).splitlines()[0][:MAX_ERROR_LENGTH]
