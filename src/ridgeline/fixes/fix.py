"""A fix: what it is, what it may alter, which findings it answers, and the most it can gain.

Each file of `catalog/` is one fix and is registered by existing. It defines `FIX` and three
functions: `reason_to_skip(ground)` returns why the fix cannot help here, None if it can;
`apply(program, options)` puts it on the program, in the trial's own process;
`source_edits(applied, source)` returns the edits that do the same in the user's source. A fix that
gives a call a keyword, makes a setting, or compiles models needs no `source_edits`: its edits
follow from what it did (`done_edits`), and `edit_why` is their comment.

A fix that is an environment variable has `variables(environment, options)` too: it returns the
variables that the trial's process must be started with, {} if there is nothing to set. `apply` then
only reports whether the variable is there.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ridgeline.records.edit import Edit
from ridgeline.records.facts import Fact, Reason
from ridgeline.records.ground import Ground
from ridgeline.records.parity import Alters
from ridgeline.records.reason_codes import ByHand
from ridgeline.records.trial import Applied, Asked

if TYPE_CHECKING:
    from ridgeline.fixes.program import Program

Group = Literal["global", "loader", "model", "optimizer", "loop"]
Slot = Literal["", "precision", "compile", "layout", "checkpoint", "workers", "update", "loss"]
"""A program has at most one fix of each slot."""
MAX_SAVED_SHARE = 0.98
"""Largest share of the step that a bound assumes to go. A larger share says only that almost all of
the step may go; the search treats a share from 0.97 on as no bound."""
SAVED_BESIDE_UPDATE_ON_CPU = 1.5
"""The most that a fused update saves on a CPU, as a multiple of the time of the update it replaces.
The passes of an update over memory push the data of forward and backward out of the cache. Where
Adam's update took 2.7 ms of a step of 19.6 ms, a fused one made the step 3.6 ms shorter."""


class Fix(Struct, frozen=True, kw_only=True):
    id: str
    group: Group
    title: str
    """The fix in a table: TF32 in float32 products"""
    alters: Alters
    precision: str = "float32"
    """The precision of the arithmetic that the fix brings: it decides how closely results can be
    expected to agree."""
    slot: Slot = ""
    answers: tuple[str, ...] = ()
    """Ids of the rules whose findings the fix removes."""
    together: tuple[str, ...] = ()
    """Fixes it may need to gain anything, tried as one with it: channels_last with autocast."""
    usual: bool = False
    """Whether a specialist applies it without measuring. If the program waits for launches and no
    fix gains anything alone, all of these are tried as one, with CUDA graphs."""
    spare_beside: tuple[str, ...] = ()
    """Fixes beside which it cannot gain: if one of them is kept, it is not tried."""
    little_beside: tuple[str, ...] = ()
    """Fixes that leave it little to gain: beside one of them it is tried together with a compiler,
    if one is still to be tried."""
    saves: Literal["time", "memory"] = "time"
    slow_start: bool = False
    """Whether it compiles first, so that a trial takes minutes."""
    own_process: bool = False
    """Whether it cannot be taken off a running program, so that it is not raced."""
    redraws: str = ""
    """Which random numbers the copy draws otherwise, in a sentence. A trial makes up for it."""
    longer: int = 1
    """First guess of its compile time, as a multiple of what others take. Above 1, it is tried
    after the other compilers."""
    why: str
    """What the fix does, in one or two sentences."""
    wrong_when: str
    edit_why: str = ""
    """The comment at the lines that the fix writes, if it has no `source_edits` of its own."""


Source = Callable[[str], str | None]
"""The text of a file of the user's, by its path; None if it cannot be read."""


class EditByHand(Exception):
    """The fix cannot be written as edits. `reason` says what to write by hand, where, and why."""

    def __init__(self, code: ByHand, *, cause: Reason | None = None, **facts: Fact) -> None:
        self.reason = Reason(code.value, facts, cause)
        super().__init__(self.reason)


class Registered(Struct, frozen=True):
    """A fix and its functions."""

    fix: Fix
    reason_to_skip: Callable[[Ground], Reason | None]
    apply: "Callable[[Program, Mapping[str, str]], None]"
    source_edits: Callable[[Applied, Source], tuple[Edit, ...]]
    """Raises EditByHand if no edit does it safely."""
    bound: Callable[[Ground], float | None] | None = None
    """Returns the most that the fix can gain, from the share of the step that it can touch. The
    bound may be too large, never too small: it decides which fixes are not tried at all. There is
    no bound if this field is None or the function returns None."""
    variables: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]] | None = None
    """(environment, options): variables that a trial's process is started with."""
    choices: Callable[[Ground], tuple[dict[str, str], ...]] | None = None
    """Its options worth trying, the likeliest first."""
    after: Callable[[Ground, Mapping[str, str]], Ground] | None = None
    """What is known of the program once the fix is on: workers make other fixes possible."""
    brings: Callable[[Ground, Mapping[str, str]], str] | None = None
    """The fix of `together` that is applied with it from the first trial on; "" if none is."""


def registered() -> tuple[Registered, ...]:
    """Return all fixes, sorted by id."""
    from ridgeline.fixes import catalog

    names = [module.name for module in iter_modules(catalog.__path__)]
    return tuple(sorted(map(_loaded, names), key=lambda one: one.fix.id))


def find_fix(fix: str) -> Registered:
    return _loaded(fix.replace("-", "_"))


def compiles_first(fixes: Iterable[Asked]) -> bool:
    """Return whether one of these fixes compiles first, so that a trial takes minutes."""
    return any(find_fix(one.fix).fix.slow_start for one in fixes)


def _loaded(name: str) -> Registered:
    from ridgeline.fixes.done_edits import edits_of_done

    module = import_module(f"ridgeline.fixes.catalog.{name}")
    fix: Fix = module.FIX
    why = fix.edit_why
    source_edits = getattr(
        module, "source_edits", lambda applied, source: edits_of_done(applied, source, why)
    )
    optional = ("bound", "variables", "choices", "after", "brings")
    return Registered(
        fix, module.reason_to_skip, module.apply, source_edits,
        *(getattr(module, name, None) for name in optional),
    )  # fmt: skip


def speedup_without(share: float | None) -> float | None:
    """Return how many times as fast the step would be without `share` of its time. Return None, no
    bound, if the share is not known."""
    if share is None:
        return None
    return 1 / (1 - min(max(share, 0.0), MAX_SAVED_SHARE))


def bound_of_input(ground: Ground) -> float | None:
    """Return the bound if a step never waits for its batch."""
    return speedup_without(ground.input_share)
