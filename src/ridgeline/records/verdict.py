"""Says what limits a program: the verdict of a run, as facts.

`ridgeline.report.run_reasons` has the English of each code. The comment behind a code names the
facts that its template needs; shares are fractions of 1."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Fact, Reason, Trust

Bound = Literal[
    "input-bound",
    "transfer-bound",
    "launch/overhead-bound",  # launches, Python, synchronisation: the device waits for the host
    "compute-bound",
    "memory-bandwidth-bound",
    "memory-capacity-bound",
    "communication-bound",
    "late-rank",  # one of several ranks is slower, and the others wait for it
    "unknown",
]


class LimitCode(StrEnum):
    """Says where the step's time goes, how memory ran out, or why nothing is known."""

    GPU_WAITS_FOR_DATA = "limit.gpu-waits-for-data"  # share
    WAITS_FOR_DATA = "limit.waits-for-data"  # share
    COPIES = "limit.copies"  # share
    EXCHANGES = "limit.exchanges"  # share
    GPU_WAITS_FOR_HOST = "limit.gpu-waits-for-host"  # share
    GPU_WAITS_BECAUSE = "limit.gpu-waits-because"  # share, idle_cause
    OWN_CODE = "limit.own-code"  # share
    OWN_CODE_WAITS = "limit.own-code-waits"  # share, cores
    WAITS_FOR_SOMETHING = "limit.waits-for-something"  # share, cores
    STARTS_OPERATORS = "limit.starts-operators"  # share
    SLOW_OPERATORS = "limit.slow-operators"  # share
    DEVICE_WORKS = "limit.device-works"  # device, share
    MEMORY_OPERATORS = "limit.memory-operators"  # device, share
    ARITHMETIC = "limit.arithmetic"  # device, share, dtype
    GPU_OUT_OF_MEMORY = "limit.gpu-out-of-memory"  # step, phase, asked_bytes, free_bytes
    ALLOCATOR_RETRIES = "limit.allocator-retries"  # retries_per_step, share
    HOST_KILLED = "limit.host-killed"  # step, phase, used_bytes, total_bytes, growth_bytes
    HOST_PERHAPS_KILLED = "limit.host-perhaps-killed"  # the same
    WORKER_KILLED = "limit.worker-killed"  # the same; a worker of a DataLoader was killed
    HOST_OUT_OF_MEMORY = "limit.host-out-of-memory"  # the same, asked_bytes
    LATE_RANK = "limit.late-rank"  # rank, late_s, place
    LATE_RANK_PHASE = "limit.late-rank-phase"  # rank, phase, longer_s, place
    MOSTLY_IN_PHASE = "limit.mostly-in-phase"  # phase, share; beside another reason
    OTHER_PROCESSES_TOOK = "limit.other-processes-took"  # share; beside another reason
    NO_RECORD = "limit.no-record"
    NO_TORCH = "limit.no-torch"
    KEEPS_COMPILING = "limit.keeps-compiling"  # compiled, steps
    NO_PHASES = "limit.no-phases"
    NO_TIMED_STEP = "limit.no-timed-step"  # steps
    STEPS_IN_CHILDREN = "limit.steps-in-children"  # processes, function
    NO_STEP = "limit.no-step"
    RECORDED_ELSEWHERE = "limit.recorded-elsewhere"
    FAILED = "limit.failed"


class DecidingCode(StrEnum):
    """Says what a deciding number is."""

    INPUT = "number.input"
    TRANSFER = "number.transfer"
    OVERHEAD = "number.overhead"
    COMMUNICATION = "number.communication"
    COMPUTE = "number.compute"
    MEMORY = "number.memory"
    GPU_BUSY = "number.gpu-busy"
    OPERATORS_BUSY = "number.operators-busy"
    IDLE_CAUSE = "number.idle-cause"  # idle_cause
    OPERATORS = "number.operators"
    CORES = "number.cores"
    BANDWIDTH = "number.bandwidth"
    FLOP_RATE = "number.flop-rate"  # dtype, ceiling_source
    ASKED_BYTES = "number.asked-bytes"
    FREE_BYTES = "number.free-bytes"  # total_bytes
    USED_BYTES = "number.used-bytes"  # total_bytes
    GROWTH_BYTES = "number.growth-bytes"
    RETRIES = "number.retries"
    RESERVED = "number.reserved"
    RANK_WAIT = "number.rank-wait"  # rank, late_s
    SLOWEST_RANK = "number.slowest-rank"  # times, of
    LAST_RANK = "number.last-rank"  # times, of


class DoubtCode(StrEnum):
    """Says why a figure or a verdict may be wrong, or which steps it leaves out."""

    NO_TRACED_STEP = "doubt.no-traced-step"
    NO_DEVICE_WORK = "doubt.no-device-work"
    NO_CEILINGS = "doubt.no-ceilings"
    INPUT_BY_NAME = "doubt.input-by-name"  # function
    OTHER_PROCESSES_TRAIN = "doubt.other-processes-train"  # processes
    NEXT_BOUND = "doubt.next-bound"  # bound, share
    CLOSE_BOUND = "doubt.close-bound"  # bound, share
    LOW_BANDWIDTH = "doubt.low-bandwidth"  # share
    UNEXPLAINED_SLOWNESS = "doubt.unexplained-slowness"  # share
    PREEMPTED = "doubt.preempted"  # share
    OTHER_PROGRAMS = "doubt.other-programs"  # cores, machine_cores
    STRETCHED_BY_TRACING = "doubt.stretched-by-tracing"  # factor, bound
    FEW_STEPS = "doubt.few-steps"
    TRACE = "doubt.trace"  # text
    ONLY_TRACED_STEPS = "doubt.only-traced-steps"
    KILL_NOT_EXPLAINED = "doubt.kill-not-explained"
    NOTHING_TIMED = "doubt.nothing-timed"
    NO_PHASE_RECORDED = "doubt.no-phase-recorded"
    RECORDED_ELSEWHERE = "doubt.recorded-elsewhere"

    NO_STEP_SEEN = "doubt.no-step-seen"
    ALL_COMPILING = "doubt.all-compiling"  # steps
    TOO_FEW_FOR_INTERVAL = "doubt.too-few-for-interval"  # steps
    NO_TIMED_WINDOW = "doubt.no-timed-window"  # steps
    ONLY_DISTURBED_STEPS = "doubt.only-disturbed-steps"  # steps
    SLOWING = "doubt.slowing"  # share
    QUICKENING = "doubt.quickening"  # share
    PAUSES = "doubt.pauses"  # pauses, steps, longest_s
    EVALUATIONS = "doubt.evaluations"  # pauses, steps, longest_s
    UNEVEN_STEPS = "doubt.uneven-steps"  # factor


class Deciding(Struct, frozen=True, kw_only=True):
    """A number that decided."""

    code: DecidingCode
    value: float
    source: Literal["measured", "derived", "estimated"] = "measured"
    facts: dict[str, Fact] = {}


class Verdict(Struct, frozen=True, kw_only=True):
    bound: Bound
    reason: Reason
    """What was found; its code is a `LimitCode`."""
    also: tuple[Reason, ...] = ()
    """What the sentence adds: the phase with most of the work, what other processes took."""
    numbers: tuple[Deciding, ...] = ()
    """The two that decided."""
    place: str = ""
    trust: Trust = Trust()
