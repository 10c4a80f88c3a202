"""What holds a program back, one record for each cause: findings.json, and `findings` of `trace
--json`.

A share is of the step's own length, and only of time that would be gone with the cause: device work
hidden behind a wait is not in it. `gain_bound` is Amdahl's: the step could become at most that many
times shorter.
"""

from typing import Literal

from msgspec import Struct

FINDINGS_SCHEMA = 2
"""Raised from 1 when rules that could not check became records."""
Confidence = Literal["high", "medium", "low", "unmeasured"]
"""unmeasured: read in the source, not seen in a measurement."""
Source = Literal["measured", "derived", "estimated", "read"]
"""read: in the program's source or its settings."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One number, or one fact, behind a claim."""

    what: str
    """input wait"""
    text: str
    """93.1 ms, 61 % of the step"""
    value: float | None = None
    source: Source = "measured"


class LineChange(Struct, frozen=True, kw_only=True):
    """Lines of the program, and what replaces them."""

    file: str
    line: int
    """The first line that is replaced; without `before`, the line after which `after` comes."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...]


class Finding(Struct, frozen=True, kw_only=True):
    rule: str
    family: str = ""
    """input, transfer, synchronisation, launch, precision, kernels, memory, compile, machine …"""
    id: str = ""
    """The same in every run of the same program: the rule and the function or module it is in."""
    claim: str
    """One sentence: the GPU waits 61 % of each step for decode(): 11 ms a sample, no workers"""
    share_pct: float = 0.0
    """The exposed time that this causes, in percent of the step; 0 if only memory would be
    saved."""
    gain_bound: float = 1.0
    confidence: Confidence = "medium"
    file: str = ""
    line: int | None = None
    function: str = ""
    module: str = ""
    """The path of the nn.Module it is in, if that is known."""
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    """The id of the fix that does what the finding advises; "" if there is none."""
    change: str = ""
    """The fix as code, with the program's own names if its source could be read."""
    edits: tuple[LineChange, ...] = ()
    """The same fix as lines of the program before and after, where it can be written into it."""
    docs: str = ""
    doubt: str = ""
    """Why it might be wrong."""
    memory_pct: float = 0.0
    """The memory that would be saved, in percent of the peak; 100 for memory that grows without
    end."""
    after: str = ""
    """The rule of the finding that must be fixed first: until then this one gains nothing."""
    wrong_results: bool = False
    """Whether the program's results are probably wrong. Such a finding comes first, whatever time
    it costs."""
    shares_with: str = ""
    """The rule of an earlier finding that is charged with the same time: the two do not add up."""

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class CodePlace(Struct, frozen=True, kw_only=True):
    """A function or a line of the user's code, and how much of the step is spent in it."""

    file: str
    line: int
    function: str = ""
    share_pct: float = 0.0


LossKind = Literal["input", "transfer", "overhead", "communication", "pauses"]
LossNeeds = Literal["", "stacks", "python"]
"""What would tell more: stacks in the trace (with_stack=True), or sampled Python (--python)."""


class Loss(Struct, frozen=True, kw_only=True):
    """The largest part of the time that is not the device's work and that no finding explains."""

    share_pct: float
    """Share of the step. For `pauses` it is a share of all time, because the step time leaves
    pauses out."""
    kind: LossKind
    cause: str = ""
    """Why the GPU idles, as the trace names it; "" on a CPU."""
    phase: str = ""
    """For `pauses`: the phase that takes most of their time."""
    own_code_pct: float = 0.0
    """The part of the loss in the program's own Python code, as a share of the step."""
    places: tuple[CodePlace, ...] = ()
    """Where the time goes, the largest first."""
    needs: LossNeeds = ""


class Answer(Struct, frozen=True, kw_only=True):
    """A question every performance engineer asks, in the order they ask it."""

    question: str
    """Is the device busy?"""
    text: str


class UnaskedRule(Struct, frozen=True):
    """A rule that could not check, because the run or trace lacks what it needs."""

    rule: str
    lacks: tuple[str, ...]
    """Names of what is needed: trace, sites, stacks, shapes, gpu, ranks, telemetry …"""


class Findings(Struct, frozen=True, kw_only=True):
    """findings.json: all of them, the most valuable first."""

    schema: int = FINDINGS_SCHEMA
    findings: tuple[Finding, ...] = ()
    gain_bound: float = 1.0
    """The most that fixing all of them gains, no time counted twice."""
    left_out: int = 0
    """How many less valuable ones were left out."""
    answers: tuple[Answer, ...] = ()
    """Busy? which kernels? which intensity? which gaps? where is the peak?"""
    ceiling_pct: float | None = None
    """How near the step is to the ceiling that binds; None if no ceiling is known."""
    ceiling: str = ""
    """The ceiling, such as "bfloat16 peak (datasheet)"."""
    remains: str = ""
    """What the rest of the step's time is."""
    unexplained: str = ""
    """Why it is no all-clear that nothing was found: the device mostly waits and no rule explains
    it, or little was recorded; empty if it is one."""
    loss: Loss | None = None
    """The largest loss that no finding explains; None if findings explain it or it is small."""
    basis: str = ""
    """steps 130-141 of 275: where they are drawn from a part of a long trace; "": from all of it"""
    unlooked: tuple[UnaskedRule, ...] = ()
    problems: tuple[str, ...] = ()
