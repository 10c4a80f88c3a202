"""A run: one execution of a program, as run.json and capture-rank<N>.json hold it.

`RunFile` is written before the program starts, and again by the watcher when the program is over.
`Capture` is what the program's own process knows; the file is replaced each time it changes.
"""

from collections.abc import Sequence
from os.path import expanduser
from typing import Literal

from msgspec import Struct

from ridgeline.records.step_memory import HeldTensors, LiveTensors

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
"""The window that a step fell into. Times come from "light" only. "disturbed" is a step during or
after work of ours, such as the writing of a trace."""


class StepMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory at the end of a step, as the allocators of the device and of the host count it."""

    allocated_bytes: int = 0
    peak_bytes: int = 0
    """The highest value since the program began, or since the program itself reset it."""
    reserved_bytes: int = 0
    retries: int = 0
    """Allocations that had to free cached blocks and try again, since the program began."""
    host_bytes: int = 0
    """Bytes that malloc has handed out to the program and not got back; 0 if it is not known."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    start_ns: int
    dur_ns: int
    """Time on the host, from the end of the previous step to the end of this step."""
    window: StepWindow = "light"
    host: dict[Phase, int] = {}
    device_ns: int | None = None
    """The same span on the device's own clock (events on the stream). None on a CPU, or if the
    events could not be read because a graph was being captured."""
    device: dict[Phase, int] = {}
    """The device's time by phase. `input` is the time in which the device was idle while the
    program waited for data, so these times are exposed."""
    loss: float | None = None
    """The scalar handed to backward; the last one if there are several backwards. A gradient
    scaler's factor and a division by the number of backwards are undone. None if it is not finite.
    """
    loss_broke: str = ""
    """A loss that is not finite, as text: nan, inf or -inf; else ""."""
    samples: int = 0
    """Number of samples in the batch, from its first dimension; 0 if it is not known."""
    tokens: int = 0
    """Number of elements of an integer batch of two dimensions; 0 if the batch is not text."""
    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    """Whether the gradient scaler found infinities and left the parameters as they were."""
    compile_ns: int = 0
    """Time torch.compile spent compiling inside this step."""
    memory: StepMemory | None = None
    """Memory at the end of the step; None if it was not read. It is read only as often as reading
    costs at most 0.2 % of the program's time."""
    detailed: bool = True
    """False if only the length of the step was measured, because more would cost too much of so
    short a step. Phases, calls, samples and loss are then taken from neighbouring steps."""
    regions: dict[str, int] = {}
    """Time inside `ridgeline.region("name")`, by name."""


SCHEMA = 1

NoTrace = Literal["", "profiles-itself", "disk-full", "too-large"]
"""Why the program's process kept no trace: the program uses a profiler itself; less than 512 MB
were free on the disk; the trace was larger than 2 GB. It is empty if there is a trace."""
Status = Literal[
    "running",
    "finished",  # reached its end; the exit code need not be 0
    "raised",  # ended by an uncaught exception
    "interrupted",  # Ctrl-C
    "stopped",  # by --stop-after
    "killed",  # ended without a last capture: a signal, os._exit, a crash
    "damaged",  # run.json cannot be read, so that the end is not known
]
TargetKind = Literal["script", "module", "code", "block"]
"""`block`: `with ridgeline.profile()` or a notebook cell."""


class Settings(Struct, frozen=True, kw_only=True):
    """Says what the user requested of a run."""

    steps: int = 40
    """Number of steps in the light window."""
    trace_steps: int = 3
    stop_after: int = 0
    """End the program after this many steps; 0: let it run."""
    stop_after_s: float = 0.0
    """End the program at the end of a step once it has run for so long and the trace is recorded,
    or after twice that time without a trace; 0: do not look at the time. It holds for a program of
    one process: several ranks would end at different steps, and wait for each other."""
    at_once: bool = False
    """Whether `stop_after` and `stop_after_s` end the process by os._exit, so that no more of the
    program's code runs; else the program ends as by sys.exit(0)."""
    full: bool = False
    """Whether every step is timed to the end of the program."""
    python: bool = False
    """Whether Python stacks are sampled."""
    price_per_hour: float | None = None
    carbon_g_per_kwh: float | None = None
    run_dir: str = ""
    output: str = ""
    quiet: bool = False
    verbose: bool = False
    """Whether the report at the terminal also shows the evidence behind its answers."""


