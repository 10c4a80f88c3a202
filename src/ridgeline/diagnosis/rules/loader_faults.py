"""The device waits for the loader: too few or too many workers, and what they do again."""

from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import below_ceilings, cores
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._input_wait import (
    CROWDED_DOUBT,
    Feeding,
    bound_with_workers,
    by_whole_batches,
    cost_evidence,
    costliest_line,
    crowded,
    explained,
    feeding,
    function_name,
    idle_cores,
    in_use,
    speaker,
    threads_set,
    wait_evidence,
    waits,
    who,
    whole_from,
    worker_load,
    worker_threads,
)
from ridgeline.diagnosis.rules._loaders import (
    decodes_too,
    epochs,
    handing_out,
    loader_with,
    made_anew,
    made_at,
    once,
    reading_lines,
    reading_share,
    repeated_lines,
    repeated_share,
    restarts,
    shared_out,
    taken_at,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label
from ridgeline.source.datasets import decoded_once
from ridgeline.source.loaders import LoaderCall

DEFAULT_WORKERS, MAX_WORKERS = 4, 16
"""Workers advised if nothing tells how many keep up, and at most if the cores are not known."""

LOADER_STARVES = Rule(id="loader-starves", family="input", budget="input")


def loader_starves(case: Case) -> Iterator[Finding]:
    """Batches take longer to make than the device takes to use them."""
    fed = feeding(case)
    if fed is None or speaker(case, fed) != LOADER_STARVES.id:
        return
    call = made_at(case, fed.loader)
    place = fed.place or (call.place if call is not None else taken_at(fed.loader))
    adds_workers = not fed.workers and not fed.plain
    change, change_at = _change(case, fed, place, call)
    against = ""
    if adds_workers and not _by_hand(case):
        change, against = shared_out(case, fed.loader, change)
    yield make_finding(
        LOADER_STARVES,
        claim=_claim(case, fed),
        share=fed.share,
        # If the advice is not to add workers, the whole wait may go.
        bound=bound_with_workers(fed, _enough(case, fed)) if adds_workers else None,
        evidence=[wait_evidence(fed), *cost_evidence(fed), *_workers(case, fed)],
        place=place,
        fix="loader-workers" if adds_workers else "",
        change=change,
        change_at=change_at,
        confidence=_confidence(case, fed),
        doubt="; ".join(filter(None, (against, _doubt(case, fed)))),
    )


def _change(
    case: Case, fed: Feeding, place: Place | None, call: LoaderCall | None
) -> tuple[str, Place | None]:
    """Return the advice as code, and the line that it replaces unless the code names it."""
    options = _options(case, fed)
    given = {name: str(value) for name, value in options.items()}
    if fed.plain and call is not None and call.trainers:
        return call.with_options(**given), call.place
    if fed.plain:
        data = handing_out(case, fed.loader)
        whole = by_whole_batches(call, fed.loader) if data is None else whole_from(data.name)
        return whole, call.place if call is not None else None
    if fed.workers:
        named = f"\n{fed.line.source}" if fed.line is not None and fed.line.source else ""
        return f"# every processor is at work: make this line cheaper, or do it once{named}", None
    if _by_hand(case):
        generic = loader_with(case, place, None, **options)
        return f"# in a Dataset's __getitem__, with workers beside the training\n{generic}", None
    anew = call is not None and not call.trainers and made_anew(case, fed.loader)
    if call is not None and anew and (rewritten := call.with_options(**given)):
        return once(rewritten), call.place
    return loader_with(case, place, call, **options), None


def _claim(case: Case, fed: Feeding) -> str:
    line, place = fed.line, fed.place
    if line is not None:
        makes = function_name(line)
    elif fed.loader is None and case.fed.function:
        makes = f"{case.fed.function}()"
    elif place is not None and place is fed.traced and case.input.sites:
        makes = function_label(place.function, place.file)
    else:
        makes = "its batches"
    cost = ""
    if fed.sample_ms:
        cost = f"{units.seconds(fed.sample_ms / 1e3)} a sample"
    elif fed.batch_ms:
        cost = f"{units.seconds(fed.batch_ms / 1e3)} a batch"
    workers = units.plural(fed.workers, "worker") if fed.workers else "no workers"
    how = workers if fed.workers is not None else ""
    if _by_hand(case):
        how = "made by hand, in the program's own process"
    facts = ", ".join(part for part in (cost, how) if part)
    after = f": {facts}" if facts else ""
    return f"{who(case)} waits {units.percent(fed.share)} of each step for {makes}{after}"


def _workers(case: Case, fed: Feeding) -> list[Evidence]:
    if fed.needed is None or not cores(case) or fed.plain:
        return []
    text = f"{fed.needed} would keep up, if each had a processor; there are {cores(case)}"
    return [derived("workers", text, fed.needed)]


def _options(case: Case, fed: Feeding) -> dict[str, int | str]:
    options: dict[str, int | str] = {"num_workers": _enough(case, fed), "persistent_workers": True}
    return {**options, "pin_memory": True} if case.on_gpu else options


def _enough(case: Case, fed: Feeding) -> int:
    return min(fed.needed or DEFAULT_WORKERS, cores(case) or MAX_WORKERS)


def _by_hand(case: Case) -> bool:
    """Return whether there is no DataLoader and a function is taken for the input by its name."""
    loaders = case.capture.loaders if case.capture is not None else ()
    seen = any(loader.batches for loader in loaders)
    return not seen and case.input.kind in ("", "by hand") and bool(case.fed.share)


def _confidence(case: Case, fed: Feeding) -> Confidence:
    if explained(case, fed) or _by_hand(case) or fed.plain:
        return "medium"
    if fed.workers and case.telemetered.crowded:  # workers may wait for others' processors
        return "low"
    return "high" if case.kind == "run" and fed.line is not None else "medium"


def _doubt(case: Case, fed: Feeding) -> str:
    if _by_hand(case):
        return f"{case.fed.function}() is taken for the input by its name"
    return CROWDED_DOUBT if case.telemetered.crowded else ""


FEW_WORKERS = Rule(id="few-workers", family="input", budget="input", needs=("capture", "timed"))

MAX_WAITING_WORKERS_PER_CORE = 4
"""Workers advised for each processor if they mostly wait for storage or the network. More would
rarely help in practice: each is a process with its own interpreter, its own copy of the dataset and
two batches in memory, and starting it takes processor time. A dataset that sleeps on a machine with
two cores was once advised to use 31."""


def few_workers(case: Case) -> Iterator[Finding]:
    """Workers cannot keep up, and processors are idle."""
    fed = feeding(case)
    if fed is None or not fed.workers or speaker(case, fed) != FEW_WORKERS.id:
        return
    advised = _advised_workers(case, fed)
    call = made_at(case, fed.loader)
    place = call.place if call is not None else taken_at(fed.loader)
    change = loader_with(case, place, call, num_workers=advised)
    change, against = shared_out(case, fed.loader, change)
    sure = fed.needed is not None and not explained(case, fed)
    yield make_finding(
        FEW_WORKERS,
        claim=f"{who(case)} waits {units.percent(fed.share)} of each step for "
        f"{units.plural(fed.workers, 'worker')}: {advised} would "
        + ("shorten the wait" if fed.needed and advised < fed.needed else "keep up"),
        share=fed.share,
        bound=bound_with_workers(fed, advised),
        evidence=[
            *[wait_evidence(fed), *cost_evidence(fed), *_processors(case, fed)][:4],
            *_limit(case, fed, advised),
        ],
        place=place,
        fix="loader-workers",
        change=change,
        confidence="high" if sure else "medium",
        doubt=against or (CROWDED_DOUBT if case.telemetered.crowded else ""),
    )


def _advised_workers(case: Case, fed: Feeding) -> int:
    """Return the number of workers to advise: as many as keep up, or twice as many as now if that
    number is not known, but no more than the processors can carry."""
    workers = fed.workers or 0
    wanted = fed.needed or 2 * max(workers, 1)
    if cores(case):
        wanted = min(wanted, cores(case) * _workers_per_core(case, fed))
    return max(wanted, workers + 1)


def _workers_per_core(case: Case, fed: Feeding) -> int:
    return MAX_WAITING_WORKERS_PER_CORE if waits(case, fed) else 1


def _limit(case: Case, fed: Feeding, advised: int) -> list[Evidence]:
    """Return why fewer workers are advised than would keep up."""
    if fed.needed is None or advised >= fed.needed or not cores(case):
        return []
    each = _workers_per_core(case, fed)
    why = "each needs a processor" if each == 1 else "each is a process with its own memory"
    text = f"{advised}, at most {each} for each of {units.plural(cores(case), 'processor')}; "
    text += f"{fed.needed} would keep up, but {why}"
    return [derived("workers advised", text, advised)]


def _processors(case: Case, fed: Feeding) -> list[Evidence]:
    facts = []
    load, idle = worker_load(case, fed), idle_cores(case)
    if load is not None and waits(case, fed):
        text = f"on a processor {units.percent(load)} of the time they make batches; else waiting"
        facts.append(measured("workers", text, load))
    if idle is not None:
        facts.append(measured("processors", f"{idle:.1f} of {cores(case)} idle", idle))
    return facts


MIN_SHARE = 0.01

WORKERS_RESTART = Rule(
    id="workers-restart", family="input", budget="input", needs=("capture", "timed")
)


def workers_restart(case: Case) -> Iterator[Finding]:
    """Each epoch waits for new workers."""
    again = restarts(case)
    if again is None or again.share < MIN_SHARE:
        return
    loader = again.loader
    call = made_at(case, loader)
    extra, workers = units.seconds(again.extra_ms / 1e3), units.plural(loader.workers, "worker")
    why, made = "persistent_workers is off", f"persistent_workers={loader.persistent_workers}"
    if again.anew:
        why, made = "the DataLoader is made anew", "made once an epoch"
    place = call.place if call is not None else taken_at(loader)
    change = "loader = DataLoader(dataset, batch_size, num_workers=N, persistent_workers=True)"
    if again.anew:
        rewritten = call.with_options(persistent_workers="True") if call is not None else ""
        change = once(rewritten or change)
    elif call is not None:
        change = loader_with(case, place, call, persistent_workers=True)
    longer = f"{extra} more than the median step, in {again.epochs} epochs"
    every = f"begins every {units.significant(again.every, 2)} steps"
    yield make_finding(
        WORKERS_RESTART,
        claim=f"each epoch begins with {extra} of starting {workers}, "
        f"{units.percent(again.share)} of the time: {why}",
        share=again.share,
        evidence=[
            measured("first step of an epoch", longer, again.extra_ms),
            measured("epoch", every, again.every),
            read("loader", f"{workers}, {made}"),
        ],
        place=place,
        fix="persistent-workers",
        change=change,
        confidence="high",
    )


MIN_LACKING_SHARE = 0.1
"""Share of the step that the training thread must lack a processor. A scheduler takes less from a
thread for other reasons."""

MANY_WORKERS = Rule(
    id="many-workers", family="input", budget="input", needs=("capture", "timed", "telemetry")
)


class _Crowd(Struct, frozen=True):
    workers: int
    threads: int
    """Threads of each worker."""
    share: float
    fed: Feeding | None
    """None if training does not wait for its input but lacks the processors that workers take."""


def many_workers(case: Case) -> Iterator[Finding]:
    """Workers, or their threads, take each other's processors."""
    crowd = _crowd(case)
    if crowd is None:
        return
    place, change = _advice(case, crowd)
    each = f" × {crowd.threads} threads" if crowd.threads > 1 else ""
    workers, used = units.plural(crowd.workers, "worker"), in_use(case) or 0.0
    others = case.telemetered.crowded
    at_work = f"{workers} × {crowd.threads} on {cores(case)} processors"
    yield make_finding(
        MANY_WORKERS,
        claim=f"{who(case)} {'waits' if crowd.fed is not None else 'lacks a processor for'} "
        f"{units.percent(crowd.share)} of each step while {workers}{each} share "
        f"{units.plural(cores(case), 'processor')}",
        share=crowd.share,
        bound=_bound(case, crowd) if crowd.threads > 1 else None,
        evidence=[
            *([wait_evidence(crowd.fed)] if crowd.fed is not None else []),
            measured("threads at work", at_work, crowd.workers * crowd.threads),
            measured("processors in use", f"{used:.1f} of {cores(case)}", used),
        ],
        place=place,
        fix="loader-workers" if crowd.threads == 1 else "",
        change=change,
        # Without thread pools fewer workers would help little: their work has to become cheaper.
        confidence="low" if crowd.threads == 1 else "medium" if others else "high",
        doubt=CROWDED_DOUBT if others else "",
    )


def _crowd(case: Case) -> _Crowd | None:
    fed = feeding(case)
    workers = (fed.workers if fed is not None else case.telemetered.workers) or 0
    if not crowded(case, workers):
        return None
    threads = worker_threads(case)
    if fed is not None:
        return _Crowd(workers, threads, fed.share, fed)
    lacking = _lacking(case)
    if threads < 2 or lacking < MIN_LACKING_SHARE:
        return None
    return _Crowd(workers, threads, lacking, None)


def _lacking(case: Case) -> float:
    """Return the share of the step in which the one thread that trains neither ran nor waited for
    input. Several threads also wait for each other, which nothing tells apart: then return 0."""
    had = case.telemetered.program_cores
    one = case.capture is not None and case.capture.flags.threads == 1
    if case.on_gpu or had is None or not one:
        return 0.0
    return 1 - had - case.share_of("input")


def _advice(case: Case, crowd: _Crowd) -> tuple[Place | None, str]:
    threads = threads_set(case) if crowd.threads > 1 else None
    if threads is not None:
        return threads.place, threads.change
    loader = crowd.fed.loader if crowd.fed is not None else None
    call = made_at(case, loader)
    place = call.place if call is not None else taken_at(loader)
    if crowd.threads > 1:
        return place, "torch.set_num_threads(1)  # in worker_init_fn"
    return place, loader_with(case, place, call, num_workers=max(cores(case) - 1, 1))


def _bound(case: Case, crowd: _Crowd) -> float:
    """Return the bound. On a CPU the threads of workers take the training's own processors too: its
    operators may reach the machine's ceilings without them, but no thread waits longer than for its
    turn."""
    own = case.capture.flags.threads if case.capture is not None else 1
    turns = (crowd.workers * crowd.threads + own) / cores(case)
    slowed = 0.0 if case.on_gpu else min(below_ceilings(case) or 0.0, 1 - 1 / turns)
    waited = crowd.fed.share if crowd.fed is not None else 0.0
    return gain_without(max(crowd.share, 1 - (1 - waited) * (1 - slowed)))


MIN_READING_SHARE = 0.25
"""Share of the making of a batch that reading must take. Less is the price of having files at all.
"""
SURE_READING_SHARE = 0.5
STREAMING_BYTES_S = 150e6
"""Bytes a second from storage. From here on files are large, and the storage's rate is the limit.
"""

SMALL_FILES = Rule(id="small-files", family="input", budget="input", needs=("capture",))


def small_files(case: Case) -> Iterator[Finding]:
    """The loader's time goes into opening files."""
    fed = feeding(case)
    share, rate = reading_share(case), _storage_rate(case)
    if fed is None or share < MIN_READING_SHARE or rate >= STREAMING_BYTES_S:
        return
    line = reading_lines(case)[0]
    exposed = fed.share * share
    name = line.function.replace("<locals>.", "")
    by_number = handing_out(case, fed.loader) is None
    sample = "sample = self.samples[index]" if by_number else "for sample in self.samples:"
    workers = worker_load(case, fed) is not None and case.telemetered.workers
    text = f"{units.percent(share)} of the time a batch takes to make"
    yield make_finding(
        SMALL_FILES,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step while {name}() opens and "
        "reads files",
        share=exposed,
        bound=gain_without(fed.share),  # one file needs no putting together either
        evidence=[
            wait_evidence(fed),
            measured("opening and reading files", text, share),
            read(f"line {line.line}", line.source),
            *_storage(case, rate),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change="# once: all samples in one file\nnp.save('samples.npy', np.stack(samples))\n"
        "# in __init__\nself.samples = np.load('samples.npy', mmap_mode='r')\n"
        f"# in {name}, in the place of line {line.line}\n{sample}",
        confidence="high" if share >= SURE_READING_SHARE and not decodes_too(line) else "medium",
        doubt="with storage that answers late, more workers would hide it too" if workers else "",
    )


def _storage_rate(case: Case) -> float:
    """Return the bytes a second that were read from storage over the whole telemetry, without what
    the page cache held."""
    if not case.telemetry:
        return 0.0
    read_bytes: dict[int, list[int]] = {}
    for look_ in case.telemetry:
        for process in look_.processes:
            read_bytes.setdefault(process.pid, []).append(process.read_bytes)
    seconds = (case.telemetry[-1].at_ns - case.telemetry[0].at_ns) / 1e9
    total = sum(max(seen) - seen[0] for seen in read_bytes.values())
    return total / seconds if seconds > 0 else 0.0


def _storage(case: Case, rate: float) -> list[Evidence]:
    if not case.telemetry:
        return []
    text = "nothing came from storage: the files were in memory, and opening them took the time"
    if rate >= 1e3:
        text = f"{units.bandwidth(rate)} from storage"
    return [measured("read", text, rate)]


MIN_REPEATED_SHARE = 0.4
"""Share of the making of a batch that must be the same each time: a cache costs memory, and must
save more than a little."""

REPEATED_DECODING = Rule(id="repeated-decoding", family="input", budget="input", needs=("capture",))


def repeated_decoding(case: Case) -> Iterator[Finding]:
    """The same samples are decoded again in each epoch."""
    fed = feeding(case)
    share = repeated_share(case)
    line = costliest_line(repeated_lines(case))
    if fed is None or line is None or share < MIN_REPEATED_SHARE:
        return
    exposed = fed.share * share
    times = epochs(case)
    name = line.function.replace("<locals>.", "")
    each = f": {units.seconds(share * fed.sample_ms / 1e3)} a sample" if fed.sample_ms else ""
    text = f"{units.percent(share)} of the time a batch takes to make is in functions "
    yield make_finding(
        REPEATED_DECODING,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step for {name}(), which gives "
        f"the same result in every epoch{each}",
        share=exposed,
        bound=gain_without(fed.share),  # decoded samples need no putting together either
        evidence=[
            wait_evidence(fed),
            measured("the same each time", f"{text}that draw no random numbers", share),
            measured("epochs", f"{times} while it was looked at", times),
            read(f"line {line.line}", line.source),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change=decoded_once(case.sources, line, handing_out(case, fed.loader)),
        confidence="high",
        doubt="the decoded samples have to fit into memory, or on a disk",
    )
