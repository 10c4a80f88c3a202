"""Counting of the operators of a pass, by phase and module.

`CostMode` counts every operator that is dispatched. `ModuleTracker` finds the module that an
operator belongs to: in forward by the module calls in progress, and in backward by the autograd
node, whose sequence number tells in which module its forward ran. (Backward hooks wrap the outputs
of modules, which breaks in-place operators and views.) `PhaseTracker` tells forward, recomputation
and backward apart.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct
from torch.nn.modules import module as torch_module
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.cost.counting.kernel_memory import (
    hidden_bytes,
    transient_bytes,
    unpredicted_call,
)
from ridgeline.cost.counting.ledger import StorageLedger
from ridgeline.cost.counting.operands import (
    as_call,
    moved_bytes,
    nested_tensors,
    operator_name,
    stored_parts,
)
from ridgeline.cost.formulas import Work, work_of
from ridgeline.records.cost import Phase

_ACCUMULATE_GRAD = 2**64 - 1  # the sequence number of the nodes that accumulate gradients


def display_path(path: str) -> str:
    """Return a module path without the levels that torch.compile and checkpoint wrappers add."""
    parts = [p for p in path.split(".") if p not in ("_orig_mod", "_checkpoint_wrapped_module")]
    return ".".join(parts)


class ModuleTracker:
    """Inside this context, `path` is the qualified name of the innermost module that is running."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        self.paths: dict[int, str] = {}
        self.types: dict[str, str] = {}
        for name, module in root.named_modules():
            path = display_path(name)
            # The key is the id, because a user's module may have a __hash__ or __eq__ that fails.
            self.paths[id(module)] = path
            if type(module).__name__ not in ("OptimizedModule", "CheckpointWrapper"):
                self.types[path] = type(module).__name__
        self.calls: dict[str, int] = {}
        self._stack: list[str] = []
        self._handles: list[Any] = []
        self._starts: list[int] = []
        self._owners: list[str] = []

    def __enter__(self) -> "ModuleTracker":
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._enter_module),
            torch_module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def forward_ended(self) -> None:
        """Note that the model has returned. Calls that wrappers left open are closed."""
        self._stack.clear()

    @property
    def depth(self) -> int:
        return len(self._stack)

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else ""

    def path_in_backward(self) -> str:
        """Return the module whose forward made the autograd node that is running."""
        if self._stack:  # a module called inside backward is recomputed
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        if number == _ACCUMULATE_GRAD:
            return ""
        position = bisect_right(self._starts, number) - 1
        return self._owners[position] if position >= 0 else ""

    def _mark(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self.path)

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        path = self.paths.get(id(module))
        if path is None:  # made during the pass, or not part of the model
            path = self.path
        elif not (self._stack and self._stack[-1] == path):
            self.calls[path] = self.calls.get(path, 0) + 1
        self._stack.append(path)
        self._mark()

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
            self._mark()


class PhaseTracker:
    """Tells the phase of an operator: forward, recomputation or backward."""

    def __init__(self) -> None:
        self.in_backward = False
        self._recomputing = 0

    def phase(self, modules_running: int) -> Phase:
        """Return the phase of the operator that is being dispatched. The optimizer is not among
        them; its step is counted separately."""
        if not self.in_backward:
            return "forward"
        if torch._C._current_graph_task_id() == -1:
            return "backward"  # makes the gradient that backward starts from
        again = self._recomputing or modules_running or torch.is_grad_enabled()
        return "recompute" if again or _in_reentrant_checkpoint() else "backward"

    @contextmanager
    def backward(self) -> Iterator[None]:
        self.in_backward = True
        try:
            with self._checkpoints_noticed():
                yield
        finally:
            self.in_backward = False

    @contextmanager
    def _checkpoints_noticed(self) -> Iterator[None]:
        """Inside this context, know when a checkpoint recomputes. A nested checkpoint runs its
        forward without gradients inside the outer recomputation, so only the hook around the whole
        recomputation shows it."""
        tracker, original = self, getattr(checkpoint, "_recomputation_hook", None)
        if original is None:
            yield
            return

        class RecomputationHook(original):  # type: ignore[misc, valid-type]
            def __enter__(self) -> Any:
                tracker._recomputing += 1
                return super().__enter__()

            def __exit__(self, *error: Any) -> Any:
                tracker._recomputing -= 1
                return super().__exit__(*error)

        checkpoint._recomputation_hook = RecomputationHook  # type: ignore[misc]
        try:
            yield
        finally:
            checkpoint._recomputation_hook = original  # type: ignore[misc]


def _in_reentrant_checkpoint() -> bool:
    """Return whether the running node is that of a reentrant checkpoint. Directly inside it, only
    the forward runs again; the backward of that forward has nodes of its own."""
    node = torch._C._current_autograd_node()
    return node is not None and "CheckpointFunction" in node.name()


class Tally(Struct):
    """A running sum over calls of one operator at one place."""

    calls: int = 0
    macs: int = 0
    flops: int = 0
    all_flops: int = 0
    bytes: int = 0
    skipped_flops: int = 0

    def add(self, work: Work, moved: int) -> None:
        self.calls += 1
        self.macs += work.macs
        self.flops += work.flops
        self.all_flops += work.flops + work.other_flops
        self.bytes += moved
        self.skipped_flops += 2 * work.skipped_macs


