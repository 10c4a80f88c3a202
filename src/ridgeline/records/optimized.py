"""What trying changes on a program came to: every change tried, kept, rejected or not tried, each
with its reason; and the whole of what was kept, measured again."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.parity import Alters, Parity
from ridgeline.records.trial import Applied

Status = Literal[
    "kept",
    "rejected",  # tried, and not faster, not equal, or it failed
    "dropped",  # kept once, and no longer of use beside the others
    "not applied",  # it found nothing to change
    "not tried",  # it cannot win here, or there was no time
]


class Ratio(Struct, frozen=True, kw_only=True):
    """How many times as fast, of paired processes."""

    value: float
    ci_low: float
    ci_high: float
    pairs: int
    level: float = 0.95


class Rung(Struct, frozen=True, kw_only=True):
    """A change, and what became of it."""

    change: str
    title: str
    options: dict[str, str] = {}
    status: Status
    why: str
    """A sentence: 1.42 × as fast; bfloat16 is emulated here; losses differ from step 3 on."""
    alters: Alters = "nothing"
    beside: tuple[str, ...] = ()
    """Changes that were on already when it was measured."""
    together: tuple[str, ...] = ()
    """Changes it was tried with as one."""
    ratio: Ratio | None = None
    """Against the same program with those beside it."""
    bound: float | None = None
    """The most it could gain, said before it was tried."""
    parity: Parity | None = None
    peak_bytes: int | None = None
    peak_before_bytes: int | None = None
    compile_s: float = 0.0
    pays_after: int | None = None
    """Steps after which what compiling took is won back; None: at once, or never (`why` says)."""
    spent_s: float = 0.0


class Total(Struct, frozen=True, kw_only=True):
    """All that was kept against the unchanged program, in fresh processes."""

    ratio: Ratio
    before_ms: float
    after_ms: float
    parity: Parity
    peak_before_bytes: int = 0
    peak_bytes: int = 0
    compile_s: float = 0.0
    pays_after: int | None = None
    applied: tuple[Applied, ...] = ()
    """As put on in those processes, with the user's own lines."""


class Written(Struct, frozen=True, kw_only=True):
    """What was kept, in copies of the user's files."""

    files: tuple[str, ...] = ()
    diff: str = ""
    by_hand: tuple[str, ...] = ()
    """What could not be edited safely: what to write where."""
    checked: str = ""
    """What the patched program did by itself, in a sentence."""


class Optimized(Struct, frozen=True, kw_only=True):
    schema: int = 1
    command: str
    goal: str = "speed"
    device: str = ""
    rungs: tuple[Rung, ...] = ()
    total: Total | None = None
    """None: nothing was kept, or there was no time to confirm it."""
    noise: float = 0.0
    """How far apart two processes of the same program come out, as a standard deviation."""
    trials: int = 0
    spent_s: float = 0.0
    stopped: str = ""
    """Why it ended before everything was tried: the budget, an interrupt."""
    written: Written | None = None
    problems: tuple[str, ...] = ()
