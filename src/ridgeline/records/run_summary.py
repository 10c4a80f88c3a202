"""The summary of a run: summary.json, `-o result.json`, and what the terminal shows.

Shares are fractions of 1. A figure that is not known is None, and `missing` says why.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason, Trust
from ridgeline.records.finding import Findings
from ridgeline.records.machine import CeilingState, Source
from ridgeline.records.memory import MemoryStudy
from ridgeline.records.run import OutOfMemory, Phase, PythonView, Status
from ridgeline.records.step_work import Uncounted
from ridgeline.records.verdict import Verdict

SUMMARY_SCHEMA = 2
"""Raised from 1 when verdicts became codes with facts."""
MIN_CROWDED_SHARE = 0.25
"""Other programs that take more than this share of the processors change the times of a run."""


class PhaseTime(Struct, frozen=True, kw_only=True):
    phase: Phase
    ms: float
    """Mean over the light window's steady steps, so that phases add up to the mean step."""
    ci: tuple[float, float]
    share: float
    clock: Literal["host", "device"] = "host"


class StepTimes(Struct, frozen=True, kw_only=True):
    median_ms: float | None = None
    ci: tuple[float, float] | None = None
    """The 95 % interval of the median."""
    mean_ms: float | None = None
    phases: tuple[PhaseTime, ...] = ()
    steps: int = 0
    """How many steady steps the figures are over."""
    counted: int = 0
    """How many steps were seen."""
    taken: int | None = None
    """Steps that the whole program took, watched or not; None if they were not counted."""
    warmup_steps: int = 0
    compile_steps: tuple[int, ...] = ()
    clock: Literal["host", "device"] = "host"
    stepping: str = ""
    pause_share: float = 0.0
    """The share that pauses, which the figures leave out, take of all time in steps and pauses."""
    trust: Trust = Trust()


class RegionTime(Struct, frozen=True, kw_only=True):
    """A part of the step that the program has named itself: `ridgeline.region("name")`."""

    name: str
    ms: float
    """The mean over the steady steps, on the host."""
    share: float
    """The share of the step. A region inside another counts in both."""


class Throughput(Struct, frozen=True, kw_only=True):
    samples_s: float | None = None
    tokens_s: float | None = None
    steps_s: float | None = None
    samples_s_with_pauses: float | None = None
    """The rate with the pauses that the step time leaves out; None without pauses."""
    samples_per_step: float | None = None
    tokens_per_step: float | None = None


class Efficiency(Struct, frozen=True, kw_only=True):
    flops_per_step: float | None = None
    """Matmul-like work counted in the traced steps, forward, backward and all."""
    flops_s: float | None = None
    """The same work over the time of the untraced step."""
    mfu: float | None = None
    ceiling_flops_s: float | None = None
    ceiling_source: Source | Literal[""] = ""
    ceiling_state: CeilingState | Literal[""] = ""
    """Why there may be no MFU although there is a ceiling: the ceiling was disturbed when measured,
    or a program exceeds it. "" if no ceiling is known."""
    ceiling_dtype: str = ""
    coverage: float | None = None
    """Share of operator time whose operators have shapes and a formula."""
    uncounted: tuple[Uncounted, ...] = ()


MemoryRole = Literal["program", "loader workers", "other processes"]


class RoleMemory(Struct, frozen=True, kw_only=True):
    """The memory of the program's processes of one role, when all together had most."""

    role: MemoryRole
    processes: int
    rss_bytes: int
    """Resident bytes; pages that processes share count in each."""
    pss_bytes: int | None = None
    """The same with each shared page divided by its users; None if it was not read."""


class MemoryUse(Struct, frozen=True, kw_only=True):
    device_peak_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_total_bytes: int | None = None
    host_peak_bytes: int | None = None
    """The peak of the program and its workers; pages that they share count in each."""
    roles: tuple[RoleMemory, ...] = ()
    """The program and the processes it started, if there were any."""
    retries: int = 0
    growth_bytes_per_step: float | None = None
    """The growth on the device; on the host if the program runs there."""
    host_growth_bytes_per_step: float | None = None
    host_growth_exact: bool = False
    """Whether the host's growth is from malloc's own count at the end of steps; else it is from the
    resident size, seen from outside."""
    growth_released: bool = False
    """Whether the memory that grew over the steps was given back before the program ended."""


