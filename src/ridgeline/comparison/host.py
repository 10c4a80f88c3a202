"""A host holds workloads, runs them in its process and answers questions about them.

A comparison talks to hosts and never to workloads. A `Host` runs in the process of the comparison
(the Python API), or in a child at the other end of a pipe, where `RemoteHost` asks it (the
command). Every answer is therefore a record that can travel.
"""

import gc
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from ridgeline.comparison.contenders import BASELINE, Collected, Examined, Opened, Peak, Warmed
from ridgeline.comparison.preparation import BLOCK_NS
from ridgeline.cost.counting.operands import stored_bytes
from ridgeline.equality.calls.calling import seed_all
from ridgeline.equality.calls.collection import (
    BUDGET_S,
    Evidence,
    collect,
    load_evidence,
    save_evidence,
)
from ridgeline.equality.calls.examine import examine
from ridgeline.equality.calls.guards import cached_replay, examine_floor
from ridgeline.equality.calls.held_state import reachable
from ridgeline.errors import RidgelineError, TargetError, UsageError
from ridgeline.harness.usercode.load import explain, module_at, named, split
from ridgeline.harness.usercode.workload import Declared, Workload, declared_in, unpacked
from ridgeline.machine import identity, nvml, processor
from ridgeline.measure.clock import Clock, Reading, clock_for
from ridgeline.measure.peak import measure_peak
from ridgeline.measure.timing import Block, Session
from ridgeline.records.comparison import Guard, Surroundings
from ridgeline.statistics.samples import steady_start

LATE_EVIDENCE_S = 3.0
"""Time limit for checking results again after the rounds."""
MAX_WARM_UP_SAMPLES = 200


EXAMPLE = "ridgeline compare slow.py:step fast.py:step"


def open_target(target: str, seed: int) -> Workload:
    """Import a target and build what it names: `file.py:name` is a function without arguments."""
    where, name = split(target)
    if not name:
        raise UsageError(f"{target!r} names no function", f"write file.py:name, as in `{EXAMPLE}`")
    seed_all(seed)
    module = module_at(where)
    function = named(module, name, where)
    if not callable(function):
        raise TargetError(f"{target} is no function: it is {str(function)[:60]!r}")
    if isinstance(function, torch.nn.Module):
        raise TargetError(
            f"{target} is a module, and what to call it with is not known",
            "name a function that calls it, or one that returns (module, inputs)",
        )
    _refuse_arguments(function, target)
    return build(function, target, declared_in(vars(module), where), seed)


def build(function: Callable[[], Any], name: str, declared: Declared, seed: int) -> Workload:
    """Call a function once. If it returns a callable it was a factory, and what it returned is
    timed; else the function itself is."""
    seed_all(seed)
    start = perf_counter_ns()
    try:
        built = function()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except (Exception, SystemExit) as error:
        raise explain(error, f"calling {name}") from error
    took_ns = perf_counter_ns() - start
    parts = unpacked(built)
    if parts is None:
        return Workload(name=name, function=function, declared=declared, first_call_ns=took_ns)
    timed, args, kwargs = parts
    return Workload(
        name=name,
        function=timed,
        args=args,
        kwargs=kwargs,
        declared=declared,
        rebuild=lambda: build(function, name, declared, seed),
    )


