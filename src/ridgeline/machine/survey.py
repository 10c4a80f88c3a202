"""Measures the ceilings of a device, stores them, and joins them with those of the datasheet."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from ridgeline.errors import UsageError
from ridgeline.machine import ceiling_cache, datasheet, identity, microbenchmarks, nvml, processor
from ridgeline.machine.ceiling_cache import Entry, Key, Refusal
from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.identity import resolve_device
from ridgeline.machine.microbenchmarks import Timer, timer_for
from ridgeline.machine.surroundings import DisturbanceWatch, HostTimes, host_times
from ridgeline.records.facts import Reason, because
from ridgeline.records.machine import Ceiling, Device, Disturbance, Quantity

Progress = Callable[[str], None]

_BUDGET_S = {"cpu": 12.0, "cuda": 20.0}
# The time for one dtype when a user is waiting. On a GPU it is enough for a run after a rest.
_QUICK_BUDGET_S = {"cpu": 0.4, "cuda": 2.0}
_TRAFFIC: tuple[Quantity, ...] = ("copy", "triad", "launch")
# The share of the budget for matrix products. Bandwidth and launch cost take a second or two.
_PRODUCT_BUDGET_SHARE = 0.8
# The share of free memory that a measurement may use. A CPU's memory is shared with other programs.
_MEMORY_SHARE = {"cpu": 0.10, "cuda": 0.25}
# The torch operation of a dtype, for the message if it is not available.
_OPERATION = {"float8": "torch._scaled_mm", "int8": "torch._int_mm"}


def measure(
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    on_progress: Progress | None = None,
    budget_s: float | None = None,
) -> Device:
    """Measure ceilings now, store them, and return the device with all its known ceilings.

    If `dtypes` is None, every dtype that the device can compute is measured. `budget_s` limits the
    timing: by default 12 s on a CPU, and 20 s on a GPU, which has to rest between runs. Starting
    CUDA and making the data take 2 to 5 s more.
    """
    resolved = resolve_device(device)
    budget_s = budget_s or _BUDGET_S[resolved.type]
    wanted = _checked(DTYPES if dtypes is None else dtypes)
    return _with_entry(resolved, _survey(resolved, wanted, _TRAFFIC, budget_s, on_progress))


def cached(device: str) -> Device | None:
    """Return the device with the stored ceilings; None if there are none."""
    resolved = resolve_device(device)
    entry = ceiling_cache.load(_key(resolved))
    return _with_entry(resolved, entry) if entry is not None and entry.ceilings else None


def ceilings(device: str, dtypes: Sequence[str], on_progress: Progress | None = None) -> Device:
    """Return the device with ceilings for `dtypes`, copy and launch. Stored ceilings are used;
    missing ones are measured quickly (in less than about 3 s on a CPU).

    Ceilings that were measured while other programs used the machine, or that a program has since
    exceeded, are measured again once the machine is quiet.
    """
    resolved = resolve_device(device)
    wanted = _checked(dtypes)
    entry = ceiling_cache.load(_key(resolved)) or Entry(key=_key(resolved))
    have = {(c.quantity, c.dtype) for c in entry.ceilings}
    if entry.doubtful and _is_quiet(resolved):
        have -= entry.doubtful
    refused = {r.dtype for r in entry.refusals}
    missing = tuple(d for d in wanted if d not in refused and ("matmul", d) not in have)
    traffic = tuple(q for q in _TRAFFIC if q != "triad" and (q, "") not in have)
    if missing or traffic:
        each = _QUICK_BUDGET_S[resolved.type]
        budget_s = each * len(missing) / _PRODUCT_BUDGET_SHARE if missing else 0.5
        budget_s = min(max(budget_s, 0.8), 6 * each)
        entry = _survey(resolved, missing, traffic, budget_s, on_progress)
    return _with_entry(resolved, entry)


def stored_conditions(device: str) -> tuple[Reason, ...]:
    """Return what disturbed the measurement of the stored ceilings."""
    entry = ceiling_cache.load(_key(resolve_device(device)))
    return entry.conditions if entry is not None else ()


def missing_dtypes(device: str) -> tuple[str, ...]:
    """Return the dtypes without a ceiling on this device, each with the reason."""
    resolved = resolve_device(device)
    entry = ceiling_cache.load(_key(resolved))
    refusals = {r.dtype: r.reason for r in entry.refusals} if entry is not None else {}
    for dtype in DTYPES:
        support = identity.support(resolved, dtype)
        if not support.possible:
            refusals[dtype] = support.why
    return tuple(f"{dtype}: {refusals[dtype]}" for dtype in DTYPES if dtype in refusals)


def _survey(
    device: torch.device,
    dtypes: Sequence[str],
    traffic: Sequence[Quantity],
    budget_s: float,
    on_progress: Progress | None,
) -> Entry:
    report = on_progress or (lambda _: None)
    watch = DisturbanceWatch(device)
    measured: list[Ceiling] = []
    refusals: list[Refusal] = []
    possible = sum(identity.support(device, dtype).possible for dtype in dtypes)
    products_s = budget_s * (_PRODUCT_BUDGET_SHARE if traffic else 1.0) / max(possible, 1)
    traffic_s = budget_s * (1 - _PRODUCT_BUDGET_SHARE if possible else 1.0) / max(len(traffic), 1)
    conditions: tuple[Reason, ...] = ()
    disturbed: list[tuple[Quantity, str]] = []

    def keep(ceiling: Ceiling, began: HostTimes) -> None:
        measured.append(ceiling)
        if watch.busy_since(began):
            disturbed.append((ceiling.quantity, ceiling.dtype))

    with _timer(device, watch) as timer:
        for quantity in traffic:
            report(f"{quantity} {'latency' if quantity == 'launch' else 'bandwidth'}")
            began = host_times()
            keep(_traffic(device, quantity, timer, traffic_s), began)
        for dtype in dtypes:
            began = host_times()
            try:
                outcome = _product(device, dtype, timer, products_s, report)
            except torch.OutOfMemoryError:
                # Too little free memory is no property of the device, so it is not stored.
                conditions += (because(Disturbance.NO_ROOM, dtype=dtype),)
                continue
            if isinstance(outcome, Ceiling):
                keep(outcome, began)
            else:
                refusals.append(outcome)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if watch.others():
        disturbed = [(c.quantity, c.dtype) for c in measured]
    return ceiling_cache.store(
        Entry(
            key=_key(device),
            ceilings=tuple(measured),
            refusals=tuple(refusals),
            conditions=watch.disturbances() + conditions,
            disturbed=tuple(disturbed),
        )
    )


def _is_quiet(device: torch.device) -> bool:
    watch = DisturbanceWatch(device)
    time.sleep(0.2)
    return not watch.others()


def _product(
    device: torch.device, dtype: str, timer: Timer, budget_s: float, report: Progress
) -> Ceiling | Refusal:
    support = identity.support(device, dtype)
    if not support.possible:
        return Refusal(dtype, support.why)
    limits = microbenchmarks.Limits(
        budget_s=budget_s,
        memory_bytes=_allowance(device),
        cache_bytes=identity.describe(device).cache_bytes,
    )
    try:
        best = microbenchmarks.fastest(device, dtype, timer, limits, report)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        operation = _OPERATION.get(dtype, "torch.mm")
        kind = "GPU" if device.type == "cuda" else "CPU"
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else "no reason"
        return Refusal(dtype, f"{operation} is not available on this {kind} ({reason})")
    return Ceiling(
        quantity="matmul",
        value=best.flop_per_s,
        unit="FLOP/s",
        source="measured",
        dtype=dtype,
        native=support.native,
        note=_product_note(best),
    )


def _product_note(best: microbenchmarks.BestProduct) -> str:
    note = f"{best.size} × {best.size} product"
    sustained = best.sustained_flop_per_s
    if sustained is not None and sustained < 0.97 * best.flop_per_s:
        note += f"; {sustained / 1e12:.3g} TFLOP/s sustained"
    return note


def _traffic(device: torch.device, quantity: Quantity, timer: Timer, budget_s: float) -> Ceiling:
    if quantity == "launch":
        seconds = microbenchmarks.launch_seconds(device, budget_s)
        return Ceiling(quantity="launch", value=seconds, unit="s", source="measured")
    cache_bytes = identity.describe(device).cache_bytes
    sizes = microbenchmarks.buffer_sizes(device.type, cache_bytes, _allowance(device))
    rate = microbenchmarks.copy_rate if quantity == "copy" else microbenchmarks.triad_rate
    value = rate(device, timer, sizes, budget_s)
    in_cache = max(sizes) * 2 < cache_bytes
    note = "little free memory: buffers fit the cache, so this is the cache's" if in_cache else ""
    return Ceiling(
        quantity=quantity,
        value=value,
        unit="B/s",
        source="measured",
        note=note,
    )


@contextmanager
def _timer(device: torch.device, watch: DisturbanceWatch) -> Iterator[Timer]:
    """Yield a timer for the device. On a GPU, it also lets `watch` sample the clocks while the GPU
    works, at most ten times a second."""
    if device.type == "cpu":
        yield timer_for(device)
        return
    with nvml.session() as library:
        handle = nvml.find(library, identity.address(device)) if library is not None else None
        last = 0.0

        def look() -> None:
            nonlocal last
            if handle is not None and time.perf_counter() - last > 0.1:
                last = time.perf_counter()
                watch.look(library, handle)

        yield timer_for(device, look)


def _allowance(device: torch.device) -> int:
    """Return the bytes of memory that a measurement may use now."""
    share = _MEMORY_SHARE[device.type]
    if device.type == "cpu":
        return int(share * processor.free_bytes())
    free, _ = torch.cuda.mem_get_info(device)
    spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(share * (free + spare))


def _with_entry(device: torch.device, entry: Entry) -> Device:
    described = identity.describe(device)
    supports = {dtype: identity.support(device, dtype) for dtype in DTYPES}
    known = (*datasheet.with_ratios(entry.marked(), supports), *described.ceilings)
    return msgspec.structs.replace(described, ceilings=tuple(sorted(known, key=_order)))


def _order(ceiling: Ceiling) -> tuple[int, int, bool]:
    quantities = ("matmul", *_TRAFFIC)
    place = DTYPES.index(ceiling.dtype) if ceiling.dtype in DTYPES else -1
    return quantities.index(ceiling.quantity), place, ceiling.source != "measured"


def _checked(dtypes: Sequence[str]) -> tuple[str, ...]:
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"'{dtype}' has no ceiling", hint=f"known: {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(dtypes))


def _key(device: torch.device) -> Key:
    described = identity.describe(device)
    gpu = device.type == "cuda"
    return Key(
        kind=described.kind,
        name=described.name,
        driver=described.driver,
        torch=str(torch.__version__),
        architecture=described.architecture,
        uuid=identity.address(device).uuid if gpu else "",
        cores=described.cores,
        threads=0 if gpu else torch.get_num_threads(),
    )