class Site(Struct, frozen=True):
    """The phase, module, operator and dtype that a cost belongs to."""

    phase: Phase
    module: str
    op: str
    dtype: str
    formulated: bool


_NO_WORK = Work()
_UNREADABLE = (TypeError, ValueError, IndexError, AttributeError, RuntimeError)
"""The errors of a formula, or of a tensor with an unusual layout, if a call cannot be read."""


class CostMode(TorchDispatchMode):
    """Counts the operators that run inside it. `phase` is their phase; if it is None, the phase is
    found out for each. `scalar` is what `.item()` of a tensor without data returns, for programs
    for which any number leads to the same work."""

    supports_higher_order_operators = True

    def __init__(
        self,
        modules: ModuleTracker,
        ledger: StorageLedger,
        phase: Phase | None = None,
        scalar: float | None = None,
        fake_mode: Any = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tallies: dict[Site, Tally] = {}
        self.assumptions: set[str] = set()
        self.failed: dict[str, str] = {}
        """The operators whose formula could not read their arguments, each with the error."""
        self._modules = modules
        self._ledger = ledger
        self._phase = phase
        self._scalar = scalar
        self._fake_mode = fake_mode
        self.phases = PhaseTracker()
        self.global_flops = 0
        """The forward FLOPs of distributed tensors, over all ranks."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = operator_name(func)
        if any(_unwraps_itself(t) for t in types):
            # A DTensor turns the call into what this rank runs, and that is counted.
            self._count_globally(func, args, kwargs)
            return NotImplemented
        if name.startswith("prim::") or self._is_foreign(args):
            return func(*args, **kwargs)
        if name in ("aten::_local_scalar_dense", "aten::is_nonzero"):
            assumed = self._assumed(args[0])
            if assumed is not None:
                return assumed
        out = func(*args, **kwargs)
        self._record(func, name, args, kwargs, out)
        return out

    def _record(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        phase = self._phase or self.phases.phase(self._modules.depth)
        module = self._modules.path if phase == "forward" else self._modules.path_in_backward()
        hidden = hidden_bytes(name, args, out)
        for tensor in nested_tensors(out):
            extra = 0 if tensor.numel() else hidden
            for part in stored_parts(tensor):
                self._ledger.add(part, "intermediate", name, module, phase, extra)
        transient = transient_bytes(name, args, out)
        if transient:
            self._ledger.add_transient(transient, name, module, phase)
        kernel = unpredicted_call(func, name, args)
        if kernel is not None:
            self._ledger.add_kernel(kernel, module, phase)
        try:
            call = as_call(func, args, kwargs, out)
            work = work_of(call)
            if work is None and _is_pointwise(func):
                work = Work(other_flops=call.elements)
        except _UNREADABLE as error:
            self.failed[name] = str(error)
            self._tally(phase, module, name, "unknown", None, 0)
            return
        moved = moved_bytes(func, name, args, kwargs, out, work)
        if work is None and moved == 0:
            return  # a view or an allocation, which costs nothing
        operands = call.tensors or call.outputs
        if operands:
            self._tally(phase, module, name, operands[0].dtype, work, moved)

    def _is_foreign(self, args: tuple[Any, ...]) -> bool:
        """Return whether a call uses fake tensors of another mode. DTensor uses such tensors of
        global size to find out shapes, in the middle of a real pass."""
        return any(
            type(t).__name__ == "FakeTensor"
            and getattr(t, "fake_mode", None) is not self._fake_mode
            for t in nested_tensors(args)
        )

    def _count_globally(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.phases.in_backward:
            return
        with contextlib.suppress(*_UNREADABLE):
            work = work_of(as_call(func, args, kwargs, ()))
            self.global_flops += work.flops if work is not None else 0

    def _tally(
        self, phase: Phase, module: str, op: str, dtype: str, work: Work | None, moved: int
    ) -> None:
        site = Site(phase, module, op, dtype, work is not None)
        self.tallies.setdefault(site, Tally()).add(work or _NO_WORK, moved)
        if work is not None and work.recomputed_macs:
            again = Site("recompute", module, op, dtype, True)
            skipped = work.recomputed_macs * work.skipped_macs // max(work.macs, 1)
            repeated = Work(macs=work.recomputed_macs, skipped_macs=skipped)
            self.tallies.setdefault(again, Tally()).add(repeated, 0)

    def _assumed(self, tensor: torch.Tensor) -> bool | float | None:
        """Return the value that is assumed for a tensor without data; None for no assumption. In
        every program seen, `mask.all()` and `bad.any()` check for the usual case (a full mask, no
        NaN), so that case is assumed, and a note says so."""
        if not has_no_data(tensor):
            return None
        if tensor.dtype is not torch.bool:
            return self._scalar
        entry = self._ledger.entry_of(tensor)
        if entry is None or entry.op not in ("aten::all", "aten::any"):
            return None
        truth = entry.op == "aten::all"
        self.assumptions.add(f"{entry.op.removeprefix('aten::')}() of a tensor without data "
                             f"was taken to be {truth}")  # fmt: skip
        return truth


def has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def _is_pointwise(func: Any) -> bool:
    """Return whether torch tags an operator as elementwise. This covers operators that are newer
    than our tables."""
    return torch.Tag.pointwise in getattr(func, "tags", ())


def _unwraps_itself(kind: type) -> bool:
    return kind.__name__ in ("DTensor", "AsyncCollectiveTensor")
