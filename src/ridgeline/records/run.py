"""A run: one execution of a program, as run.json and capture-rank<N>.json hold it.

`RunFile` is written before the program starts and again when it is over, by the process that
watches it. `Capture` is what the program's own process knows: written whole each time it changes.
"""

from collections.abc import Sequence
from os.path import expanduser
from typing import Literal

from msgspec import Struct

from ridgeline.records.step import StepMemory

SCHEMA = 1

Status = Literal[
    "running",
    "finished",  # came to its end; the exit code may still be its own
    "raised",  # an exception nobody caught
    "interrupted",  # Ctrl-C
    "stopped",  # by --stop-after
    "killed",  # ended without a word: a signal, os._exit, a crash
    "damaged",  # run.json cannot be read, so that the end is not known
]
TargetKind = Literal["script", "module", "code", "block"]
"""`block`: `with ridgeline.profile()` or a notebook cell."""


class Settings(Struct, frozen=True, kw_only=True):
    """What was asked of a run."""

    steps: int = 40
    """Steps in the light window."""
    trace_steps: int = 3
    stop_after: int = 0
    """End the program after this many steps; 0: let it run."""
    at_once: bool = False
    """Where that step ends, with nothing of the program's run any more; else as by sys.exit(0)."""
    full: bool = False
    """Time every step to the end."""
    python: bool = False
    """Sample where Python spends its time."""
    price_per_hour: float | None = None
    carbon_g_per_kwh: float | None = None
    run_dir: str = ""
    output: str = ""
    quiet: bool = False
    verbose: bool = False
    """Also say at the terminal how the five questions are answered."""


class Target(Struct, frozen=True, kw_only=True):
    kind: TargetKind
    name: str
    """The script's path as typed, the module's name, or the code."""
    arguments: tuple[str, ...] = ()
    """What looks like a secret is replaced."""


class Git(Struct, frozen=True, kw_only=True):
    commit: str = ""
    branch: str = ""
    dirty: bool = False
    looked: bool = True
    """False: the tree was too large to look at in time, and `dirty` says nothing."""


class Environment(Struct, frozen=True, kw_only=True):
    """Where it ran, from outside the program. Never the value of a variable that is not listed."""

    directory: str = ""
    """With ~ for the user's own; `folder` is where it lies."""
    host: str = ""
    system: str = ""
    python: str = ""
    executable: str = ""
    git: Git | None = None
    packages: dict[str, str] = {}
    variables: dict[str, str] = {}
    """Those of the allow list that are set."""
    cores: int = 0
    memory_bytes: int = 0

    @property
    def folder(self) -> str:
        """To look for the program's files in; of another user's run, one that is not there."""
        return expanduser(self.directory)