class Target(Struct, frozen=True, kw_only=True):
    kind: TargetKind
    name: str
    """The script's path as typed, the module's name, or the code."""
    arguments: tuple[str, ...] = ()
    """Command-line arguments; those that look like a secret are replaced."""


class Git(Struct, frozen=True, kw_only=True):
    commit: str = ""
    branch: str = ""
    dirty: bool = False
    looked: bool = True
    """False if the tree was too large to be read in time; `dirty` is then not known."""


class Environment(Struct, frozen=True, kw_only=True):
    """The surroundings of a run, as seen from outside the program. Values of environment variables
    are recorded only for names of a fixed list."""

    directory: str = ""
    """The working directory, with ~ for the user's home; see `folder`."""
    host: str = ""
    system: str = ""
    python: str = ""
    executable: str = ""
    git: Git | None = None
    packages: dict[str, str] = {}
    variables: dict[str, str] = {}
    """The listed environment variables that are set."""
    cores: int = 0
    memory_bytes: int = 0

    @property
    def folder(self) -> str:
        """The working directory with ~ expanded. For a run of another user it may not exist."""
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
    """The uncaught exception of a run that raised, such as "ValueError: shapes do not match"."""
    exit_code: int | None = None
    """None if it is not known. A negative number is the signal that ended the program."""
    pid: int = 0
    pid_started: float = 0.0
    """When that process began, in the system's clock ticks, because process ids are reused."""
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
    """The kind of window. In the last one, "alone", the hooks are off or idle."""
    first_step: int
    steps: int = 0
    start_ns: int = 0
    end_ns: int = 0


class ModuleSeen(Struct, frozen=True, kw_only=True):
    """An outermost module that was called."""

    name: str
    """The class of the module inside all wrappers (DDP, FSDP, a compiled module)."""
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
    """file:line in the user's own code of its first training call."""
    loss: bool = False
    """Whether it is taken for a loss, because it has no parameters."""
    inputs: tuple[str, ...] = ()
    """The tensors of its first training call, such as "float32[32, 3, 224, 224]"."""
    evaluation_place: str = ""
    """file:line:function of the module's first call in eval mode or without gradients."""
    generates: bool = False
    """Whether it is a model of Hugging Face transformers that can `generate` text."""


class OptimizerSeen(Struct, frozen=True, kw_only=True):
    name: str
    steps: int = 0
    anchor: bool = False
    """Whether its step ends a step of the program."""
    place: str = ""
    options: dict[str, str] = {}
    """Values of foreach, fused, capturable and others that the first parameter group holds."""
    gradients_checked: int = 0
    """Number of steps for which it was checked whether the gradients of the step before were
    cleared."""
    gradients_kept: int = 0
    """Number of checked steps whose backward added to the gradients of the step before."""


class LoaderSeen(Struct, frozen=True, kw_only=True):
    dataset: str = ""
    stream: bool = False
    """Whether the dataset is an IterableDataset."""
    workers: int = 0
    batch_size: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    length: int | None = None
    batches: int = 0
    place: str = ""
    epochs: int = 0
    """How often iteration began while the hooks were on."""
    begun: tuple[int, ...] = ()
    """The indices of the steps in which iteration began; the first 256 of them."""
    worked: float | None = None
    """Share of the time spent waiting for its batches in which the waiting thread itself used the
    processor; None if it was not measured."""
    training_batches: int = 0
    """Number of batches that a model in training was called with. The others went into evaluations,
    or were not used."""
    made: tuple[str, ...] = ()
    """The user's own functions on the stack when the loader was made, innermost first, as
    file:line:function; empty if that was not seen."""


class ChildrenSeen(Struct, frozen=True, kw_only=True):
    """Processes that the program started with a function of its own. Our hooks are off in them."""

    function: str
    place: str = ""
    """file:line of the function."""
    processes: int = 1


