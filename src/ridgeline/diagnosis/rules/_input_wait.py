"""How the program is fed: what the rules of the input share.

One wait, several possible causes; who speaks for it:

- workers started again each epoch (`workers-restart`) own the wait at the epochs' beginnings, and
  the others only what is left;
- without workers, `loader-starves`; with workers that cannot be helped by more of them, too;
- with workers that wait (for storage) or leave processors idle, `few-workers`;
- with workers that take each other's processors, `many-workers`;
- `small-files` and `repeated-decoding` say why a batch takes so long, where the lines tell it: then
  they come first, and the one of the three above stays, less sure, as the other way out.
"""

import ast
import math
import re
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import SHARE_TOLERANCE
from ridgeline.diagnosis.rules._batch_lines import (
    FEWEST,
    batch_lines,
    reading_share,
    repeated_share,
)
from ridgeline.diagnosis.rules._loaders import loaders_seen, made_at, program_files, restarts
from ridgeline.records.finding import Evidence
from ridgeline.records.run import LoaderSeen, PythonLine
from ridgeline.records.run import feeding as feeding_loader
from ridgeline.records.trace import Place
from ridgeline.report.names import function_label
from ridgeline.source.calls import SourceCall, all_calls
from ridgeline.source.file import SourceFile
from ridgeline.source.loaders import LoaderCall

LEAST = 0.1
LEAST_GPU = 0.05
"""Of the step. On a CPU stacking 32 small samples takes 0.3 ms, and 6 % of a step of 5 ms, in any
program; a GPU's work hides that."""
AT_WORK = 0.5
"""Of the workers' time: with less they have batches to spare, and the wait is for something else:
for a processor, or for the batch to be handed over (2 ms of 20 in a sandbox)."""
SPARE = 1.2
"""Workers beyond those that just keep up: batches do not all take the same time."""
MOST_WORKERS = 64
UNEVEN_WORKERS = 1.2
"""A bound assumes that workers may make batches this many times as fast as they did when measured.
"""
MIN_STEP_MS = 0.01
"""A step is taken to be at least this long: a Python call alone takes some microseconds."""


class Feeding(Struct, frozen=True, kw_only=True):
    """A device that waits for its input."""

    share: float
    """Of the step, without the workers' restarts."""
    wait_ms: float
    step_ms: float
    loader: LoaderSeen | None = None
    workers: int | None = None
    """None: not known, or no DataLoader."""
    batch_ms: float | None = None
    """One process's time for what a step consumes."""
    samples: float | None = None
    needed: int | None = None
    """Workers that would keep up, if each found a processor."""
    line: PythonLine | None = None
    """The costliest of the user's own, where lines were sampled."""
    traced: Place | None = None
    """Else the costliest function the trace saw in the loader."""
    function_share: float = 0.0
    """Of the making of a batch, in the function that line is in and outside other functions."""
    plain: bool = False
    """Its samples cost next to nothing; taking and stacking them one by one is what takes time."""

    @property
    def sample_ms(self) -> float | None:
        return self.batch_ms / self.samples if self.batch_ms and self.samples else None

    @property
    def place(self) -> Place | None:
        line = self.line
        if line is None:
            return self.traced
        return Place(file=line.file, line=line.line, function=line.function)


def feeding(case: Case) -> Feeding | None:
    """None: the device is fed, or nothing tells."""
    step_ms = case.step_ms
    share = case.share_of("input") or _by_hand(case)
    again = restarts(case)
    share -= min(again.input_share, share) if again is not None else 0.0
    if share < (LEAST_GPU if case.on_gpu else LEAST) or not step_ms:
        return None
    loader = feeder(case)
    workers = loader.workers if loader is not None else _workers_by_name(case)
    if workers and (_busy(case) or 1.0) < AT_WORK:
        return None
    line, function_share = _costliest(case, workers)
    samples = case.throughput.samples_per_step or None
    samples = samples / case.ranks if samples else None
    batch_ms = _batch_ms(case, workers, share * step_ms)
    plain = is_plain(case, loader, batch_ms / samples if batch_ms and samples else None)
    if plain and share < DOMINANT:
        return None
    return Feeding(
        share=share,
        wait_ms=share * step_ms,
        step_ms=step_ms,
        loader=loader,
        workers=workers,
        batch_ms=batch_ms,
        samples=samples,
        needed=_needed(batch_ms, (1 - share) * step_ms),
        line=line,
        traced=_traced_place(case, loader, workers),
        function_share=function_share,
        plain=plain,
    )