class MissingCode(StrEnum):
    """Says why a run has no figure of some kind. The comment names the facts of the reason."""

    CHILDREN = "missing.children"  # processes, function, place
    NO_TRACED_STEP = "missing.no-traced-step"
    TOO_FEW_STEPS_TO_TRACE = "missing.too-few-steps-to-trace"  # steps
    NO_MATRIX_PRODUCT = "missing.no-matrix-product"
    FLOPS = "missing.flops"  # text, from the trace
    PARTIAL_FLOPS = "missing.partial-flops"  # share, operators
    CEILING_EXCEEDED_HERE = "missing.ceiling-exceeded-here"  # dtype, flops_s, ceiling_flops_s
    CEILING_EXCEEDED = "missing.ceiling-exceeded"  # dtype, device
    CEILING_DISTURBED = "missing.ceiling-disturbed"  # dtype, device
    NO_CEILING = "missing.no-ceiling"  # dtype, device
    BATCH_SIZE = "missing.batch-size"
    TELEMETRY = "missing.telemetry"
    ENERGY_TOO_SHORT = "missing.energy-too-short"
    NO_ENERGY_COUNTER = "missing.no-energy-counter"
    OTHER_RANKS = "missing.other-ranks"  # ranks
    LAST_WORDS = "missing.last-words"


Missing = Literal["", "no-steps", "no-samples", "no-telemetry", "no-counter", "too-short"]
"""Why a figure that was asked for is not known: no steady step was timed; the batch's size was not
recognised; nothing was sampled; no energy counter can be read; the counter did not move."""


class Energy(Struct, frozen=True, kw_only=True):
    """The energy of the light window's steady steps. A figure is None if no counter can be read."""

    joules_per_step: float | None = None
    joules_per_sample: float | None = None
    mean_power_w: float | None = None
    source: str = ""
    """GPU energy counter; GPU power, summed; processor energy counter (RAPL)"""
    cost_per_million_samples: float | None = None
    carbon_g_per_million_samples: float | None = None
    cost_missing: Missing = ""
    """Why `--price` gave no cost; "" if the cost is known or was not asked for."""
    carbon_missing: Missing = ""
    """Why `--carbon` gave no emission; "" if it is known or was not asked for."""


class Telemetered(Struct, frozen=True, kw_only=True):
    """The telemetry of the light window in a few numbers."""

    gpu_utilisation: float | None = None
    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    other_processes: int = 0
    program_cores: float | None = None
    """How many processors the program's own process keeps busy."""
    worker_cores: float | None = None
    workers: int = 0
    other_cores: float | None = None
    """How many processors other programs keep busy."""
    cores: int = 0
    """The processors of the machine; 0 if that is not known."""
    preempted_share: float | None = None
    """Share of the light windows in which the training thread was ready to run while other programs
    held the processors. None if the kernel does not tell."""
    samples: int = 0

    @property
    def crowded(self) -> bool:
        """Whether other programs took so many processors that they change the times."""
        return (self.other_cores or 0.0) > MIN_CROWDED_SHARE * self.cores > 0


class SyncPoint(Struct, frozen=True, kw_only=True):
    """A line at which the host waits for the device."""

    place: str
    call: str
    per_step: float
    ms_per_step: float


class RankEnd(Struct, frozen=True, kw_only=True):
    """Says how a rank ended, other than the one that the report shows."""

    rank: int
    status: Status
    why: str = ""
    torch_imported: bool = True


NextPurpose = Literal["python", "trace", "ceilings"]
"""What a command to type next shows: lines of Python, the trace, what the machine can do."""


class NextCommand(Struct, frozen=True):
    purpose: NextPurpose
    text: str


class RunSummary(Struct, frozen=True, kw_only=True):
    schema: int = SUMMARY_SCHEMA
    name: str
    run_dir: str
    command: str
    status: Status
    why: str = ""
    verdict: Verdict
    step: StepTimes = StepTimes()
    regions: tuple[RegionTime, ...] = ()
    """The largest first."""
    throughput: Throughput = Throughput()
    efficiency: Efficiency = Efficiency()
    memory: MemoryUse = MemoryUse()
    energy: Energy = Energy()
    telemetry: Telemetered = Telemetered()
    device: str = ""
    ranks: int = 1
    rank_ends: tuple[RankEnd, ...] = ()
    """Ranks that raised or were killed before the rank that the report shows ended, in order of
    time; also ranks that still ran then, or never imported torch."""
    losses: tuple[float, float] | None = None
    """The first and the last loss seen."""
    loss_broke: str = ""
    """The first loss that was no finite number, such as "nan at step 12"."""
    out_of_memory: OutOfMemory | None = None
    memory_study: MemoryStudy | None = None
    """The memory of the traced steps by kind and by line, what grows, and what would help if it
    runs out; the levels over time are in memory.json."""
    sync_points: tuple[SyncPoint, ...] = ()
    recompiles: tuple[str, ...] = ()
    graph_breaks: tuple[str, ...] = ()
    python: PythonView | None = None
    findings: Findings = Findings()
    missing: tuple[Reason | str, ...] = ()
    """What is not known of the run. Text is from the program's own process, or from its trace."""
    problems: tuple[str, ...] = ()
    bytes_on_disk: int = 0
    next: tuple[NextCommand, ...] = ()
    """What to type next."""
