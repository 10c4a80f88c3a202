"""Works out how the program is fed: the wait for input, what batches cost, and which rule reports
the wait.

One wait can have several causes. Each rule reports its own:

- `workers-restart` reports the wait at the beginnings of epochs, for workers that are started
  again; the other rules report what remains;
- `loader-starves` reports a loader without workers, or with workers that more of them cannot help;
- `few-workers` reports workers that wait (for storage) or that leave processors idle;
- `many-workers` reports workers that take each other's processors;
- `small-files` and `repeated-decoding` say why a batch takes so long, if the lines tell. Then they
  come first, and the rule above stays, less sure, as the other remedy.
"""

import math
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import cores
from ridgeline.diagnosis.rule import measured
from ridgeline.diagnosis.rules._loaders import (
    MIN_SAMPLES,
    batch_lines,
    loaders_seen,
    made_at,
    program_files,
    reading_share,
    repeated_share,
    restarts,
)
from ridgeline.diagnosis.rules._user_code import place_at
from ridgeline.records.finding import Evidence
from ridgeline.records.run import LoaderSeen, PythonLine, training_loader
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label
from ridgeline.source.calls import SourceCall, all_calls
from ridgeline.source.file import SourceFile
from ridgeline.source.loaders import LoaderCall

MIN_WAIT_SHARE = 0.1
MIN_WAIT_SHARE_GPU = 0.05
"""Share of the step from which a wait for input is reported. On a CPU, stacking 32 small samples
takes 0.3 ms, 6 % of a step of 5 ms, in any program; a GPU's work hides that."""
MIN_BUSY_WORKERS = 0.5
"""Share of the workers' time at work. With less they have batches to spare, and the wait is for a
processor, or for the batch to be handed over (2 ms of 20 ms in a sandbox)."""
WORKER_MARGIN = 1.2
"""Workers that keep up, as a multiple of those that just keep up: batches do not all take the same
time."""
MAX_NEEDED_WORKERS = 64
UNEVEN_WORKERS = 1.2
"""A bound assumes that workers may make batches this many times as fast as they did when measured.
"""
MIN_STEP_MS = 0.01
"""A step is taken to be at least this long: a Python call alone takes some microseconds."""
CROWDED_DOUBT = "other programs took a good part of the processors"


class Feeding(Struct, frozen=True, kw_only=True):
    """A device that waits for its input."""

    share: float
    """Share of the step, without restarts of workers."""
    wait_ms: float
    step_ms: float
    loader: LoaderSeen | None = None
    workers: int | None = None
    """None if the number is not known, or there is no DataLoader."""
    batch_ms: float | None = None
    """One process's time for what a step consumes."""
    samples: float | None = None
    needed: int | None = None
    """Workers that would keep up if each had a processor."""
    line: PythonLine | None = None
    """The costliest line of the user's function that takes most of a batch's time."""
    traced: Place | None = None
    """The costliest function that the trace saw in the loader."""
    plain: bool = False
    """Whether samples cost next to nothing, and taking and stacking them one by one takes the time.
    """

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
    """Return None if the device is fed, or if it is not known."""
    step_ms = case.step_ms
    share = case.share_of("input") or _by_hand(case)
    again = restarts(case)
    share -= min(again.input_share, share) if again is not None else 0.0
    if share < (MIN_WAIT_SHARE_GPU if case.on_gpu else MIN_WAIT_SHARE) or not step_ms:
        return None
    loader = feeder(case)
    # A trace alone has 0 workers if the loader's iterator says so.
    unseen = 0 if case.input.kind == "single" else None
    workers = loader.workers if loader is not None else unseen
    if workers and (_busy(case) or 1.0) < MIN_BUSY_WORKERS:
        return None
    samples = case.throughput.samples_per_step or None
    samples = samples / case.ranks if samples else None
    batch_ms = _batch_ms(case, workers, share * step_ms)
    plain = is_plain(case, loader, batch_ms / samples if batch_ms and samples else None)
    if plain and share < MIN_PLAIN_SHARE:
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
        line=_costliest(case, workers),
        traced=_traced_place(case, loader),
        plain=plain,
    )


