"""Plans that let a training step fit a budget of memory.

One pass on tensors without data shows which block keeps which tensors for backward. From that, the
planner of `ridgeline.memory` takes the blocks to checkpoint. Every plan is then counted as it would
run, checkpoints included, and the set is corrected until the counted peak fits: the planner's model
chooses, and the count decides. Where the machine can, the first plans also run.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.cost.counting.counter import display_path
from ridgeline.cost.counting.operands import nested_tensors, reachable_tensors, stored_bytes
from ridgeline.cost.counting.parameters import (
    EIGHT_BIT,
    OPTIMIZERS,
    OptimizerAccount,
    state_tensors,
)
from ridgeline.cost.counting.passes import backward_from, preserved
from ridgeline.cost.study.running import Options, Say
from ridgeline.cost.study.target import Prepared, base_size, free_bytes, quiet_stdout, resize_inputs
from ridgeline.errors import RidgelineError
from ridgeline.measure.peak import measure_peak
from ridgeline.memory.planner import (
    Block,
    Graph,
    Shared,
    best_checkpoints,
    has_solver,
    micro_batch_counts,
)
from ridgeline.records.cost import Memory, ModuleCost
from ridgeline.records.memory_plan import BlockMemory, MemoryPlan, PlannedFit, Unverified
from ridgeline.records.model import ModelReport

MAX_BLOCK_SHARE = 0.25
"""A module that keeps more of the activations than this is divided into its children."""
MIN_BLOCK_SHARE = 0.002
"""A block that keeps less is left alone."""
MAX_BLOCKS = 256
MAX_MICRO_BATCH_COUNTS = 8
MAX_CORRECTIONS = 6
MAX_PLANS = 4
MAX_VERIFIED = 2
TIMED_STEPS = 3
MAX_VERIFY_STEP_S = 30.0
"""A step that takes longer is run for its peak, and timed by that one run."""
OFFLOAD_BYTES_S = 25e9
"""The rate of a PCIe 4.0 ×16 link in one direction, assumed for state that waits on the host."""
_KINDS = {"nothing": 0, "rounding": 1, "results": 2}


def checkpointed_block(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the forward of a module under a checkpoint. The running statistics of batch norm are
    not counted a second time when it is computed again."""
    from torch.utils.checkpoint import checkpoint

    forward = module.forward

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), statistics_kept(module)

    return functools.partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)


@contextmanager
def statistics_kept(module: torch.nn.Module) -> Iterator[None]:
    """Inside this context, batch norms leave their running statistics as they are."""
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]
    saved = [(m, m.momentum, m.num_batches_tracked) for m in norms if m.track_running_stats]
    try:
        for norm, *_ in saved:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, batches in saved:
            norm.momentum, norm.num_batches_tracked = momentum, batches


@contextmanager
def under(model: torch.nn.Module, paths: tuple[str, ...], autocast: str) -> Iterator[None]:
    """Inside this context, the blocks are checkpointed and forward runs under autocast."""
    modules = {display_path(name): m for name, m in model.named_modules()}
    chosen = [modules[path] for path in paths]
    whole = model.forward
    device = next((p.device.type for p in model.parameters()), "cpu")
    for module in chosen:
        module.forward = checkpointed_block(module)
    if autocast:
        dtype = getattr(torch, autocast)

        def cast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu" if device == "meta" else device, dtype=dtype):
                return whole(*args, **kwargs)

        model.forward = cast
    try:
        yield
    finally:
        for module in chosen:
            module.__dict__.pop("forward", None)
        if autocast:
            model.__dict__.pop("forward", None)