def bound_with_workers(fed: Feeding, workers: int) -> float | None:
    """Return the most that this number of workers can gain, as a factor. The step is never shorter
    than its work beside the input, nor than the time in which the workers together make a batch.
    Return None if the cost of a batch is not known: the bound then follows from the wait alone."""
    if fed.batch_ms is None or not workers:
        return None
    made_ms = fed.batch_ms / (workers * UNEVEN_WORKERS)
    rest_ms = fed.step_ms - (1 + SHARE_TOLERANCE) * fed.wait_ms
    return max(fed.step_ms / max(rest_ms, made_ms, MIN_STEP_MS), 1.0)


def feeder(case: Case) -> LoaderSeen | None:
    """Return the loader that fed the timed steps, or None if no loader was seen."""
    loaders = [one for one in loaders_seen(case) if one.batches]
    return feeding_loader(loaders) if loaders else None


def who(case: Case) -> str:
    if case.on_gpu:
        return "the GPU"
    return "training" if case.kind == "trace" or _trains(case) else "the program"


def _trains(case: Case) -> bool:
    capture = case.capture
    stepped = capture is not None and capture.stepping in ("optimizer", "backward")
    optimized = capture is not None and bool(capture.optimizers)
    return stepped or optimized or any(s.backwards or s.optimizer_steps for s in case.steps)


def wait_evidence(case: Case, fed: Feeding) -> Evidence:
    text = f"{units.seconds(fed.wait_ms / 1e3)}, {units.percent(fed.share)} of the step"
    return Evidence(what="input wait", text=text, value=fed.share)


def cost_evidence(fed: Feeding) -> list[Evidence]:
    """What a batch costs, and what a line of it does."""
    found = []
    if fed.batch_ms is not None:
        each = f", {units.seconds(fed.sample_ms / 1e3)} a sample" if fed.sample_ms else ""
        text = f"{units.seconds(fed.batch_ms / 1e3)} of one process a step{each}"
        found.append(Evidence(what="making a batch", text=text, value=fed.batch_ms))
    if fed.line is not None and fed.line.share:
        calls = f" (in {fed.line.calls})" if fed.line.calls else ""
        text = f"{units.percent(fed.line.share)} of that time: {fed.line.source}{calls}"
        found.append(
            Evidence(what=f"line {fed.line.line}", text=text.strip(": "), value=fed.line.share)
        )
    return found


def function_name(line: PythonLine) -> str:
    return function_label(line.function, line.file)


def _costliest(case: Case, workers: int | None) -> tuple[PythonLine | None, float]:
    """The user's function that takes most of a batch's time, by its costliest line."""
    # Where the main process's own loader is not the one that starves, its lines are not the cause.
    lines = [line for line in batch_lines(case) if workers or line.process == "main"]
    shares: dict[tuple[str, str], float] = {}
    for line in lines:
        key = (line.file, line.function)
        shares[key] = shares.get(key, 0.0) + line.share
    if not shares:
        return None, 0.0
    most = max(shares, key=lambda key: shares[key])
    return next(line for line in lines if (line.file, line.function) == most), shares[most]


def _traced_place(case: Case, loader: LoaderSeen | None, workers: int | None) -> Place | None:
    """What ran in the program's own process. Of a function made for batches only its file and
    line are known as text."""
    if case.input.kind in ("single", "by hand") and case.input.sites:
        return case.input.sites[0].place
    file, _, line = case.fed.place.rpartition(":")
    if loader is None and case.fed.function and line.isdecimal():
        return Place(file=file, line=int(line), function=case.fed.function)
    causes = case.idle_causes("input")
    return next((place for cause in causes for place in cause.places), None)


def _batch_ms(case: Case, workers: int | None, wait_ms: float) -> float | None:
    """Without workers the time in the loader; with them all their time but the idle one's."""
    if workers == 0:
        return max(
            wait_ms, _host_input_ms(case), case.input.ns / 1e6 if case.kind == "trace" else 0
        )
    if not workers:  # made by hand: the wait is all that is known
        return wait_ms if case.fed.share and feeder(case) is None else None
    busy = _busy(case)
    return workers * busy * case.step_ms if busy is not None else None


def _busy(case: Case) -> float | None:
    """Of the workers' time, making batches; None: not known."""
    view = case.python
    if view is None or view.worker_samples < FEWEST:
        return None
    return 1 - view.worker_idle_samples / view.worker_samples


def _host_input_ms(case: Case) -> float:
    """On the host's clock: a device may hide a part of the loader's time behind its work."""
    light = [s for s in case.steps if s.window == "light" and s.detailed]
    return sum(s.host.get("input", 0) for s in light) / 1e6 / len(light) if light else 0.0