def bound_with_workers(fed: Feeding, workers: int) -> float | None:
    """Return the most that this number of workers can gain, as a factor. The step is never shorter
    than its work beside the input, nor than the time in which the workers together make a batch.
    Return None if the cost of a batch is not known: the bound then follows from the wait alone."""
    if fed.batch_ms is None or not workers:
        return None
    made_ms = fed.batch_ms / (workers * UNEVEN_WORKERS)
    rest_ms = fed.step_ms - fed.wait_ms
    return max(fed.step_ms / max(rest_ms, made_ms, MIN_STEP_MS), 1.0)


def feeder(case: Case) -> LoaderSeen | None:
    """Return the loader that fed the timed steps, or None if no loader was seen."""
    loaders = [loader for loader in loaders_seen(case) if loader.batches]
    return training_loader(loaders) if loaders else None


def who(case: Case) -> str:
    if case.on_gpu:
        return "the GPU"
    return "training" if case.kind == "trace" or _trains(case) else "the program"


def _trains(case: Case) -> bool:
    capture = case.capture
    stepped = capture is not None and capture.stepping in ("optimizer", "backward")
    optimized = capture is not None and bool(capture.optimizers)
    return stepped or optimized or any(s.backwards or s.optimizer_steps for s in case.steps)


def wait_evidence(fed: Feeding) -> Evidence:
    text = f"{units.seconds(fed.wait_ms / 1e3)}, {units.percent(fed.share)} of the step"
    return measured("input wait", text, fed.share)


def cost_evidence(fed: Feeding) -> list[Evidence]:
    """Return what a batch costs, and what its costliest line does."""
    facts = []
    if fed.batch_ms is not None:
        each = f", {units.seconds(fed.sample_ms / 1e3)} a sample" if fed.sample_ms else ""
        text = f"{units.seconds(fed.batch_ms / 1e3)} of one process a step{each}"
        facts.append(measured("making a batch", text, fed.batch_ms))
    if fed.line is not None and fed.line.share:
        calls = f" (in {fed.line.calls})" if fed.line.calls else ""
        text = f"{units.percent(fed.line.share)} of that time: {fed.line.source}{calls}"
        facts.append(measured(f"line {fed.line.line}", text.strip(": "), fed.line.share))
    return facts


def function_name(line: PythonLine) -> str:
    return function_label(line.function, line.file)


def costliest_line(lines: Sequence[PythonLine]) -> PythonLine | None:
    """Return the costliest line of the function that takes most of the time."""
    shares: dict[tuple[str, str], float] = {}
    for line in lines:
        key = (line.file, line.function)
        shares[key] = shares.get(key, 0.0) + line.share
    most = max(shares, key=lambda key: shares[key], default=None)
    return next((line for line in lines if (line.file, line.function) == most), None)


def _costliest(case: Case, workers: int | None) -> PythonLine | None:
    # If the main process's own loader does not starve, the lines of that process are no cause.
    lines = [line for line in batch_lines(case) if workers or line.process == "main"]
    return costliest_line(lines)


def _traced_place(case: Case, loader: LoaderSeen | None) -> Place | None:
    """Return the costliest function in the program's own process that makes batches. Of a function
    made for batches only file and line are known as text."""
    if case.input.kind in ("single", "by hand") and case.input.sites:
        return case.input.sites[0].place
    by_hand = place_at(case.fed.place)
    if loader is None and case.fed.function and by_hand is not None:
        return replace(by_hand, function=case.fed.function)
    causes = case.idle_causes("input")
    return next((place for cause in causes for place in cause.places), None)


def _batch_ms(case: Case, workers: int | None, wait_ms: float) -> float | None:
    """Return the time in the loader; with workers, all their time but the idle one."""
    if workers == 0:
        return max(
            wait_ms, _host_input_ms(case), case.input.ns / 1e6 if case.kind == "trace" else 0
        )
    if not workers:  # for batches made by hand only the wait is known
        return wait_ms if case.fed.share and feeder(case) is None else None
    busy = _busy(case)
    return workers * busy * case.step_ms if busy is not None else None


def _busy(case: Case) -> float | None:
    """Return the share of the workers' time in which they make batches; None if it is not known."""
    view = case.python
    if view is None or view.worker_samples < MIN_SAMPLES:
        return None
    return 1 - view.worker_idle_samples / view.worker_samples


def _host_input_ms(case: Case) -> float:
    """Return the loader's time on the host's clock. A device may hide a part of it."""
    light = [s for s in case.steps if s.window == "light" and s.detailed]
    return sum(s.host.get("input", 0) for s in light) / 1e6 / len(light) if light else 0.0


