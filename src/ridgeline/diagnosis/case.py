"""All that a rule may look at: the records of a run, or what a trace alone holds.

A part that is missing is None or empty. A rule names the parts that it needs (`Rule.needs`), and is
not asked without them. Shares are fractions of the untraced step, if there is one.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.shares import HandFed, Shares
from ridgeline.records.machine import Device
from ridgeline.records.run import Capture, PythonView, RunFile, Step, Telemetry
from ridgeline.records.run_summary import (
    Efficiency,
    MemoryUse,
    StepTimes,
    SyncPoint,
    Telemetered,
    Throughput,
)
from ridgeline.records.sites import Exchange, InputSites, LateRank, OpSite, RankPlace, Sites
from ridgeline.records.step_work import StepWork, TraceMemory
from ridgeline.records.trace import Cause, IdleCause, KernelRow, Ranks, TraceStudy
from ridgeline.source.file import SourceFiles
from ridgeline.trace.verdict import on_gpus

Need = Literal[
    "trace",  # a trace was studied
    "sites",  # with operators
    "stacks",  # with Python functions
    "shapes",  # with recorded inputs
    "capture",  # a run: what the program's own process saw
    "timed",  # a run with steady steps in its light window
    "telemetry",
    "gpu",  # the steps' work is on a GPU
    "ranks",  # several ranks, in traces or in the run
]
SATURATED = 0.85
"""A device that is busy for this share of the step is what the step waits for, whatever the host
does."""


class Case(Struct, frozen=True, kw_only=True):
    kind: Literal["run", "trace"] = "run"
    on_gpu: bool = False
    run: RunFile | None = None
    capture: Capture | None = None
    steps: tuple[Step, ...] = ()
    """All recorded steps of the run; `window` says which are timed."""
    pauses: tuple[Step, ...] = ()
    """Steps that the step times leave out, because they paused for something other than training.
    """
    telemetry: tuple[Telemetry, ...] = ()
    times: StepTimes = StepTimes()
    throughput: Throughput = Throughput()
    efficiency: Efficiency = Efficiency()
    memory: MemoryUse = MemoryUse()
    telemetered: Telemetered = Telemetered()
    python: PythonView | None = None
    study: TraceStudy | None = None
    """The study of all ranks, their times added up. Everything else is of the first rank."""
    rank_kernels: tuple[KernelRow, ...] | None = None
    """The first rank's own kernels, if the study is of several ranks."""
    work: StepWork | None = None
    traced_memory: TraceMemory | None = None
    """What the traced steps did with memory."""
    shares: Shares | None = None
    """The step divided by what holds it up."""
    sites: Sites = Sites()
    syncs: tuple[SyncPoint, ...] = ()
    """Places as measured, not shortened."""
    input: InputSites = InputSites()
    """The loader in the traced steps."""
    fed: HandFed = HandFed()
    """Batches made by a function of the user's own."""
    device: Device | None = None
    """The device with its ceilings; None if they are not known."""
    emulated: tuple[str, ...] = ()
    """Types that the CPU has no instructions for: bfloat16, float16."""
    exchange: Exchange = Exchange()
    """The collectives of this rank's traced steps."""
    across: Ranks | None = None
    """The ranks side by side, if several left a trace."""
    rank_places: tuple[RankPlace, ...] = ()
    """The user's functions in which a rank spends more time than the others, the largest first."""
    across_ns: int = 0
    """The length of the window that `across` is over."""
    steps_compared: bool = False
    """Whether the work of each rank alone was compared step by step. Then `late` is the answer, and
    None means that no rank is late."""
    late: LateRank | None = None
    """The late rank by that comparison. `rank_delays.lateness` also answers where steps were not
    compared."""
    processors: int = 0
    """The processors of the machine, whether or not the program may use them; 0 if not known."""
    sources: SourceFiles = SourceFiles()

    def has(self, need: Need) -> bool:
        return {
            "trace": self.study is not None,
            "sites": bool(self.sites.ops),
            "stacks": self.sites.stacks,
            "shapes": self.sites.shapes,
            "capture": self.capture is not None,
            "timed": self.times.median_ms is not None and bool(self.times.phases),
            "telemetry": bool(self.telemetry),
            "gpu": self.on_gpu,
            "ranks": self.ranks > 1,
        }[need]

    @property
    def ranks(self) -> int:
        if self.study is not None and self.study.ranks is not None:
            return max(len(self.study.files), 2)
        return max(self.run.ranks if self.run else 1, self.capture.world if self.capture else 1)

    @property
    def kernels(self) -> tuple[KernelRow, ...]:
        """The kernels of this rank's traced steps, by name."""
        if self.rank_kernels is not None:
            return self.rank_kernels
        return self.study.kernels if self.study is not None else ()

    @property
    def traced_ms(self) -> float:
        """The length of a traced step; 0 without a trace."""
        if self.work is not None and self.work.step_ms:
            return self.work.step_ms
        window = self.study.window if self.study is not None else None
        return window.ns / 1e6 / max(window.steps, 1) if window is not None else 0.0

    @property
    def step_ms(self) -> float:
        """The mean length of an untraced step, else of a traced one; 0 without steps."""
        return self.times.mean_ms or self.traced_ms

    @property
    def busy(self) -> float | None:
        """The share of the step in which the device worked (a GPU's kernels and copies, a CPU's
        operators)."""
        if self.work is None or not self.step_ms:
            return None
        length = self.step_ms if self.on_gpu else self.traced_ms
        return min(self.work.operator_ms / length, 1.0) if length else None

    def share_of(self, kind: str) -> float:
        """Return the share of the step of one kind of time; 0 if it is not known."""
        return self.shares.of.get(kind, 0.0) if self.shares is not None else 0.0  # type: ignore[call-overload]

    def host_share(self, ns: float) -> float:
        """Return traced host time of a step (on a CPU, operators' work) as a share of the traced
        step, because tracing slows the host as a whole."""
        return min(ns / 1e6 / self.traced_ms, 1.0) if self.traced_ms else 0.0

    def host_s(self, ns: float) -> float:
        """Return host time of a traced step, converted to seconds of the untraced step. It is the
        same share of both, so that a share and the time printed beside it agree."""
        return self.host_share(ns) * self.step_ms / 1e3

    def work_s(self, ns: float) -> float:
        """Return operator time of a traced step, converted to seconds of the untraced step. Tracing
        does not slow a GPU; on a CPU, operators are host time."""
        return ns / 1e9 if self.on_gpu else self.host_s(ns)

    def device_share(self, ns: float) -> float:
        """Return device time of a step, hidden or not, as a share of the untraced step."""
        return min(ns / 1e6 / self.step_ms, 1.0) if self.step_ms else 0.0

    def sites_share(self, sites: Iterable[OpSite]) -> float:
        """Return the time of these sites as a share of the step: the device's, or on a CPU the
        host's."""
        if self.on_gpu:
            return self.device_share(sum(site.device_ns for site in sites))
        return self.host_share(sum(site.host_ns for site in sites))

    def exposed(self, *sites: OpSite) -> float:
        """Return the share that the step would lose if these sites' work took no time: on a CPU
        their time, on a saturated GPU their device time, else what of it is on the critical
        path."""
        if not self.on_gpu:
            return self.host_share(sum(site.host_ns for site in sites))
        whole = self.device_share(sum(site.device_ns for site in sites))
        if (self.busy or 0.0) >= SATURATED:
            return whole
        return min(whole, self.device_share(sum(site.exposed_ns for site in sites)))

    def idle(self, *causes: Cause) -> float:
        """Return the device's idle time of these causes, as a share of the step."""
        found = self.idle_causes(*causes)
        if self.busy is None or self.study is None or not self.study.idle.total_ns:
            return 0.0
        # tracing lengthens the host's part only: the untraced step's idle rest, in proportion
        return (1 - self.busy) * sum(cause.share for cause in found)

    def idle_causes(self, *causes: Cause) -> tuple[IdleCause, ...]:
        idle = self.study.idle.causes if self.study is not None else ()
        return tuple(cause for cause in idle if cause.cause in causes and cause.ns > 0)


MIN_RECORDED_SHARE = 0.01
"""Operators must take this share of the window: four aten::empty in a second are no program."""


def not_recorded(case: Case) -> str:
    """Return what a trace alone lacks to judge the program by, in words; empty if it can be
    judged."""
    study = case.study
    if case.kind != "trace" or study is None or case.on_gpu:
        return ""
    if told := on_gpus(study.ops, study.backend):
        return (
            "only the host was recorded (activities without CUDA), though the program uses GPUs "
            f"({told})"
        )
    worked = sum(row.host_self_ns for row in study.ops)
    if worked >= MIN_RECORDED_SHARE * study.window.ns:
        return ""
    calls = sum(row.count for row in study.ops)
    window = units.seconds(study.window.ns / 1e9)
    if not calls:
        return f"no operator was recorded in {window}"
    time = units.seconds(worked / 1e9)
    return f"little was recorded: {units.plural(calls, 'operator')}, {time} of {window}"
