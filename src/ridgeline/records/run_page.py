"""Everything that the page of a run shows: its summary, and beside it what was recorded, thinned to
what a browser can hold."""

from msgspec import Struct

from ridgeline.records.memory import MemoryStudy
from ridgeline.records.run import Capture, RunFile, Step, Telemetry
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.timeline import SourceLines, Timeline
from ridgeline.records.trace import Ranks, Roofline, TraceStudy


class Histogram(Struct, frozen=True, kw_only=True):
    """How many values lie between each two edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    beyond: int = 0
    """How many values lie above the last edge."""


class ModuleWork(Struct, frozen=True, kw_only=True):
    """A module in the tree of a model, with the work of all modules inside it. Of one step."""

    name: str
    parent: int
    """Index of the module that holds it; -1 for the outermost."""
    ns: float
    flops: float
    bytes: float


class StackNode(Struct, frozen=True, kw_only=True):
    """A function of Python in a tree of stacks; of the program's own code, a line."""

    parent: int
    """Index of its caller; -1 for the outermost."""
    function: str
    file: str
    line: int = 0
    """0 for library code, whose lines are not told apart."""
    is_own: bool = False
    """Whether it is the program's own code."""
    main: int = 0
    """Samples of the main process in it or in what it calls."""
    worker: int = 0
    """The same of the workers."""


class PythonStacks(Struct, frozen=True, kw_only=True):
    """Sampled stacks, joined where they begin alike."""

    nodes: tuple[StackNode, ...] = ()
    """Each after its caller."""
    interval_s: float = 0.0
    """Time between samples."""
    main: int = 0
    worker: int = 0
    """Samples in which a worker made a batch; waiting ones are left out."""
    left_out: int = 0
    """Nodes with too few samples to be drawn."""


class RunPage(Struct, frozen=True, kw_only=True):
    summary: RunSummary
    run: RunFile
    memory: MemoryStudy | None = None
    """The memory of the traced steps, with its levels over time."""
    capture: Capture | None = None
    """The capture of the rank that the summary shows."""
    steps: tuple[Step, ...] = ()
    """The steps of that rank, by index; thinned if there are more than a page holds."""
    steps_left_out: int = 0
    step_ms: Histogram | None = None
    """The distribution of the steps that the median is over; None if there are too few."""
    first_steady: int | None = None
    """Index of the first steady step: those before it are warm-up. None if no step is steady."""
    traced_factor: float | None = None
    """How many times as long a traced step takes as a steady one; None if either is not known."""
    telemetry: tuple[Telemetry, ...] = ()
    telemetry_left_out: int = 0
    timeline: Timeline | None = None
    """The traced steps of all ranks; None without a trace."""
    study: TraceStudy | None = None
    """The study of the traced steps: kernels and operators by name."""
    ranks: Ranks | None = None
    """The ranks side by side, if several left a trace."""
    roofline: Roofline = Roofline()
    """Operators, modules and kernels of a traced step."""
    modules: tuple[ModuleWork, ...] = ()
    """Empty where the trace shows no modules."""
    stacks: PythonStacks = PythonStacks()
    """The stacks of Python, if they were asked for."""
    source: tuple[SourceLines, ...] = ()
    """The lines that findings and events name, with their neighbours, as far as the files can be
    read. They may have changed since the run."""
    problems: tuple[str, ...] = ()
    """One sentence for each part of the run that could not be read."""