def _needed(batch_ms: float | None, rest_ms: float) -> int | None:
    if batch_ms is None or rest_ms <= 0:
        return None
    return min(max(math.ceil(WORKER_MARGIN * batch_ms / rest_ms), 1), MAX_NEEDED_WORKERS)


def _by_hand(case: Case) -> float:
    """Return the share of the step for which a function that makes batches, by its name, holds a
    trace up. A run's shares have it already."""
    if case.kind != "trace" or not case.fed.share:
        return 0.0
    return min(case.fed.share, case.share_of("overhead"))


_THREAD_SETTERS = (
    "set_num_threads", "setNumThreads", "threadpool_limits", "set_num_interop_threads",
)  # fmt: skip


class ThreadsSet(Struct, frozen=True):
    place: Place
    change: str
    number: int
    """1 if the source does not tell."""
    in_workers: bool


def threads_set(case: Case) -> ThreadsSet | None:
    """Return the call that sets the threads of workers: in the function that the loader's
    `worker_init_fn` names, else in any function. Return None if no source shows one."""
    call = made_at(case, feeder(case))
    init = call.option("worker_init_fn").rpartition(".")[2] if call is not None else ""
    found: list[tuple[bool, int, SourceFile, SourceCall]] = []
    for file in dict.fromkeys(program_files(case)):
        source = case.sources.get(file)
        if source is not None:
            for setter in all_calls(source, _THREAD_SETTERS):
                function = source.function_name(setter.line) or "<module>"
                found.append((function == init, -setter.line, source, setter))
    if not found:
        return None
    inside, _, source, setter = max(found, key=lambda each: each[:2])
    if not inside and init:
        return None
    function = source.function_name(setter.line) or "<module>"
    place = Place(file=source.file, line=setter.line, function=function)
    return ThreadsSet(place, f"{setter.called}(1)", _threads(case, setter), bool(init) and inside)


def _threads(case: Case, setter: SourceCall) -> int:
    """Return the number as written, or all processors if the call asks for them."""
    if setter.first.isdigit():
        return max(int(setter.first), 1)
    every = setter.argument_names & {"cpu_count", "sched_getaffinity"}
    return max(cores(case), 1) if every else 1


Speaker = Literal["loader-starves", "few-workers", "many-workers"]

MIN_FREE_CORES = 0.75
"""Idle processors that one more worker needs, times the share of its time on a processor."""
MAX_WAITING_LOAD = 0.5
"""Share of a busy worker's time on a processor. Below it, a worker waits for something else, and
more of them wait beside each other on the same processors."""
MIN_CROWD = 1.5
"""Threads that want to run for each processor, from which they are in each other's way."""
FULL_CORES_SHARE = 0.9
"""Share of the processors in use from which none is idle."""
WORKER_THREADS = 4
"""Threads of a worker without a pool: its own, one that feeds its queue, one that watches its
parent, and our sampler. With torch 2.13 there were 3 or 4."""
_WAITING = re.compile(
    r"sleep|read|recv|request|urlopen|download|get_object|open\(|fetch|connect|select|poll|wait",
    re.IGNORECASE,
)
MIN_EXPLAINED_SHARE = 0.5
"""Share of the making of a batch from which the rule that explains it comes first."""


def speaker(case: Case, fed: Feeding) -> Speaker:
    if not fed.workers or fed.plain:
        return "loader-starves"
    if worker_threads(case) > 1 and crowded(case, fed.workers):
        return "many-workers"
    enough = fed.needed is None or fed.needed > fed.workers
    return "few-workers" if enough and room(case, fed) else "loader-starves"


def explained(case: Case, fed: Feeding) -> bool:
    """Return whether small-files or repeated-decoding names the reason."""
    return max(reading_share(case), repeated_share(case)) >= MIN_EXPLAINED_SHARE


def room(case: Case, fed: Feeding) -> bool:
    """Return whether one more worker would find a processor, or needs none."""
    if waits(case, fed):
        return True
    load, idle = worker_load(case, fed), idle_cores(case)
    return idle is not None and idle >= MIN_FREE_CORES * (load if load is not None else 1.0)