class RunFile(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    name: str
    """The directory's name."""
    target: Target
    settings: Settings = Settings()
    environment: Environment = Environment()
    status: Status = "running"
    why: str = ""
    """For "raised": ValueError: shapes do not match."""
    exit_code: int | None = None
    """None where nobody could see it. Negative: the signal that ended it."""
    pid: int = 0
    pid_started: float = 0.0
    """When that process began, in the system's clock ticks: ids are used again."""
    began_at: str = ""
    """ISO time, with zone."""
    began_ns: int = 0
    """CLOCK_MONOTONIC."""
    ended_ns: int = 0
    oom_kills: int = 0
    """Number of processes in the program's control group that the kernel killed for memory during
    the run."""
    ranks: int = 1
    ridgeline: str = ""
    bytes_on_disk: int = 0


class Window(Struct, frozen=True, kw_only=True):
    kind: Literal["settle", "light", "traced", "memory", "alone"]
    """alone: the hooks are off, or idle."""
    first_step: int
    steps: int = 0
    start_ns: int = 0
    end_ns: int = 0


class ModuleSeen(Struct, frozen=True, kw_only=True):
    """An outermost module that was called."""

    name: str
    """Its class; wrappers (DDP, FSDP, compiled) are named in `wrappers`."""
    wrappers: tuple[str, ...] = ()
    """Wrapper classes around the module, outermost first; FSDPModule if `fully_shard` was called on
    it."""
    calls: int = 0
    evaluation_calls: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    dtypes: tuple[str, ...] = ()
    device: str = ""
    place: str = ""
    """file:line of its first training call in the user's own code."""
    loss: bool = False
    """Without parameters, called after the model: a loss."""
    inputs: tuple[str, ...] = ()
    """Tensors of its first training call: float32[32, 3, 224, 224]."""
    evaluation_place: str = ""
    """file:line:function of the module's first call in eval mode or without gradients."""


class OptimizerSeen(Struct, frozen=True, kw_only=True):
    name: str
    steps: int = 0
    anchor: bool = False
    """Its step ends a step of the program."""
    place: str = ""
    options: dict[str, str] = {}
    """foreach, fused, capturable, where the first group names them."""
    gradients_checked: int = 0
    """Number of steps for which it was checked whether the gradients of the step before were
    cleared."""
    gradients_kept: int = 0
    """Number of checked steps whose backward added to the gradients of the step before."""


class LoaderSeen(Struct, frozen=True, kw_only=True):
    dataset: str = ""
    stream: bool = False
    """An IterableDataset."""
    workers: int = 0
    batch_size: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    length: int | None = None
    batches: int = 0
    place: str = ""
    epochs: int = 0
    """Times it was begun while the hooks looked."""
    begun: tuple[int, ...] = ()
    """The steps in which that was; the first 256."""
    worked: float | None = None
    """Of the time it was waited for, what the waiting thread itself worked; None: not seen."""
    training_batches: int = 0
    """Batches that a model in training was called with; the others fed evaluations, or nothing."""
    made: tuple[str, ...] = ()
    """The user's own functions on the stack when the loader was made, innermost first, as
    file:line:function; empty if that was not seen."""


class ChildrenSeen(Struct, frozen=True, kw_only=True):
    """Processes that the program started with a function of its own: they carry no hooks."""

    function: str
    place: str = ""
    """file:line of the function."""
    processes: int = 1


def feeding(loaders: Sequence[LoaderSeen]) -> LoaderSeen:
    """Return the loader that fed the training steps. An evaluation's loader may have handed out
    more batches."""
    return max(loaders, key=lambda one: (one.training_batches, one.batches), default=LoaderSeen())


class PauseSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the program was in a step that took much longer than the others."""

    step: int
    phase: str = ""
    """The phase that the program was in; "" if the step was only timed."""
    frames: tuple[str, ...] = ()
    """The user's own functions, innermost first, as file:line:function."""
    seconds: float = 0.0
    """Time that the program was seen there: the sum of the times from each sample back to the one
    before it."""


class CallSeen(Struct, frozen=True, kw_only=True):
    """Calls that one line of the user's own code made in the traced steps."""

    file: str
    line: int
    name: str
    """The name of the called function without its module: item, backward."""
    times: int = 1


class Compilation(Struct, frozen=True, kw_only=True):
    """A frame torch.compile compiled, or failed to."""

    place: str
    """Where the compiled function begins; a file of torch if that function is a wrapper."""
    function: str = ""
    called_at: str = ""
    """The user's line that called the function, as file:line; "" if it is not known."""
    seconds: float = 0.0
    step: int | None = None
    recompile_reason: str = ""
    graph_breaks: tuple[str, ...] = ()
    failed: str = ""


class Flags(Struct, frozen=True, kw_only=True):
    """Settings of torch that decide speed, read inside the program at the end of its windows."""

    torch: str = ""
    cuda: str = ""
    cudnn: str = ""
    matmul_tf32: bool | None = None
    cudnn_tf32: bool | None = None
    matmul_precision: str = ""
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic: bool | None = None
    threads: int = 0
    interop_threads: int = 0
    allowed_cores: int = 0
    """That the program's own thread may run on, as it ended up; 0: the system does not say."""
    default_dtype: str = ""
    autocast: tuple[str, ...] = ()
    """Autocast seen around the forward: "cuda bfloat16"."""
    gradient_scaler: bool = False


class DeviceSeen(Struct, frozen=True, kw_only=True):
    """The device the program trains on."""

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0
    name: str = ""
    memory_bytes: int = 0
    uuid: str = ""
    pci: str = ""
    architecture: str = ""
    cores: int = 0


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """The device or the host ran out of memory. What was allocated on a device is in the snapshot
    beside this record."""

    asked_bytes: int
    """0 if it is not known."""
    free_bytes: int
    total_bytes: int
    """The memory there is, or the program's limit; 0 if it is not known."""
    on: Literal["device", "host"] = "device"
    killed: bool = False
    """Whether the system killed the program. This is known from outside, from how the program ended
    and how much memory was in use."""
    sure: bool = True
    """False if the program was killed while its memory grew, but it is not known that this was the
    reason."""
    allocated_bytes: int = 0
    """Memory in use; on a host it is the resident size, or all that is mapped where the address
    space is limited."""
    reserved_bytes: int = 0
    step: int = 0
    phase: str = ""
    place: str = ""
    """file:line in the user's own code that asked."""
    alive: tuple[tuple[str, int, int], ...] = ()
    """(file:line that allocated, bytes, blocks), largest first; "" where no stack was kept."""
    snapshot: str = ""


class ThreadTime(Struct, frozen=True, kw_only=True):
    """The kernel's account of the thread that trains, over all windows of one kind."""

    wall_ns: int = 0
    processor_ns: int = 0
    queued_ns: int = 0
    """Time in which the thread was ready to run while others held the processors."""

    @property
    def processor_share(self) -> float:
        return self.processor_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def queued_share(self) -> float:
        return min(self.queued_ns / self.wall_ns, 1.0) if self.wall_ns else 0.0


class Capture(Struct, frozen=True, kw_only=True):
    """What the program's own process saw."""

    schema: int = SCHEMA
    rank: int = 0
    world: int = 1
    pid: int = 0
    stepping: Literal["", "said", "optimizer", "backward", "call"] = ""
    """What ends a step: ridgeline.step(), the anchor's step, the forward after a backward, or an
    outermost call; "" while none was seen."""
    steps: int = 0
    """All that were counted while the hooks were on."""
    steps_taken: int | None = None
    """Steps of the whole program, including those after the windows. None if they were not counted,
    or if the program has not ended."""
    windows: tuple[Window, ...] = ()
    modules: tuple[ModuleSeen, ...] = ()
    optimizers: tuple[OptimizerSeen, ...] = ()
    loaders: tuple[LoaderSeen, ...] = ()
    loaders_made: tuple[str, ...] = ()
    """Lines of the user's own code (file:line:function) at which loaders were made, used or not."""
    children: tuple[ChildrenSeen, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    graph_breaks: dict[str, int] = {}
    """Dynamo's own counter: reason, times."""
    flags: Flags = Flags()
    device: DeviceSeen = DeviceSeen()
    distributed: str = ""
    """The backend: nccl, gloo; "" when alone."""
    trace_file: str = ""
    calls: tuple[CallSeen, ...] = ()
    """Calls of the user's lines in the traced steps; empty if the profiler did not tell the lines.
    """
    memory_file: str = ""
    out_of_memory: OutOfMemory | None = None
    pauses: tuple[PauseSeen, ...] = ()
    """Samples of steps that were late, in a program that had paused before."""
    memory_at_end: StepMemory | None = None
    """Memory in use at the end of the program. Its functions have returned by then, and only what
    its modules hold is left."""
    system_share: float | None = None
    """Of the light windows: the system's work for the program, over all of its threads."""
    light_time: ThreadTime | None = None
    traced_time: ThreadTime | None = None
    """The accounts of the light windows and of the traced one; None if the kernel keeps none."""
    torch_imported: bool = True
    ended: Status = "running"
    why: str = ""
    ended_ns: int = 0
    missing: tuple[str, ...] = ()
    """What was not recorded, and why, a sentence each."""
    problems: tuple[str, ...] = ()
    """Faults of ours, a sentence each: the program went on without them."""