def _needed(batch_ms: float | None, rest_ms: float) -> int | None:
    if batch_ms is None or rest_ms <= 0:
        return None
    return min(max(math.ceil(SPARE * batch_ms / rest_ms), 1), MOST_WORKERS)


def _workers_by_name(case: Case) -> int | None:
    """Of a trace alone: 0 where the loader's iterator says that it has none."""
    return 0 if case.input.kind == "single" else None


def _by_hand(case: Case) -> float:
    """Of a trace alone: a function that makes batches by its name, as far as it holds the step up.
    A run's shares have it already."""
    if case.kind != "trace" or not case.fed.share:
        return 0.0
    return min(case.fed.share, case.share_of("overhead"))


_NAMES = ("set_num_threads", "setNumThreads", "threadpool_limits", "set_num_interop_threads")


class ThreadsSet(Struct, frozen=True):
    place: Place
    change: str
    number: int
    """1 where the source does not tell."""
    in_workers: bool


def threads_set(case: Case) -> ThreadsSet | None:
    """In the function a loader's `worker_init_fn` names, else in any but the program's main part;
    None where no source shows it."""
    call = made_at(case, feeder(case))
    init = _init_function(call.text) if call is not None else ""
    found: list[tuple[bool, SourceFile, SourceCall]] = []
    for file in dict.fromkeys(program_files(case)):
        source = case.sources.get(file)
        if source is not None:
            calls = all_calls(source, _NAMES)
            found += [(_function(source, one.line) == init, source, one) for one in calls]
    if not found:
        return None
    inside, source, one = max(found, key=lambda each: (each[0], -each[2].line))
    if not inside and init:
        return None
    name = one.text.partition("(")[0]
    function = _function(source, one.line)
    place = Place(file=source.file, line=one.line, function=function)
    return ThreadsSet(place, f"{name}(1)", _number(one.text, case), bool(init) and inside)


def _number(text: str, case: Case) -> int:
    """A number as written, or all processors."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return 1
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(given, ast.Constant) and isinstance(given.value, int):
        return max(given.value, 1)
    every = "cpu_count" in text or "sched_getaffinity" in text
    return max(case.run.environment.cores, 1) if every and case.run is not None else 1


def _function(source: SourceFile | None, line: int) -> str:
    scope = source.scope(line) if source is not None else None
    return scope.name if isinstance(scope, ast.FunctionDef) else "<module>"


def _init_function(text: str) -> str:
    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return ""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "worker_init_fn":
            return ast.unparse(node.value).rpartition(".")[2]
    return ""


Speaker = Literal["loader-starves", "few-workers", "many-workers"]

FREE = 0.75
"""Processors not in use that one more worker can have; a worker needs one, less what it waits."""
WAITS = 0.5
"""Of a busy worker's time on a processor: below it, it waits for something else, and more of them
wait beside each other on the same processors."""
CROWD = 1.5
"""Threads that want to run for each processor, from which they are in each other's way."""
FULL = 0.9
"""Of the processors in use: none is idle."""
BESIDES = 4
"""Threads of a worker without a pool: its own, one that feeds its queue, one that watches its
parent, a sampler of ours. Seen with torch 2.13: 3 or 4."""
_WAITING = re.compile(
    r"sleep|read|recv|request|urlopen|download|get_object|open\(|fetch|connect|select|poll|wait",
    re.IGNORECASE,
)
EXPLAINED = 0.5
"""Of the making of a batch: from here on the rule that names it comes first."""


def speaker(case: Case, fed: Feeding) -> Speaker:
    if not fed.workers or fed.plain:
        return "loader-starves"
    if worker_threads(case) > 1 and crowded(case, fed.workers):
        return "many-workers"
    enough = fed.needed is None or fed.needed > fed.workers
    return "few-workers" if enough and room(case, fed) else "loader-starves"


def explained(case: Case, fed: Feeding) -> bool:
    """Whether small-files or repeated-decoding names the reason."""
    return max(reading_share(case), repeated_share(case)) >= EXPLAINED


def room(case: Case, fed: Feeding) -> bool:
    """Whether one more worker would find a processor, or needs none."""
    on_processor = worker_load(case, fed)
    if waits(case, fed):
        return True
    idle = idle_cores(case)
    return idle is not None and idle >= FREE * (on_processor if on_processor is not None else 1.0)


def waits(case: Case, fed: Feeding) -> bool:
    """Whether workers wait for something that is no processor. Where those are all in use, only
    what the costliest line calls can tell."""
    load, used = worker_load(case, fed), in_use(case)
    if load is None or load >= WAITS:
        return False
    if used is not None and used < FULL * cores_of(case) and not case.telemetered.crowded:
        return True
    line = fed.line
    return line is not None and bool(_WAITING.search(f"{line.source} {line.calls}"))


