"""Says what holds a program back, one record for each cause: findings.json, and `findings` of
`trace --json`.

A share is of the step's own length, and only of time that would be gone with the cause: device work
hidden behind a wait is not in it. `gain_bound` is Amdahl's: the step could become at most that many
times shorter.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason

FINDINGS_SCHEMA = 3
"""Raised to 2 when rules that could not check became records, to 3 when answers became clauses."""
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


class Question(StrEnum):
    """The questions every performance engineer asks, in the order they ask them."""

    BUSY = "question.busy"
    KERNELS = "question.kernels"
    OPERATORS = "question.operators"  # on a CPU, in place of the kernels
    INTENSITY = "question.intensity"
    GAPS = "question.gaps"
    PEAK = "question.peak"


class AnswerCode(StrEnum):
    """A clause of an answer. `first` tells whether it is the first of a list; shares are of a step,
    or of the time that the clause before names."""

    END = "answer.end"  # of a sentence
    NOT_KNOWN = "answer.not-known"  # cause: one of the next codes
    NOT_TRACED = "answer.not-traced"
    PROFILES_ITSELF = "answer.profiles-itself"
    DISK_FULL = "answer.disk-full"
    TRACE_TOO_LARGE = "answer.trace-too-large"
    NO_DEVICE_TIME = "answer.no-device-time"
    NO_OPERATORS = "answer.no-operators"
    NO_SHAPES = "answer.no-shapes"
    NO_FORMULAS = "answer.no-formulas"
    NO_MEMORY = "answer.no-memory"
    IN_TEXT = "answer.in-text"  # text: what the reader of the trace says
    # Is the device busy?
    DRIVER_SAW = "answer.driver-saw"  # share
    CPU_WORKS = "answer.cpu-works"  # share, step_s
    GPU_WORKS = "answer.gpu-works"  # busy, share, step_s
    BUSY_ONLY_WITH = "answer.busy-only-with"  # part, share, step_s
    REST_IS = "answer.rest-is"
    WAITS_FOR = "answer.waits-for"
    EXPOSED = "answer.exposed"
    PART = "answer.part"  # first, part, share
    # Which kernels or operators?
    OF_DEVICE_TIME = "answer.of-device-time"
    OF_OPERATOR_TIME = "answer.of-operator-time"
    BY_KIND = "answer.by-kind"
    WORK = "answer.work"  # first, name, op, share
    OTHER_KERNELS = "answer.other-kernels"  # kernels
    # Which intensity?
    INTENSITY_PARTLY_KNOWN = "answer.intensity-partly-known"  # share
    STEP_WORK = "answer.step-work"  # flops, bytes, flops_per_byte
    RIDGE = "answer.ridge"  # above, ridge, dtype
    RIDGE_UNKNOWN = "answer.ridge-unknown"
    LIMITS = "answer.limits"
    LIMITS_UNKNOWN = "answer.limits-unknown"
    LIMITED = "answer.limited"  # first, share, limit, attained: share of the ceiling, or None
    REST_WITHOUT_FORMULA = "answer.rest-without-formula"  # share
    # Which gaps?
    NO_GAPS = "answer.no-gaps"  # share
    NO_GAPS_ON_CPU = "answer.no-gaps-on-cpu"
    STEP_WAITS = "answer.step-waits"  # share
    OF_IDLE_TIME = "answer.of-idle-time"
    GAP = "answer.gap"  # first, idle_cause, share, place, gaps: in a step
    LINES_UNKNOWN = "answer.lines-unknown"
    # Where is the peak?
    DEVICE_PEAK = "answer.device-peak"  # bytes, total_bytes
    HOST_PEAK = "answer.host-peak"  # bytes
    PEAK_ON = "answer.peak-on"  # bytes, device
    TRACED_PEAK = "answer.traced-peak"  # bytes
    TRACED_RISE = "answer.traced-rise"  # bytes
    NO_ALLOCATIONS = "answer.no-allocations"
    IN_STEP = "answer.in-step"  # step
    IN_PHASE = "answer.in-phase"  # phase
    IN_MODULE = "answer.in-module"  # module
    AT_OPERATOR = "answer.at-operator"  # op
    NOTE = "answer.note"  # text
    GROWS = "answer.grows"  # bytes


class Answer(Struct, frozen=True, kw_only=True):
    """A question, and the clauses of its answer."""

    question: Question
    clauses: tuple[Reason, ...]
    """With a code of `AnswerCode`, in the order they are read."""


class UnaskedRule(Struct, frozen=True):
    """A rule that could not check, because the run or trace lacks what it needs."""

    rule: str
    lacks: tuple[str, ...]
    """Names of what is needed: trace, sites, stacks, shapes, gpu, ranks, telemetry …"""


class Findings(Struct, frozen=True, kw_only=True):
    """The content of findings.json: all of them, the most valuable first."""

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