def waits(case: Case, fed: Feeding) -> bool:
    """Return whether workers wait for something other than a processor. If all processors are in
    use, only what the costliest line calls can tell."""
    load, used = worker_load(case, fed), in_use(case)
    if load is None or load >= MAX_WAITING_LOAD:
        return False
    free = used is not None and used < FULL_CORES_SHARE * cores(case)
    if free and not case.telemetered.crowded:
        return True
    line = fed.line
    return line is not None and bool(_WAITING.search(f"{line.source} {line.calls}"))


def crowded(case: Case, workers: int | None) -> bool:
    """Return whether workers, or their threads, take each other's processors."""
    used = in_use(case)
    if not cores(case) or not workers or used is None:
        return False
    running = workers * max(worker_threads(case), 1)
    return used >= FULL_CORES_SHARE * cores(case) and running > MIN_CROWD * cores(case)


def worker_threads(case: Case) -> int:
    """Return the threads of one worker's pools, 1 if it has none: as counted by the system, or as
    its `worker_init_fn` sets them."""
    seen = [p.threads for look in case.telemetry for p in look.processes if p.worker and p.threads]
    usual = sorted(seen)[len(seen) // 2] if seen else 0
    counted = usual - WORKER_THREADS if usual > WORKER_THREADS + 1 else 1
    written = threads_set(case)
    return max(counted, written.number if written is not None and written.in_workers else 1)


def worker_load(case: Case, fed: Feeding) -> float | None:
    """Return the share of the time in which a worker makes a batch that it is on a processor; None
    if it is not known."""
    used = case.telemetered.worker_cores
    view = case.python
    if used is None or not fed.workers:
        return None
    busy = 1.0
    if view is not None and view.worker_samples:
        busy = max(1 - view.worker_idle_samples / view.worker_samples, 0.05)
    return used / (fed.workers * busy)


def in_use(case: Case) -> float | None:
    """Return the processors that the program, its workers and others use."""
    seen = case.telemetered
    if seen.program_cores is None and seen.worker_cores is None:
        return None
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0) + (seen.other_cores or 0.0)


def idle_cores(case: Case) -> float | None:
    used = in_use(case)
    return max(cores(case) - used, 0.0) if used is not None and cores(case) else None


MIN_PLAIN_SHARE = 0.4
"""Share of the step from which single samples are reported. Below it they are the ordinary price of
a DataLoader, which well-tuned programs pay too (10 to 32 % with small models on a CPU)."""
MAX_PLAIN_SAMPLE_MS = 0.05
"""Taking a sample and stacking it took 5 to 33 µs for rows of a tensor or of a mapped file."""
MAX_PLAIN_OWN_MS = 0.03
"""The part of it in the program's own lines. A `__getitem__` that indexes an array and makes a
tensor of it takes 11 µs."""
_TENSORS = "TensorDataset"


def is_plain(case: Case, loader: LoaderSeen | None, sample_ms: float | None) -> bool:
    """Return whether no line of the program's own takes the time of a batch."""
    if loader is None:
        return False
    own = sum(line.share for line in batch_lines(case))
    if loader.dataset == _TENSORS and not own:
        return True
    # Otherwise nothing saw which lines are at work.
    known = bool(own) or case.input.kind == "single"
    if sample_ms is None or sample_ms > MAX_PLAIN_SAMPLE_MS or not known:
        return False
    # Workers do help a GPU that waits for own lines, however short.
    return own * sample_ms <= MAX_PLAIN_OWN_MS and not (own and case.on_gpu)


def by_whole_batches(call: LoaderCall | None, loader: LoaderSeen | None) -> str:
    """Return a loader that asks its dataset for a list of samples: tensors and arrays take one."""
    data = (call.dataset if call is not None else "") or "dataset"
    written = call.option("batch_size") if call is not None else ""
    size = written or str((loader and loader.batch_size) or "batch_size")
    random = call is not None and call.option("shuffle") not in ("", "False")
    order = f"{'Random' if random else 'Sequential'}Sampler({data})"
    return (
        "# a list of indices at once, in the place of one sample after the other\n"
        f"batches = BatchSampler({order}, {size}, drop_last=False)\n"
        f"loader = DataLoader({data}, sampler=batches, batch_size=None)"
    )


def whole_from(dataset: str) -> str:
    """Return the same for a dataset that hands out its samples itself and takes no sampler."""
    return (
        f"# in {dataset}.__iter__: yield whole batches, slices of a tensor\n"
        f"loader = DataLoader({dataset}(…), batch_size=None)"
    )