def choose_blocks(modules: tuple[ModuleCost, ...], total_bytes: int) -> list[ModuleCost]:
    """Return disjoint modules that together keep the activations, each a small part of them."""
    by_path = {m.path: m for m in modules}
    children: dict[str, list[str]] = {}
    for path in by_path:
        if path:
            parent = path.rpartition(".")[0]
            while parent and parent not in by_path:
                parent = parent.rpartition(".")[0]
            children.setdefault(parent, []).append(path)

    def divided(path: str) -> Iterator[ModuleCost]:
        module = by_path[path]
        below = children.get(path, [])
        called = [p for p in below if by_path[p].activation_bytes]
        if below and (not module.calls or module.activation_bytes > MAX_BLOCK_SHARE * total_bytes):
            for child in called:
                yield from divided(child)
        elif path and module.activation_bytes >= MIN_BLOCK_SHARE * total_bytes and module.calls:
            yield module

    return list(divided(""))[:MAX_BLOCKS]


class _Border(Struct):
    """The storages of activations, as the tracing of one pass saw them."""

    bytes: int
    inputs_of: set[int]
    kept_by: set[int]
    outside: bool = False


class _Trace:
    """Notes, in one forward, the inputs of each block and what it saves for backward."""

    def __init__(self, model: torch.nn.Module, paths: list[str]) -> None:
        modules = {display_path(name): m for name, m in model.named_modules()}
        self.model = model
        self.blocks = [modules[path] for path in paths]
        self.order: list[int] = []
        self.storages: dict[int, _Border] = {}
        self._stack: list[int] = []
        self._static: set[int] = set()
        self._held: list[torch.Tensor] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        handles = [self.model.register_forward_pre_hook(self._began, with_kwargs=True)]
        for number, block in enumerate(self.blocks):
            enter = functools.partial(self._entered, number)
            handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(block.register_forward_hook(self._left, always_call=True))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._saved, lambda kept: kept):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._held.clear()

    def _began(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        static = (*module.parameters(), *module.buffers(), *nested_tensors((args, kwargs)))
        self._static |= {key for t in static if (key := _key(t)) is not None}

    def _entered(self, number: int, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if number not in self.order:
            self.order.append(number)
        self._stack.append(number)
        for tensor in nested_tensors((args, kwargs)):
            border = self._border(tensor)
            if border is not None:
                border.inputs_of.add(number)
                self._held.append(tensor)

    def _left(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        border = self._border(tensor)
        if border is not None:
            if self._stack:
                border.kept_by.add(self._stack[-1])
            else:
                border.outside = True
        return tensor

    def _border(self, tensor: torch.Tensor) -> _Border | None:
        key = _key(tensor)
        if key is None or key in self._static:
            return None
        if key not in self.storages:
            self.storages[key] = _Border(tensor.untyped_storage().nbytes(), set(), set())
        return self.storages[key]

    def graph(self, times: list[float], fixed: list[bool]) -> tuple[Graph, list[int]]:
        """Return the graph in the order of execution, and the number of the block at each place."""
        place = {number: i for i, number in enumerate(self.order)}
        inside = [0] * len(self.order)
        shared: list[Shared] = []
        for border in self.storages.values():
            keepers = frozenset(place[n] for n in border.kept_by if n in place)
            readers = frozenset(place[n] for n in border.inputs_of if n in place)
            if border.outside:
                continue  # kept whatever is chosen
            if len(keepers) == 1 and not readers:
                inside[next(iter(keepers))] += border.bytes
            elif keepers | readers:
                shared.append(Shared(border.bytes, readers, keepers))
        blocks = tuple(Block(inside[i], times[n], fixed=fixed[n]) for i, n in enumerate(self.order))
        return Graph(blocks, tuple(shared)), self.order


def _calibrated(graph: Graph, chosen: frozenset[int], peak_bytes: int) -> Graph:
    """Return the graph whose peak with these checkpoints is the counted one."""
    fixed = peak_bytes - graph.peak_bytes(chosen) + graph.fixed_bytes
    return Graph(graph.blocks, graph.shared, max(fixed, 0))


def _key(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


class _Times(Struct):
    """Times of a step and of the forward of each block, per sample and fixed, in ms."""

    step_ms: float
    fixed_ms: float
    """The part of the step that does not depend on the batch."""
    blocks_ms: dict[str, float]
    source: Any
    batch: int


class Planner:
    """Finds plans for one prepared model and one budget."""

    def __init__(
        self, prepared: Prepared, options: Options, host: torch.device, report: ModelReport,
        say: Say,
    ) -> None:  # fmt: skip
        self.prepared, self.options, self.host, self.say = prepared, options, host, say
        self.report = report
        self.budget = options.fit_bytes
        self.batch = base_size(prepared.args, prepared.kwargs, "batch")
        self.modules = list(report.cost.modules)
        total = sum(report.memory.activations_by_module.values())
        self.blocks = choose_blocks(report.cost.modules, total)
        self.counts = 0
        self._steps: dict[tuple[str, bool], OptimizerAccount] = {}
        self.smallest = report.memory.peak_bytes
        self.times = self._floors()

    def answer(self) -> PlannedFit:
        base = self.report.memory
        trace = self._trace(self.batch)
        self.look_at_times()
        graph, order = self._graph(trace)
        plans: list[MemoryPlan] = []
        if base.peak_bytes > self.budget:
            plans = self.search()
        planned = PlannedFit(
            budget_bytes=self.budget,
            batch=self.batch,
            peak_bytes=base.peak_bytes,
            blocks=self._table(graph, order),
            plans=tuple(plans),
            smallest_peak_bytes=self.smallest,
            times_source=self.times.source,
            timed_batch=self.times.batch,
            counts=self.counts,
            has_shared_tensors=not graph.is_chain,
            lacks_solver=not graph.is_chain and not has_solver(),
            has_statistics=_has_statistics(self.prepared.model),
            has_loss=any(
                op.op in ("aten::_log_softmax", "aten::nll_loss_forward")
                for op in self.report.cost.ops
            ),
        )
        return self._verified(planned)

    def look_at_times(self) -> None:
        """Time the step and its blocks, if this machine can."""
        if self.options.timed and not self.prepared.is_meta:
            self.times = self._measured_times() or self.times

    # The known facts about blocks

    def _floors(self) -> _Times:
        floors = self.report.module_floor_ns
        whole = floors.get("", 0.0) or 1.0
        forward = {m.path: _forward_share(m) for m in self.blocks}
        blocks = {path: floors.get(path, 0.0) * share / 1e6 for path, share in forward.items()}
        return _Times(whole / 1e6, self.report.placement.overhead_ms, blocks, "floors", self.batch)

    def _trace(self, batch: int) -> _Trace:
        self.say(f"looking at what blocks keep at batch {batch}")
        trace = _Trace(self.prepared.model, [m.path for m in self.blocks])
        with trace.active():
            self._count(batch)
        return trace

    def _count(self, batch: int, plan: MemoryPlan | None = None) -> Memory:
        self.counts += 1
        args, kwargs = resize_inputs(
            self.prepared.args, self.prepared.kwargs, "batch", batch, virtual=True
        )
        paths = plan.checkpointed if plan else ()
        with under(self.prepared.model, paths, plan.autocast if plan else ""):
            memory = self.prepared.account(
                training=True,
                args=args, kwargs=kwargs, accumulating=bool(plan and plan.micro_batches > 1),
                known_step=self._step_of(
                    plan.optimizer if plan else self.options.optimizer, bool(plan and plan.fused)
                ),
            ).memory  # fmt: skip
        # A micro-batch is a part of the batch, all of which is there.
        outside = max(self.report.memory.inputs_bytes - memory.inputs_bytes, 0) if plan else 0
        memory = replace(memory, peak_bytes=memory.peak_bytes + outside)
        if plan is not None:
            self.smallest = min(self.smallest, memory.peak_bytes)
        return memory

    def _step_of(self, optimizer: str, fused: bool) -> OptimizerAccount:
        key = optimizer, fused
        if key not in self._steps:
            trained = [p for p in self.prepared.model.parameters() if p.requires_grad]
            kind = "cpu" if fused else self.prepared.device.type
            self._steps[key] = OptimizerAccount(optimizer, trained, kind in ("cuda", "meta"))
        return self._steps[key]

    def count_peak(self, plan: MemoryPlan) -> int:
        return self._count(plan.micro_batch, plan).peak_bytes

    def _graph(self, trace: _Trace) -> tuple[Graph, list[int]]:
        times = [self.times.blocks_ms.get(m.path, 0.0) for m in self.blocks]
        fixed = [m.calls != 1 for m in self.blocks]
        return trace.graph([max(t, 1e-9) for t in times], fixed)

    def _table(self, graph: Graph, order: list[int]) -> tuple[BlockMemory, ...]:
        nothing = graph.held_bytes(frozenset())
        rows = []
        for place, number in enumerate(order):
            module = self.blocks[number]
            recompute = self.times.blocks_ms.get(module.path, 0.0)
            rows.append(
                BlockMemory(
                    path=module.path,
                    type=module.type,
                    kept_bytes=module.activation_bytes,
                    saved_bytes=nothing - graph.held_bytes(frozenset([place])),
                    recompute_flops=module.phases["forward"].flops
                    if "forward" in module.phases
                    else 0,
                    recompute_share=recompute / (self.times.step_ms or 1.0),
                )
            )
        return tuple(rows)

    # The search

    def search(self) -> list[MemoryPlan]:
        """Return the plans that fit `budget`, the best first."""
        plans = self._plans(optimizer=self.options.optimizer, fused=self.host.type == "cuda")
        if not plans and self.host.type == "cuda":
            plans += self._offloaded()
        if not plans:
            eight = f"{self.options.optimizer}8bit"
            if eight in EIGHT_BIT:
                plans += self._plans(optimizer=eight, changes="results")
        dtype = self.report.cost.dtype
        if dtype == "float32" and not self.prepared.is_meta:  # autocast does not act on meta
            plans += self._plans(
                optimizer=self.options.optimizer, autocast="bfloat16", changes="rounding", most=1,
                sizes=2 if plans else MAX_MICRO_BATCH_COUNTS,
            )  # fmt: skip
        plans.sort(key=lambda p: (_KINDS[p.changes], p.predicted_slowdown))
        return plans[: MAX_PLANS + 1]

    def _offloaded(self) -> list[MemoryPlan]:
        """Return plans for which the state of the optimizer waits on the host. It crosses the bus
        twice in a step."""
        state = self._step_of(self.options.optimizer, True).state_bytes
        budget, self.budget = self.budget, self.budget + state
        found = self._plans(optimizer=self.options.optimizer, fused=True)
        self.budget = budget
        moving_ms = 2e3 * state / OFFLOAD_BYTES_S
        return [
            replace(
                plan,
                offloaded=True,
                predicted_peak_bytes=plan.predicted_peak_bytes - state,
                predicted_slowdown=plan.predicted_slowdown + moving_ms / (self.times.step_ms or 1),
            )
            for plan in found
        ]

    def _plans(
        self, most: int = MAX_PLANS, sizes: int = MAX_MICRO_BATCH_COUNTS, **settings: Any
    ) -> list[MemoryPlan]:
        found: list[MemoryPlan] = []
        counts = list(micro_batch_counts(self.batch, MAX_MICRO_BATCH_COUNTS))[:sizes]
        micros = list(dict.fromkeys(-(-self.batch // count) for count in counts))
        last = self._plan_at(micros[-1], settings)
        if last is None:
            # No other division fits either. The whole batch may: its forward has no gradients yet.
            micros = micros[:1] if len(micros) > 1 else []
        for micro in micros:
            is_last = last is not None and micro == last.micro_batch
            plan = last if is_last else self._plan_at(micro, settings)
            if plan is not None:
                found.append(plan)
                if not plan.checkpointed:
                    break  # smaller micro-batches only take longer
        found.sort(key=lambda p: p.predicted_slowdown)
        return found[:most]

    def _plan_at(self, micro: int, settings: dict[str, Any]) -> MemoryPlan | None:
        """Return the plan for one size of micro-batch, corrected until its counted peak fits."""
        self.say(f"planning micro-batches of {micro}")
        draft = MemoryPlan(
            checkpointed=(), micro_batches=-(-self.batch // micro), micro_batch=micro,
            predicted_peak_bytes=0,
            predicted_slowdown=1.0, **settings,
        )  # fmt: skip
        trace = _Trace(self.prepared.model, [m.path for m in self.blocks])
        with trace.active():
            peak = self._count(micro, draft).peak_bytes
        if peak <= self.budget:
            return self.told(draft, peak)
        graph, order = self._graph(trace)
        everything = frozenset(i for i, b in enumerate(graph.blocks) if not b.fixed)
        plan = replace(draft, checkpointed=self._paths(everything, order))
        smallest = self._count(micro, plan).peak_bytes
        if smallest > self.budget:
            return None  # if all blocks are too few, no set fits
        best = self.told(plan, smallest)
        # No choice changes the rest of a counted peak. Begin with the peak without checkpoints.
        graph = _calibrated(graph, frozenset(), peak)
        tried = {everything}
        for _ in range(MAX_CORRECTIONS):
            chosen = best_checkpoints(graph, self.budget)
            if chosen is None or chosen in tried:
                break
            tried.add(chosen)
            plan = replace(draft, checkpointed=self._paths(chosen, order))
            peak = self._count(micro, plan).peak_bytes
            if peak <= self.budget:
                told = self.told(plan, peak)
                best = min(told, best, key=lambda p: p.predicted_slowdown)
            graph = _calibrated(graph, chosen, peak)
        return best

    def _paths(self, chosen: frozenset[int], order: list[int]) -> tuple[str, ...]:
        return tuple(self.blocks[order[place]].path for place in sorted(chosen))

    def told(self, plan: MemoryPlan, peak: int) -> MemoryPlan:
        times = self.times
        added = (plan.micro_batches - 1) * times.fixed_ms
        added += sum(times.blocks_ms.get(path, 0.0) for path in plan.checkpointed)
        return replace(
            plan,
            predicted_peak_bytes=peak,
            predicted_slowdown=(times.step_ms + added) / (times.step_ms or 1.0),
        )

    # Running

    def _measured_times(self) -> _Times | None:
        """Return times measured at the largest two batches that this machine has room for."""
        batch = self.batch
        free = free_bytes(self.host)
        while batch > 1 and self._count(batch).peak_bytes > free // 2:
            batch //= 2
        if self._count(batch).peak_bytes > free // 2:
            return None
        self.say(f"timing the blocks at batch {batch}")
        try:
            sizes = (batch, batch // 2) if batch > 1 else (batch,)
            runs, blocks = self._timed(sizes)
            step_ms, fixed = runs[0], 0.0
            if batch > 1:
                per_sample = (step_ms - runs[1]) / (batch - batch // 2)
                fixed = min(max(step_ms - per_sample * batch, 0.0), step_ms)
        except Exception:  # the plan is then told by floors
            return None
        scale = self.batch / batch
        whole = fixed + (step_ms - fixed) * scale
        blocks = {path: ms * scale for path, ms in blocks.items()}
        return _Times(whole, fixed, blocks, "measured", batch)

    def _timed(self, sizes: tuple[int, ...]) -> tuple[list[float], dict[str, float]]:
        """Return the times of a step at each of these batches, measured in turns, and those of the
        blocks' forward at the first, in ms."""
        model, spent = self.prepared.model, {m.path: 0.0 for m in self.blocks}
        modules = {display_path(name): m for name, m in model.named_modules()}
        began: list[float] = []

        def now() -> float:
            if self.host.type == "cuda":
                torch.cuda.synchronize(self.host)
            return time.perf_counter()

        def left(path: str, *_: Any) -> None:
            spent[path] += now() - began.pop()

        with preserved(model, training=True, values=True), quiet_stdout():
            steps = [_PlannedStep(self.prepared, self._as_given(n), n) for n in sizes]
            runs = [float("inf")] * len(sizes)
            for turn in range(TIMED_STEPS + 1):
                for place, step in enumerate(steps):
                    start = now()
                    step()
                    if turn:  # the first makes the state of the optimizer
                        runs[place] = min(runs[place], now() - start)
            with ExitStack() as stack:
                for path in spent:
                    hook = modules[path].register_forward_pre_hook(lambda *_: began.append(now()))
                    stack.callback(hook.remove)
                    hook = modules[path].register_forward_hook(functools.partial(left, path))
                    stack.callback(hook.remove)
                fastest = dict.fromkeys(spent, float("inf"))
                for _ in range(TIMED_STEPS):
                    spent.update(dict.fromkeys(spent, 0.0))
                    steps[0]()
                    fastest = {path: min(fastest[path], s) for path, s in spent.items()}
        return [s * 1e3 for s in runs], {path: s * 1e3 for path, s in fastest.items()}

    def _as_given(self, batch: int) -> MemoryPlan:
        return MemoryPlan(
            checkpointed=(), micro_batches=1, micro_batch=batch, optimizer=self.options.optimizer,
            predicted_peak_bytes=0, predicted_slowdown=1.0,
        )  # fmt: skip

    def _verified(self, planned: PlannedFit) -> PlannedFit:
        """Run the first plans, and the step as given between them where it has room."""
        verified: list[MemoryPlan] = []
        baseline_ms: float | None = None
        free = free_bytes(self.host)
        for number, plan in enumerate(planned.plans):
            reason = self._why_not(plan, free, number)
            if reason is not None:
                verified.append(replace(plan, unverified=reason))
                continue
            self.say(f"running plan {number + 1}")
            try:
                verified.append(self.run(plan))
            except Exception:  # what the plan does to the model is a result
                verified.append(replace(plan, unverified=Unverified.FAILED))
        ran = [p for p in verified if p.measured_ms and p.measured_ms < MAX_VERIFY_STEP_S * 1e3]
        if ran and planned.peak_bytes <= free // 2:
            with contextlib.suppress(Exception):
                baseline_ms, paired = self.against_baseline(ran)
                for plan, ms in zip(ran, paired, strict=True):
                    verified[verified.index(plan)] = replace(
                        plan, measured_ms=ms, measured_slowdown=ms / baseline_ms
                    )
        verified.sort(key=lambda p: self._rank(p))
        return replace(planned, plans=tuple(verified), baseline_ms=baseline_ms)

    def _rank(self, plan: MemoryPlan) -> tuple[bool, int, bool, float]:
        """Plans that fit when run come first, then those that keep results, then the fastest."""
        over = plan.measured_peak_bytes is not None and plan.measured_peak_bytes > self.budget
        failed = plan.unverified is Unverified.FAILED
        slowdown = plan.measured_slowdown
        return (
            over or failed,
            _KINDS[plan.changes],
            slowdown is None,
            slowdown if slowdown is not None else plan.predicted_slowdown,
        )

    def _why_not(self, plan: MemoryPlan, free: int, number: int) -> Unverified | None:
        if self.prepared.is_meta:
            return Unverified.NO_DATA
        if not self.options.timed:
            return Unverified.NOT_ASKED
        if plan.optimizer in EIGHT_BIT or plan.offloaded:
            return Unverified.NOT_HERE
        if plan.predicted_peak_bytes > free // 2:
            return Unverified.NO_ROOM
        return Unverified.LATER if number >= MAX_VERIFIED and plan.changes == "nothing" else None

    def run(self, plan: MemoryPlan) -> MemoryPlan:
        """Return the plan with the peak of its second step, measured."""
        model = self.prepared.model
        with (
            preserved(model, training=True, values=True),
            quiet_stdout(),
            under(model, plan.checkpointed, plan.autocast),
        ):
            step = _PlannedStep(self.prepared, plan, self.batch)
            began = time.perf_counter()
            step()
            took = time.perf_counter() - began
            step.forget_gradients()
            static = stored_bytes(
                *state_tensors(step.optimizer), *model.parameters(), *model.buffers(),
                *reachable_tensors(step.batch),
            )  # fmt: skip
            peak = measure_peak(step, str(self.host), static, "training").peak_bytes
        return replace(plan, measured_peak_bytes=peak, measured_ms=took * 1e3)

    def against_baseline(self, plans: list[MemoryPlan]) -> tuple[float, list[float]]:
        """Return the median times of the step as given and of the plans, measured in turns."""
        self.say("timing the plans against the step as given")
        model = self.prepared.model
        given = self._as_given(self.batch)
        times: dict[int, list[float]] = {id(p): [] for p in (given, *plans)}
        steps = {id(p): _PlannedStep(self.prepared, p, self.batch) for p in (given, *plans)}
        with preserved(model, training=True, values=True), quiet_stdout():
            for turn in range(TIMED_STEPS + 1):
                for plan in (given, *plans):
                    with under(model, plan.checkpointed, plan.autocast):
                        began = time.perf_counter()
                        steps[id(plan)]()
                        if self.host.type == "cuda":
                            torch.cuda.synchronize(self.host)
                    if turn:  # the first makes the state of the optimizer
                        times[id(plan)].append((time.perf_counter() - began) * 1e3)
                    steps[id(plan)].forget_gradients()
        middle = {key: sorted(values)[len(values) // 2] for key, values in times.items()}
        return middle[id(given)], [middle[id(plan)] for plan in plans]


class _PlannedStep:
    """A training step under a plan: micro-batches whose gradients add up, then the optimizer."""

    def __init__(self, prepared: Prepared, plan: MemoryPlan, batch: int) -> None:
        self._model = prepared.model.train()
        self.batch = resize_inputs(prepared.args, prepared.kwargs, "batch", batch)
        self._size, self._plan = batch, plan
        trained = [p for p in prepared.model.parameters() if p.requires_grad]
        kind = OPTIMIZERS[plan.optimizer]
        self.optimizer = kind(trained, fused=True) if plan.fused else kind(trained)

    def forget_gradients(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self.forget_gradients()
        for first in range(0, self._size, self._plan.micro_batch):
            args, kwargs = self._part(first, min(self._plan.micro_batch, self._size - first))
            output = self._model(*args, **kwargs)
            backward_from(output)
            del output
        self.optimizer.step()

    def _part(self, first: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self.batch
        if size == self._size:
            return args, kwargs

        def cut(value: Any) -> Any:
            whole = isinstance(value, torch.Tensor) and value.dim() and len(value) == self._size
            return value[first : first + size] if whole else value

        return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}


def _forward_share(module: ModuleCost) -> float:
    """Return the forward's share of a module's work, by bytes moved."""
    moved = {phase: totals.bytes for phase, totals in module.phases.items()}
    return moved.get("forward", 0) / (sum(moved.values()) or 1)


def _has_statistics(model: torch.nn.Module) -> bool:
    kinds = torch.nn.modules.batchnorm._NormBase
    return any(isinstance(m, kinds) and m.track_running_stats for m in model.modules())


def plan_memory(
    prepared: Prepared, options: Options, host: torch.device, report: ModelReport, say: Say
) -> PlannedFit | None:
    """Return the plans for a training step within `options.fit_bytes`; None if blocks cannot be
    told apart."""
    try:
        return Planner(prepared, options, host, report, say).answer()
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error