def _refuse_arguments(function: Callable[..., Any], target: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(
            f"{target} takes arguments: {error}",
            "name a function without any; it may return (function, inputs)",
        ) from error
    except ValueError:  # built-in functions without a signature: the call will tell
        return


class Host:
    """Workloads by variant. `ask` calls a method by its name, as `RemoteHost.ask` does."""

    def __init__(self, cold: bool = False) -> None:
        self._cold = cold
        self._workloads: dict[str, Workload] = {}
        self._evidence: dict[str, Evidence] = {}
        self._late: dict[str, Evidence] = {}
        self._sessions: dict[str, Session] = {}
        self._recompiles: dict[str, int] = {}
        self._settings = current_settings()
        self._watch: Any = None
        self._throttle: Throttle | None = None
        self._clock: Clock | None = None
        self._flush: Callable[[], object] | None = None

    def ask(self, method: str, **arguments: Any) -> Any:
        return getattr(self, method)(**arguments)

    @property
    def calls_made(self) -> int:
        """Calls that came back so far: a sign of life while it grows."""
        return sum(w.calls_made for w in self._workloads.values())

    def open(self, variant: str, target: str, seed: int, device: str | None = None) -> Opened:
        """Import and build a target. `device` is the one that was asked for, if any."""
        if device is not None and not device.startswith("cpu") and not torch.cuda.is_available():
            raise UsageError(f"there is no device {device} here", "leave --device out, or use cpu")
        return self.adopt(variant, open_target(target, seed))

    def adopt(self, variant: str, workload: Workload) -> Opened:
        self._workloads[variant] = workload
        declared = workload.declared
        return Opened(
            goal=declared.goal,
            items=declared.items,
            rtol=declared.rtol,
            has_check=declared.check is not None,
            changed=self._changed(),
            device=self.device(),
        )

    def device(self) -> str:
        """Return where the work is: a GPU once anything has used one."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return f"cuda:{torch.cuda.current_device()}"
        return "cpu"

    def collect(
        self, variant: str, seed: int, as_baseline: bool, budget_s: float | None = None
    ) -> Collected:
        """Return what the first calls of a variant return and change, and how long they took.
        `budget_s` limits the calls after those that are compared, if it is less than usual."""
        workload = self._workloads[variant]
        like = None if as_baseline else self._evidence.get("baseline")
        try:
            evidence = collect(
                workload, seed=seed, as_baseline=as_baseline, like=like,
                budget_s=BUDGET_S if budget_s is None else min(budget_s, BUDGET_S),
            )  # fmt: skip
        except (Exception, SystemExit) as error:
            raise explain(error, f"calling {workload.name}") from error
        self._evidence[variant] = evidence
        cold = tuple(evidence.call_ns)
        if workload.first_call_ns is not None:
            cold = (workload.first_call_ns, *cold)
        return Collected(call_ns=cold, changed=self._changed())

    def first_calls(self, variant: str) -> Collected:
        """Make the first call alone, if results are not compared."""
        workload = self._workloads[variant]
        took_ns = workload.first_call_ns
        if took_ns is None:
            clock = self._clock_now()
            took_ns = self._guarded(workload, lambda: clock.time(workload, 1)).wall_ns
        return Collected(call_ns=(took_ns,), changed=self._changed())

    def save(self, variant: str, path: str) -> None:
        save_evidence(self._evidence[variant], Path(path))

    def load(self, variant: str, path: str) -> None:
        """Load the evidence of a variant that lives in another process."""
        self._evidence[variant] = load_evidence(Path(path))

    def examine(self, candidate: str, rtol: float | None, check_in: str) -> Examined:
        """Compare the candidate's results with the baseline's. `check_in` is the target whose file
        has its own check, "" for none."""
        declared = Declared(rtol=rtol)
        check = None
        if check_in:
            own = [w for w in self._workloads.values() if w.name == check_in]
            check = own[0].declared.check if own else module_at(split(check_in)[0]).check
        results, guards = examine(
            self._evidence["baseline"], self._evidence[candidate], declared=declared, check=check
        )
        return Examined(results=results, guards=guards)

    def look_again(self, variant: str, seed: int, budget_s: float | None = None) -> None:
        """Collect evidence again, now that the workload has been called some thousand times: one
        that computed every result at first may have begun to replay them since."""
        workload = self._workloads[variant]
        like = None if variant == BASELINE else self._late.get(BASELINE)
        late_s = LATE_EVIDENCE_S if budget_s is None else min(budget_s, LATE_EVIDENCE_S)
        self._late[variant] = self._guarded(
            workload,
            lambda: collect(
                workload, seed=seed, calls=1, as_baseline=False, like=like, budget_s=late_s
            ),
        )

    def replays(self, candidate: str) -> Guard:
        """Return the guard against cached replay, by the evidence of `look_again`."""
        return cached_replay(self._late[BASELINE], self._late[candidate])

    def floor(self, variant: str, measured_ns: float, may_measure: bool = True) -> Guard:
        """Return whether the variant was faster than its own arithmetic allows. `may_measure` says
        whether there is time to measure a ceiling again."""
        return examine_floor(
            self._evidence[variant], measured_ns, self.device(), may_measure=may_measure
        )

    def warm_up(self, variant: str, limit_s: float) -> Warmed:
        """Size the variant's block and run it until it is steady."""
        workload, clock = self._workloads[variant], self._clock_now()
        before = self._flusher() if self._cold else None
        # One flush takes longer than most calls: cold blocks are as short as the clock allows.
        shortest = clock.shortest_ns if self._cold else BLOCK_NS
        session = Session(clock, workload.timed, shortest_ns=shortest, before=before)
        self._sessions[variant] = session

        def run() -> None:
            session.size_block()
            session.warm_up(1e9 * limit_s, MAX_WARM_UP_SAMPLES, lambda phase, share: None)

        self._guarded(workload, run)
        return _warmed(session, self._evidence.get(variant))

    def resize(self, variant: str, calls: int) -> None:
        """Make a block of the variant this many calls long."""
        self._sessions[variant].calls = calls

    def block(self, variant: str) -> Block:
        """Take one sample."""
        session = self._sessions[variant]
        workload = self._workloads[variant]

        def run() -> Reading:
            if not self._cold and 4 * session.per_call_ns[-1] < BLOCK_NS:
                workload.timed()  # the variant before left its own data in the caches
            session.read()
            return session.readings[-1]

        before = _graphs_compiled()
        reading = self._guarded(workload, run)
        self._recompiles[variant] = self._recompiles.get(variant, 0) + _graphs_compiled() - before
        throttled = self._throttle.look() if self._throttle else ""
        return Block(reading, session.calls, throttled)

    def peak(self, variant: str) -> Peak:
        """Measure the peak memory of one call, including what the workload holds."""
        workload = self._workloads[variant]
        found, method = self._guarded(workload, lambda: peak_of(workload, self.device()))
        return Peak(bytes=found, method=method)

    def recompiles(self, variant: str) -> int:
        """Return how many graphs were compiled while the variant's blocks ran."""
        return self._recompiles.get(variant, 0)

    def begin_rounds(self) -> None:
        """Start to watch the machine's load and the device's throttling."""
        from ridgeline.machine.surroundings import DisturbanceWatch

        device = torch.device(self.device())
        self._watch = DisturbanceWatch(device)
        self._throttle = Throttle(device) if device.type == "cuda" else None

    def end_rounds(self) -> Surroundings:
        return self._watch.surroundings()  # type: ignore[no-any-return]

    def _changed(self) -> tuple[str, ...]:
        return changed_settings(self._settings, current_settings())

    def _clock_now(self) -> Clock:
        if self._clock is None:
            self._clock = clock_for(self.device())
        return self._clock

    def _flusher(self) -> Callable[[], object]:
        if self._flush is None:
            self._flush = flusher(torch.device(self.device()))
        return self._flush

    def _guarded(self, workload: Workload, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except (Exception, SystemExit) as error:
            raise explain(error, f"calling {workload.name}") from error


def _graphs_compiled() -> int:
    """Return how many graphs were compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def _warmed(session: Session, evidence: Evidence | None) -> Warmed:
    per_call, readings = session.per_call_ns, session.readings
    # The first two readings sized the block: they are calls too, but of any length.
    start = steady_start(per_call[2:])
    early = len(per_call) if start is None else 2 + start
    steady_ns = median(per_call[early:] or per_call[-8:])
    cold = list(evidence.call_ns) if evidence is not None else []
    counts = [round(r.total_ns / p) if p else 1 for r, p in zip(readings, per_call, strict=True)]
    spent = sum(cold) + sum(reading.wall_ns for reading in readings[:early])
    walls = median(reading.wall_ns for reading in readings[-8:])
    return Warmed(
        block_calls=session.calls,
        block_ns=walls,
        steady=start is not None,
        steady_ns=steady_ns,
        excess_ns=max(spent - (len(cold) + sum(counts[:early])) * steady_ns, 0.0),
        calls=len(cold) + sum(counts),
        events_share=median(reading.total_ns for reading in readings[-8:]) / max(walls, 1.0),
        clock=session.clock.name,
    )


Settings = dict[str, str]


def current_settings() -> Settings:
    """Return each setting that changes speed or results and can be read back."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    found = {
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "float32 matmul precision": _read(torch.get_float32_matmul_precision),
        "cudnn TF32": _read(lambda: cudnn.allow_tf32),
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.enabled": cudnn.enabled,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast on cuda": torch.is_autocast_enabled("cuda"),
        "autocast on cpu": torch.is_autocast_enabled("cpu"),
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "math attention": cuda.math_sdp_enabled(),
        "cudnn attention": cuda.cudnn_sdp_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "attention fast path": torch.backends.mha.get_fastpath_enabled(),
    }
    return {name: str(value) for name, value in found.items()}


def changed_settings(before: Settings, after: Settings) -> tuple[str, ...]:
    """Return "threads 2 → 1" for each setting that has changed."""
    return tuple(
        f"{name} {before[name]} → {after[name]}"
        for name in before
        if after.get(name, before[name]) != before[name]
    )


def _read(get: Callable[[], object]) -> str:
    """Return what a TF32 switch of torch is set to. torch raises if its old and its new switches
    have both been used."""
    try:
        return str(get())
    except RuntimeError:
        return "set by torch.backends' fp32_precision"


# A power cap is how a sustained load ordinarily runs on a large GPU, and holds for all variants of
# a round alike; heat and brakes come and go between two samples.
_CAUSES = (
    (nvml.HW_THERMAL | nvml.SW_THERMAL, "thermal throttling"),
    (nvml.HW_POWER_BRAKE, "external power brake"),
    (nvml.HW_SLOWDOWN, "hardware slowdown"),
)


class Throttle:
    """Reads after each sample why the device was throttled."""

    def __init__(self, device: torch.device) -> None:
        self._session = nvml.session()
        self._library = self._session.__enter__()
        self._handle = nvml.find(self._library, identity.address(device)) if self._library else None

    def look(self) -> str:
        """Return the cause, or ""."""
        reading = nvml.reading(self._library, self._handle) if self._handle is not None else None
        if reading is None:
            return ""
        return next((cause for bits, cause in _CAUSES if reading.reasons & bits), "")


_UNKNOWN_CACHE_BYTES = 64 * 2**20


def flusher(device: torch.device) -> Callable[[], object]:
    """Return a function that evicts the workload from the device's last-level cache by writing
    twice its size. (Lines that an application pinned would survive it; torch pins none.)"""
    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    else:
        size = processor.cache_bytes()
    buffer = torch.empty(2 * (size or _UNKNOWN_CACHE_BYTES), dtype=torch.uint8, device=device)
    return lambda: buffer.add_(1)


def peak_of(workload: Workload, device: str) -> tuple[int | None, str]:
    """Return the peak bytes and how they were measured, or None and why not. The peak is what the
    workload holds (weights, data, optimizer state) plus the most that its call adds to that."""
    held = [t for _, t in reachable(workload) if t.device.type == torch.device(device).type]
    static = stored_bytes(*held)
    if device == "cpu":
        try:
            measured = measure_peak(workload, device, static, "inference")
        except RidgelineError as error:
            return None, f"not measured: {error.message}"
        return measured.peak_bytes, measured.method
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = workload()
    torch.cuda.synchronize(device)
    above = torch.cuda.max_memory_allocated(device) - before
    del kept
    return static + above, "CUDA caching allocator, above what the workload holds"
