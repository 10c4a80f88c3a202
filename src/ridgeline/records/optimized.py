"""What trying changes on a program came to: every change tried, kept, rejected or not tried, each
with its reason; and the whole of what was kept, measured again."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Ratio
from ridgeline.records.parity import Alters, Parity
from ridgeline.records.trial import Applied

Goal = Literal["speed", "memory", "throughput", "energy"]
Status = Literal[
    "kept",
    "rejected",  # tried, and not faster, not equal, or it failed
    "dropped",  # kept once, and no longer of use beside the others
    "not applied",  # it found nothing to change
    "not tried",  # it cannot win here, or there was no time
]


Measured = Literal["step time", "time a sample", "peak memory", "energy a sample"]
"""What is made smaller: by the goal."""


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
    earlier: str = ""
    """How it had done otherwise put on, with others or alone: with fused update: worse: 0.93 ×."""
    ratio: Ratio | None = None
    """Against what was kept when it was tried: those beside it, and what it took the place of."""
    step_ms: float | None = None
    """With it and those beside it."""
    before_ms: float | None = None
    """With those beside it alone, in the same pairs of processes."""
    without: Ratio | None = None
    """Leave-one-out: all that was kept against all but this one. None: not asked, see `ratio`."""
    bound: float | None = None
    """The most that the change could gain, together with those it was tried with and on top of
    those beside it, as estimated before the trial. None if there was no bound."""
    bound_exceeded: bool = False
    """Whether the change gained more than the bound, so that the bound was wrong."""
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
    """Of what the goal measures."""
    confirmed: bool = True
    """False: the fresh processes do not show it to be better."""
    changes: tuple[str, ...] = ()
    before_ms: float
    after_ms: float
    before_samples_s: float | None = None
    after_samples_s: float | None = None
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
    """The first is the script; others are copies of modules it imports."""
    diff: str = ""
    diff_file: str = ""
    by_hand: tuple[str, ...] = ()
    """What could not be edited safely: what to write where."""
    notes: tuple[str, ...] = ()
    """Names that were taken."""
    checked: str = ""
    """What the patched program did by itself, in a sentence."""
    agrees: bool | None = None
    """By itself it is as fast as the trial and computes the same; None: it was not run."""


class Optimized(Struct, frozen=True, kw_only=True):
    schema: int = 1
    command: str
    goal: Goal = "speed"
    measured: Measured = "step time"
    device: str = ""
    baseline_ms: float = 0.0
    """A step of the unchanged program: the middle of its trials."""
    baseline_bytes: int = 0
    control: Ratio | None = None
    """The unchanged program against itself, by the same pairs: what is no difference."""
    rungs: tuple[Rung, ...] = ()
    total: Total | None = None
    """Like for like. None: nothing was kept, or there was no time to confirm it."""
    with_batch: Total | None = None
    """With another batch size besides, a sample's time against a sample's time: not the same
    training, so never mixed with `total`."""
    advice: tuple[str, ...] = ()
    """What a finding asks for that no change can be put on from outside: at which line, what."""
    caveats: tuple[str, ...] = ()
    """True of what was kept, and no trial shows it."""
    diagnosis: str = ""
    """What holds the unchanged program back, in a sentence."""
    afterwards: str = ""
    """What holds the patched copy back; "": there was no copy, or no time to look."""
    run: str = ""
    """Name of the run in which the program was diagnosed."""
    replay: str = ""
    """The command that does all this again."""
    longer: str = ""
    """The command that goes on from here with twice the time."""
    noise: float = 0.0
    """How far apart two processes of the same program come out, as a standard deviation."""
    trials: int = 0
    remembered: int = 0
    """Trials of an earlier call that were gone on from."""
    spent_s: float = 0.0
    stopped: str = ""
    """Why it ended before everything was tried: the budget, an interrupt."""
    written: Written | None = None
    problems: tuple[str, ...] = ()
    """Of ours: what could not be seen or reckoned in the diagnosis, in trials of the unchanged
    program and in one of all that was kept. Each once."""
