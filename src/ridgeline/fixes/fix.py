"""A fix: what it is, what it may alter, and which findings it answers.

Each file of `catalog/` is one fix and is registered by existing. It defines `FIX` and three
functions: `reason_to_skip(ground)` returns why the fix cannot help here, "" if it can;
`apply(program, options)` puts it on the program, in the trial's own process;
`source_edits(applied, source)` returns the edits that do the same in the user's source.

A fix that is an environment variable has `variables(environment, options)` too: it returns the
variables that the trial's process must be started with, {} if there is nothing to set. `apply` then
only reports whether the variable is there.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.parity import Alters
from ridgeline.records.trial import Applied

if TYPE_CHECKING:
    from ridgeline.fixes.program import Program

Group = Literal["global", "loader", "model", "optimizer", "loop"]
Slot = Literal["", "precision", "compile", "layout", "checkpoint", "workers", "update", "loss"]
"""Of changes in one slot a program has one at most."""


class Fix(Struct, frozen=True, kw_only=True):
    id: str
    group: Group
    title: str
    """A line for the table: TF32 in float32 products"""
    alters: Alters
    precision: str = "float32"
    """Of the arithmetic it brings: how closely results can be expected to agree."""
    slot: Slot = ""
    answers: tuple[str, ...] = ()
    """Rules whose findings it mends."""
    together: tuple[str, ...] = ()
    """Changes it pays with, tried as one: channels_last with autocast."""
    usual: bool = False
    """What a specialist puts on without a thought: where the program waits for launches, and alone
    nothing pays, all of these are tried as one, with CUDA graphs."""
    spare_beside: tuple[str, ...] = ()
    """Changes beside which it cannot win: where one of them is kept, it is not tried."""
    little_beside: tuple[str, ...] = ()
    """Changes beside which little is left to it: then it goes with a compiler, if one is to come.
    """
    saves: Literal["time", "memory"] = "time"
    slow_start: bool = False
    """It compiles first: a trial takes minutes."""
    redraws: str = ""
    """Which random numbers the copy draws otherwise, in a sentence: a trial makes up for it."""
    longer: int = 1
    """Times what compiling takes otherwise, as a first guess: above 1, it is tried after its like.
    """
    why: str
    """What it does, a sentence or two."""
    wrong_when: str


Source = Callable[[str], str | None]
"""The text of a file of the user's, by its path; None where it cannot be read."""


class EditByHand(Exception):
    """The fix cannot be written as edits. The message says what to write by hand, and where."""


class Registered(Struct, frozen=True):
    fix: Fix
    reason_to_skip: Callable[[Ground], str]
    apply: "Callable[[Program, Mapping[str, str]], None]"
    source_edits: Callable[[Applied, Source], tuple[Edit, ...]]
    """Raises EditByHand where no edit says it safely."""
    bound: Callable[[Ground], float | None] | None = None
    """Returns the most that the change can gain, from the share of the step that it can touch. The
    bound may be too large, never too small. There is no bound if this field is None or the function
    returns None."""
    variables: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]] | None = None
    """(environment, options): what a trial's process is started with besides."""
    choices: Callable[[Ground], tuple[dict[str, str], ...]] | None = None
    """Its options worth trying, the likeliest first."""
    after: Callable[[Ground, Mapping[str, str]], Ground] | None = None
    """What is known of the program once it is on: workers make other changes possible."""
    brings: Callable[[Ground, Mapping[str, str]], str] | None = None
    """The one of those it pays with that is put on with it from the first; "": none."""


def registered() -> tuple[Registered, ...]:
    """Every change there is, by id."""
    from ridgeline.fixes import catalog

    names = [module.name for module in iter_modules(catalog.__path__)]
    found = [_loaded(name) for name in names if not name.startswith("_")]
    return tuple(sorted(found, key=lambda one: one.fix.id))


def find_fix(fix: str) -> Registered:
    return _loaded(fix.replace("-", "_"))


def _loaded(name: str) -> Registered:
    module = import_module(f"ridgeline.fixes.catalog.{name}")
    return Registered(
        module.FIX,
        module.reason_to_skip,
        module.apply,
        module.source_edits,
        getattr(module, "bound", None),
        getattr(module, "variables", None),
        getattr(module, "choices", None),
        getattr(module, "after", None),
        getattr(module, "brings", None),
    )