def crowded(case: Case, workers: int | None) -> bool:
    """Whether workers, or their threads, take each other's processors."""
    cores = cores_of(case)
    if not cores or not workers:
        return False
    full = in_use(case)
    return full is not None and full >= FULL * cores and running(case, workers) > CROWD * cores


def running(case: Case, workers: int) -> float:
    """Threads that want a processor: those of a worker's pool count, its feeder threads do not."""
    return workers * max(worker_threads(case), 1)


def worker_threads(case: Case) -> int:
    """Of one worker, those of its pools; 1: it has none. As counted by the system, or as its
    `worker_init_fn` sets them."""
    seen = [p.threads for look in case.telemetry for p in look.processes if p.worker and p.threads]
    usual = sorted(seen)[len(seen) // 2] if seen else 0
    counted = usual - BESIDES if usual > BESIDES + 1 else 1
    said = threads_set(case)
    return max(counted, said.number if said is not None and said.in_workers else 1)


def worker_load(case: Case, fed: Feeding) -> float | None:
    """Processor time of a worker while it makes a batch, of that time; None: not known."""
    used = case.telemetered.worker_cores
    view = case.python
    if used is None or not fed.workers:
        return None
    busy = 1.0
    if view is not None and view.worker_samples:
        busy = max(1 - view.worker_idle_samples / view.worker_samples, 0.05)
    return used / (fed.workers * busy)


def cores_of(case: Case) -> int:
    return case.run.environment.cores if case.run is not None else 0


def in_use(case: Case) -> float | None:
    """Processors in use by the program, its workers and others."""
    seen = case.telemetered
    if seen.program_cores is None and seen.worker_cores is None:
        return None
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0) + (seen.other_cores or 0.0)


def idle_cores(case: Case) -> float | None:
    used, cores = in_use(case), cores_of(case)
    return max(cores - used, 0.0) if used is not None and cores else None


DOMINANT = 0.4
"""Of the step: below it single samples are the ordinary price of a DataLoader, which programs
that are well tuned pay too (10 to 32 % seen with small models on a CPU)."""
SAMPLE_MS = 0.05
"""Taking a sample and stacking it: 5 to 33 µs seen for rows of a tensor or of a mapped file."""
OWN_MS = 0.03
"""The part of it in the program's own lines: a `__getitem__` that indexes an array and makes a
tensor of it takes 11 µs."""
_TENSORS = "TensorDataset"


def is_plain(case: Case, loader: LoaderSeen | None, sample_ms: float | None) -> bool:
    """Whether no line of the program's own takes the time of a batch."""
    if loader is None:
        return False
    own = sum(line.share for line in batch_lines(case))
    if loader.dataset == _TENSORS and not own:
        return True
    known = bool(own) or case.input.kind == "single"  # else nothing saw which lines are at work
    if sample_ms is None or sample_ms > SAMPLE_MS or not known:
        return False
    # A GPU that waits for own lines, however short, is helped by workers.
    return own * sample_ms <= OWN_MS and not (own and case.on_gpu)


def by_whole_batches(call: LoaderCall | None, loader: LoaderSeen | None) -> str:
    """The loader, asking its dataset for a list of samples: tensors and arrays take that."""
    try:
        made = ast.parse(call.text).body[0] if call is not None else None
    except (SyntaxError, IndexError):
        made = None
    calls = [n for n in ast.walk(made) if isinstance(n, ast.Call)] if made is not None else []
    first = next((n for n in calls if "DataLoader" in ast.unparse(n.func)), None)
    data = ast.unparse(first.args[0]) if first is not None and first.args else "dataset"
    options = {k.arg: ast.unparse(k.value) for k in first.keywords} if first is not None else {}
    size = options.get("batch_size") or str((loader and loader.batch_size) or "batch_size")
    random = options.get("shuffle", "False") != "False"
    order = f"{'Random' if random else 'Sequential'}Sampler({data})"
    return (
        "# a list of indices at once, in the place of one sample after the other\n"
        f"batches = BatchSampler({order}, {size}, drop_last=False)\n"
        f"loader = DataLoader({data}, sampler=batches, batch_size=None)"
    )


def whole_from(dataset: str) -> str:
    """The same of a dataset that hands out its samples itself, and takes no sampler."""
    return (
        f"# in {dataset}.__iter__: yield whole batches, slices of a tensor\n"
        f"loader = DataLoader({dataset}(…), batch_size=None)"
    )