def training_loader(loaders: Sequence[LoaderSeen]) -> LoaderSeen:
    """Return the loader that fed the training steps. An evaluation's loader may have handed out
    more batches."""
    return max(
        loaders, key=lambda loader: (loader.training_batches, loader.batches), default=LoaderSeen()
    )


class PauseSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says where the program was in a step that took much longer than the others."""

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
    """A Python function that torch.compile compiled, or failed to compile."""

    place: str
    """The line where the compiled function begins; in a file of torch if it is a wrapper."""
    function: str = ""
    called_at: str = ""
    """The user's line that called the function, as file:line; "" if it is not known."""
    seconds: float = 0.0
    step: int | None = None
    recompile_reason: str = ""
    graph_breaks: tuple[str, ...] = ()
    failed: str = ""


class Flags(Struct, frozen=True, kw_only=True):
    """Settings of torch that affect speed, read inside the program at the end of its windows."""

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
    """Number of cores that the program's thread may run on; 0 if the system does not tell."""
    default_dtype: str = ""
    autocast: tuple[str, ...] = ()
    """Autocast modes that were on around the forward, such as "cuda bfloat16"."""
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
    """A shortage of memory on the device or the host. For a device, the allocations are in the
    snapshot file."""

    asked_bytes: int
    """Size of the allocation that failed; 0 if it is not known."""
    free_bytes: int
    total_bytes: int
    """All memory of the device or host, or the program's limit; 0 if it is not known."""
    on: Literal["device", "host"] = "device"
    killed: bool = False
    """Whether the system killed the program. This is known from outside, from how the program ended
    and how much memory was in use."""
    worker: bool = False
    """Whether the system killed a worker of a DataLoader, which ended the program."""
    sure: bool = True
    """False if the program was killed while its memory grew, but it is not known that this was the
    reason."""
    allocated_bytes: int = 0
    """Memory in use; on a host it is the resident size, or all that is mapped where the address
    space is limited."""
    reserved_bytes: int = 0
    step: int = 0
    unwatched: bool = False
    """Whether the program took further steps after `step`, which nobody counted."""
    phase: str = ""
    place: str = ""
    """file:line in the user's own code that made the failed allocation."""
    alive: tuple[tuple[str, int, int], ...] = ()
    """Live allocations as (file:line, bytes, blocks), largest first; file:line is "" if no stack
    was kept."""
    snapshot: str = ""
    live: tuple[LiveTensors, ...] = ()
    """Tensors that Python objects of the program held, if its exception was not caught."""
    held: tuple[HeldTensors, ...] = ()
    """The containers and variables that held most of them."""


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
    """Everything that the program's own process recorded, apart from steps and trace."""

    schema: int = SCHEMA
    rank: int = 0
    world: int = 1
    pid: int = 0
    stepping: Literal["", "said", "optimizer", "backward", "call"] = ""
    """The event that ends a step: "said" is a call of ridgeline.step(), "optimizer" a step of the
    anchor optimizer, "backward" the first forward after a backward, "call" an outermost call of a
    module. It is "" while no such event was seen."""
    steps: int = 0
    """Number of steps counted while the hooks were on."""
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
    """Dynamo's own counter: how often each reason broke a graph."""
    flags: Flags = Flags()
    device: DeviceSeen = DeviceSeen()
    distributed: str = ""
    """The backend of torch.distributed, such as nccl or gloo; "" if it is not in use."""
    trace_file: str = ""
    calls: tuple[CallSeen, ...] = ()
    """Calls of the user's lines in the traced steps; empty if the profiler did not tell the lines.
    """
    memory_file: str = ""
    out_of_memory: OutOfMemory | None = None
    pauses: tuple[PauseSeen, ...] = ()
    """Samples of steps that were late, in a program that had paused before."""
    held: tuple[HeldTensors, ...] = ()
    """The objects that grew from step to step while memory rose, and what refers to them."""
    memory_at_end: StepMemory | None = None
    """Memory in use at the end of the program. Its functions have returned by then, and only what
    its modules hold is left."""
    system_share: float | None = None
    """Time that the kernel worked for the program, over all of its threads, as a share of the time
    in the light windows."""
    light_time: ThreadTime | None = None
    traced_time: ThreadTime | None = None
    """The accounts of the light windows and of the traced one; None if the kernel keeps none."""
    torch_imported: bool = True
    ended: Status = "running"
    why: str = ""
    ended_ns: int = 0
    missing: tuple[str, ...] = ()
    """One sentence for each thing that was not recorded, with the reason."""
    no_trace: NoTrace = ""
    problems: tuple[str, ...] = ()
    """One sentence for each error of ours. None of them reached the program."""


class ProcessSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The program's process or one of its workers. Counters run from the start of the process."""

    pid: int
    worker: bool = False
    """Whether it is another process than the program's own."""
    loader: bool = False
    """Whether it is a worker of a DataLoader, by the name that torch gives it."""
    cpu_s: float = 0.0
    """User and system time."""
    rss_bytes: int = 0
    pss_bytes: int = 0
    """Resident bytes with each shared page divided by the number of its users; 0 if it was not read
    in this sample."""
    read_bytes: int = 0
    """Bytes read from storage; 0 if the system does not tell."""
    write_bytes: int = 0
    major_faults: int = 0
    """Page faults that had to wait for storage."""
    threads: int = 0


class DeviceSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. A value is None if the driver does not report it."""

    index: int
    """The GPU's index as NVML counts."""
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
    """Reasons for reduced clocks: "power cap", "thermal", "hardware slowdown", …"""
    others: int = 0
    """Number of processes on it that are not the program's."""
    ours: bool = False
    """Whether a process of the program was seen on it; False also if process ids cannot be
    matched."""


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ns: int
    """CLOCK_MONOTONIC, as in the steps."""
    processes: tuple[ProcessSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    host_cpu_percent: float | None = None
    """Use of all processors by all processes."""
    host_memory_available_bytes: int | None = None
    package_energy_j: float | None = None
    """The processor's own energy counter (RAPL); None if it may not be read."""


MAX_STACK_FRAMES = 64
OTHER_STACKS = "(others)"
"""The only frame of a stack that stands for all stacks for which there was no room."""
OMITTED_FRAMES = "…"
"""A frame that stands for the middle of a stack deeper than `MAX_STACK_FRAMES`."""


class Sampled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of python-<pid>.jsonl: the stacks sampled in one process since the previous line.

    A stack is a tuple of at most `MAX_STACK_FRAMES` frames "file:line:function", outermost
    first."""

    pid: int
    process: Literal["main", "worker"] = "main"
    worker: int = -1
    at_ns: int = 0
    samples: int = 0
    interval_ns: int = 0
    stacks: tuple[tuple[tuple[str, ...], int], ...] = ()
    """Pairs of a stack and the number of its samples."""


class PythonLine(Struct, frozen=True, kw_only=True):
    """A line of the user's own code and the time spent in it or in what it calls."""

    file: str
    line: int
    function: str
    source: str = ""
    """The text of the line; "" if the file cannot be read."""
    process: Literal["main", "worker"] = "main"
    share: float = 0.0
    """Share of the samples of its kind of process that were in this line, or in library code that
    the line called."""
    total_share: float = 0.0
    """The same share with all code that the line called, the user's included."""
    seconds: float = 0.0
    calls: str = ""
    """The library function that took most of this time, such as PIL.Image.resize."""


class InputLines(Struct, frozen=True, kw_only=True):
    """The lines that make batches: user code called by a loader, or in a function whose name says
    that it makes batches, in the program's process or in workers."""

    main_samples: int = 0
    worker_samples: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Costliest line first; shares refer to these samples. An entry without a file is a library's
    own dataset or collation, named in `calls`."""
    functions: tuple[str, ...] = ()
    """All of the user's functions on these stacks, as file:function, sorted."""


class PythonView(Struct, frozen=True, kw_only=True):
    main_samples: int = 0
    worker_samples: int = 0
    worker_idle_samples: int = 0
    """Worker samples without any index to work on. Shares of workers leave them out."""
    workers: int = 0
    interval_ns: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Lines of the program and the workers, the largest `share` first."""
    functions: tuple[PythonLine, ...] = ()
    """The same by function; the line is where the function begins."""
    input: InputLines = InputLines()
