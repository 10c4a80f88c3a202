"""A run: one execution of a program, as run.json and capture-rank<N>.json hold it.

`RunFile` is written before the program starts and again when it is over, by the process that
watches it. `Capture` is what the program's own process knows: written whole each time it changes.
"""

from collections.abc import Sequence
from os.path import expanduser
from typing import Literal

from msgspec import Struct

Phase = Literal[
    "input",  # waiting for the DataLoader
    "transfer",  # from the batch in hand to the first forward: the copy to the device
    "forward",  # outermost module calls that train, loss modules included
    "backward",
    "optimizer",  # the step itself, zero_grad, gradient scaling
    "evaluation",  # outermost calls in eval mode or without gradients, between training steps
    "other",
]
StepWindow = Literal["settle", "light", "traced", "memory", "disturbed"]
"""Which window it fell in. Times come from "light" only; "disturbed" is the step after a pause of
ours (a trace being written), and any step that a pause fell into."""


class StepMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the allocators of the device and of the host count at the end of a step."""

    allocated_bytes: int = 0
    peak_bytes: int = 0
    """Highest since the program began, or since the program itself reset it."""
    reserved_bytes: int = 0
    retries: int = 0
    """Allocations that had to free cached blocks and try again, since the program began."""
    host_bytes: int = 0
    """Bytes that malloc has handed out to the program and not got back; 0 if it is not known."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    start_ns: int
    dur_ns: int
    """On the host, from the end of the step before to the end of this one."""
    window: StepWindow = "light"
    host: dict[Phase, int] = {}
    device_ns: int | None = None
    """The same span on the device's own clock (events on the stream); None on a CPU, or where the
    events could not be read (a graph being captured)."""
    device: dict[Phase, int] = {}
    """The device's timeline by phase: under `input` is the time it had nothing left to do while the
    program waited for data, so these are exposed times."""
    loss: float | None = None
    """The scalar handed to backward; the last one if there are several backwards. A gradient
    scaler's factor and a division by the number of backwards are undone. None if it is not finite.
    """
    loss_broke: str = ""
    """What it is then: nan, inf, -inf."""
    samples: int = 0
    """Along the first dimension of the batch; 0 where unknown."""
    tokens: int = 0
    """Elements of an integer batch of two dimensions; 0 where it is not text."""
    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    """The gradient scaler found infinities and left the parameters alone."""
    compile_ns: int = 0
    """Time torch.compile spent compiling inside this step."""
    memory: StepMemory | None = None
    """Memory at the end of the step; None if it was not read. It is read only as often as reading
    costs at most 0.2 % of the program's time."""
    detailed: bool = True
    """False: only its length was taken, because taking more would cost too much of a step so short:
    phases, calls, samples and loss are those of its neighbours."""
    regions: dict[str, int] = {}
    """Time inside `ridgeline.region("name")`, by name."""


SCHEMA = 1

NoTrace = Literal["", "profiles-itself", "disk-full", "too-large"]
"""Why the program's process kept no trace: the program uses a profiler itself; less than 512 MB
were free on the disk; the trace was larger than 2 GB. It is empty if there is a trace."""
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
    no_trace: NoTrace = ""
    problems: tuple[str, ...] = ()
    """Faults of ours, a sentence each: the program went on without them."""


class ProcessSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of the program: itself, or a worker. Counters are since it began."""

    pid: int
    worker: bool = False
    cpu_s: float = 0.0
    """User and system time."""
    rss_bytes: int = 0
    read_bytes: int = 0
    """From storage; 0 where the system does not say."""
    write_bytes: int = 0
    major_faults: int = 0
    """Page faults that had to wait for storage."""
    threads: int = 0


class DeviceSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. None: the driver does not say."""

    index: int
    """As NVML counts them."""
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    energy_j: float | None = None
    """The device's own counter, since the driver was loaded."""
    throttle: tuple[str, ...] = ()
    """Why its clocks are held down: "power cap", "thermal", "hardware slowdown", …"""
    others: int = 0
    """Other processes with work on it."""
    ours: bool = False
    """A process of the program was seen at work on it; False too where ids cannot be matched."""


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ns: int
    """CLOCK_MONOTONIC, as the steps."""
    processes: tuple[ProcessSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    host_cpu_percent: float | None = None
    """Of all processors, whoever used them."""
    host_memory_available_bytes: int | None = None
    package_energy_j: float | None = None
    """The processor's own energy counter (RAPL), where it may be read."""


DEEPEST = 64
OTHERS = "(others)"
"""A stack of this alone: samples whose stacks there was no room for."""
CUT = "…"
"""A frame that stands for those left out of a deeper stack; both ends of it are kept."""


class Sampled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of python-<pid>.jsonl: stacks seen in one process since its line before.

    A stack is a tuple of frames "file:line:function", outermost first, cut at `DEEPEST` frames."""

    pid: int
    process: Literal["main", "worker"] = "main"
    worker: int = -1
    at_ns: int = 0
    samples: int = 0
    interval_ns: int = 0
    stacks: tuple[tuple[tuple[str, ...], int], ...] = ()
    """(frames, times seen)."""


class PythonLine(Struct, frozen=True, kw_only=True):
    """A line of the user's own code and the time spent in it or in what it calls."""

    file: str
    line: int
    function: str
    source: str = ""
    """The text of the line, where the file can still be read."""
    process: Literal["main", "worker"] = "main"
    share: float = 0.0
    """Of the samples of its kind of process, with what it calls outside the user's code."""
    total_share: float = 0.0
    """With everything it calls."""
    seconds: float = 0.0
    calls: str = ""
    """The library function most of that time was in: PIL.Image.resize."""


class InputLines(Struct, frozen=True, kw_only=True):
    """What makes batches: the user's code beneath a loader, or in a function that by its name
    makes them, in whichever process it ran."""

    main_samples: int = 0
    worker_samples: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Costliest first; shares are of these samples. Without a file: a library's own dataset or
    collation, named in `calls`."""
    functions: tuple[str, ...] = ()
    """file:function of all of the user's that were on the way, in the order of their names."""


class PythonView(Struct, frozen=True, kw_only=True):
    main_samples: int = 0
    worker_samples: int = 0
    worker_idle_samples: int = 0
    """Of those: no index to work on. Shares of workers are of the others."""
    workers: int = 0
    interval_ns: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Costliest first by their own share, main and workers together."""
    functions: tuple[PythonLine, ...] = ()
    """The same by function: the line is where it begins."""
    input: InputLines = InputLines()
