"""All that a rule may look at: a run's records, or what a trace alone holds.

A part that is not there is None or empty: a rule names the parts it needs (`Rule.needs`), and is
not asked without them. Shares are fractions of the untraced step where there is one.
"""

from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.hand_fed import HandFed
from ridgeline.diagnosis.shares import Shares
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
"""Of the step: a device busy for so long is what the step waits for, whatever the host does."""


class Case(Struct, frozen=True, kw_only=True):
    kind: Literal["run", "trace"] = "run"
    on_gpu: bool = False
    run: RunFile | None = None
    capture: Capture | None = None
    steps: tuple[Step, ...] = ()
    """Of the run's whole recorded span: `window` says which are timed."""
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
    """Of several ranks: all of them, their times added up. All else is of the first one."""
    rank_kernels: tuple[KernelRow, ...] | None = None
    """Where the study is of several ranks: the first one's own."""
    work: StepWork | None = None
    traced_memory: TraceMemory | None = None
    """What the traced steps did with memory."""
    shares: Shares | None = None
    """The step by what holds it up: input, transfer, overhead, communication, compute, memory."""
    sites: Sites = Sites()
    syncs: tuple[SyncPoint, ...] = ()
    """Places as measured, not shortened."""
    input: InputSites = InputSites()
    """The loader in the traced steps."""
    fed: HandFed = HandFed()
    """Batches made by a function of the user's own."""
    device: Device | None = None
    """With its ceilings: `device.ceilings`; None where nobody knows them."""
    emulated: tuple[str, ...] = ()
    """Types the CPU that ran it has no instructions for: bfloat16, float16."""
    exchange: Exchange = Exchange()
    """Collectives of this rank's traced steps."""
    across: Ranks | None = None
    """The ranks side by side, where several left a trace."""
    rank_places: tuple[RankPlace, ...] = ()
    """The user's functions in which a rank spends more time than the others, the largest first."""
    across_ns: int = 0
    """The window `across` is over."""
    steps_compared: bool = False
    """Whether the work of each rank alone was compared step by step. Then `late` is the answer, and
    None means that no rank is late."""
    late: LateRank | None = None
    """The late rank by that comparison. `diagnose.lateness` also answers where steps were not
    compared."""
    processors: int = 0
    """Of the machine, whether the program may use them or not; 0: not known."""
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
        """Of this rank's traced steps, by name."""
        if self.rank_kernels is not None:
            return self.rank_kernels
        return self.study.kernels if self.study is not None else ()

    @property
    def traced_ms(self) -> float:
        """A traced step's length; 0 without a trace."""
        if self.work is not None and self.work.step_ms:
            return self.work.step_ms
        window = self.study.window if self.study is not None else None
        return window.ns / 1e6 / max(window.steps, 1) if window is not None else 0.0

    @property
    def step_ms(self) -> float:
        """An untraced step's mean length, else a traced one's; 0 where there are no steps."""
        return self.times.mean_ms or self.traced_ms

    @property
    def busy(self) -> float | None:
        """Of the step the device worked (a GPU's kernels and copies, a CPU's operators)."""
        if self.work is None or not self.step_ms:
            return None
        length = self.step_ms if self.on_gpu else self.traced_ms
        return min(self.work.operator_ms / length, 1.0) if length else None

    def share_of(self, kind: str) -> float:
        """input, transfer, overhead, communication, compute, memory: of the step; 0 unknown."""
        return self.shares.of.get(kind, 0.0) if self.shares is not None else 0.0  # type: ignore[call-overload]

    def host_share(self, ns: float) -> float:
        """Traced host time of a step (on a CPU, operators' work) as a share: tracing slows the host
        as a whole, so it is of the traced step."""
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
        """Device time of a step, hidden or not, as a share of the untraced one."""
        return min(ns / 1e6 / self.step_ms, 1.0) if self.step_ms else 0.0

    def exposed(self, *sites: OpSite) -> float:
        """What the step would lose if these sites' work took no time: on a CPU their time, on a
        saturated GPU their device time, else what of it is on the critical path."""
        if not self.on_gpu:
            return self.host_share(sum(site.host_ns for site in sites))
        whole = self.device_share(sum(site.device_ns for site in sites))
        if (self.busy or 0.0) >= SATURATED:
            return whole
        return min(whole, self.device_share(sum(site.exposed_ns for site in sites)))

    def idle(self, *causes: Cause) -> float:
        """Device idle time of these causes, as a share of the step."""
        found = self.idle_causes(*causes)
        if self.busy is None or self.study is None or not self.study.idle.total_ns:
            return 0.0
        # tracing lengthens the host's part only: the untraced step's idle rest, in proportion
        return (1 - self.busy) * sum(cause.share for cause in found)

    def idle_causes(self, *causes: Cause) -> tuple[IdleCause, ...]:
        idle = self.study.idle.causes if self.study is not None else ()
        return tuple(cause for cause in idle if cause.cause in causes and cause.ns > 0)


LITTLE = 0.01
"""Of the window in operators: four aten::empty in a second are no program."""


def not_recorded(case: Case) -> str:
    """Of a trace alone, what it lacks to say anything of the device; "" where it can be judged."""
    study = case.study
    if case.kind != "trace" or study is None or case.on_gpu:
        return ""
    if told := on_gpus(study.ops, study.backend):
        return (
            "only the host was recorded (activities without CUDA), though the program uses GPUs "
            f"({told})"
        )
    worked = sum(row.host_self_ns for row in study.ops)
    if worked >= LITTLE * study.window.ns:
        return ""
    calls = sum(row.count for row in study.ops)
    window = units.seconds(study.window.ns / 1e9)
    if not calls:
        return f"no operator was recorded in {window}"
    time = units.seconds(worked / 1e9)
    return f"little was recorded: {units.plural(calls, 'operator')}, {time} of {window}"
