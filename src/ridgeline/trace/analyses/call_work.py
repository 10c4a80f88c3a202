"""What one recorded call adds to a step: FLOPs as a model's account counts them, FLOPs as executed,
and bytes at least.

`op_work` wants results, for a roofline; here an operator counts also where only its inputs are
known (the fused attention and the recurrent layers of a CPU), its bytes then without the results.
"""

import msgspec
from msgspec import Struct

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of
from ridgeline.trace.analyses.op_work import LONGEST_SEQUENCE, MOST, op_work
from ridgeline.trace.analyses.recorded_call import DTYPES, recorded_call
from ridgeline.trace.analyses.recorded_outputs import outputs_of
from ridgeline.trace.trace import Shape

_BY_INPUTS = ("matmul", "convolution", "attention", "recurrent", "transform", "quantized",
              "reduction")  # fmt: skip
"""Families whose formulas need no result, or fail without one; movement is told by results only."""

_FREE_NAMES = (
    "view _unsafe_view reshape _reshape_alias expand expand_as slice select unsqueeze squeeze "
    "permute transpose t mT split split_with_sizes unbind chunk as_strided alias diagonal "
    "unfold narrow view_as view_as_real view_as_complex flatten unflatten real imag _conj "
    "movedim swapaxes detach detach_ numpy_T lift_fresh "
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ "
    "resize_as_ set_ result_type resolve_conj resolve_neg item _local_scalar_dense is_nonzero "
    "cudnn_is_acceptable is_same_size _has_compatible_shallow_copy_type record_stream "
    "requires_grad_ contiguous to type_as is_pinned pin_memory set_data retain_grad sym_size "
    "_assert_async _nested_tensor_size unsafe_chunk unsafe_split stride size numel "
    "broadcast_tensors broadcast_to atleast_1d tensor_split hsplit vsplit swapdims _version"
)
_FREE = frozenset("aten::" + name for name in _FREE_NAMES.split())
"""Views, allocations and questions: no work of their own. `to`, `contiguous` and `reshape` are
copies only where they call one, which then counts."""


_FAILS = (TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError,
          OverflowError, StopIteration)  # fmt: skip
"""What formulas raise for shapes that are not what the operator takes."""


class CallWork(Struct, frozen=True):
    flops: int
    all_flops: int
    skipped: int
    executed: int
    """All FLOPs of the kernel: without what a causal one leaves out, with what it does again."""
    bytes: int
    dtype: str


def is_free(op: str) -> bool:
    return op in _FREE


def call_work(op: str, shape: Shape, list_dtype: str = "float32") -> CallWork | None:
    """None where no formula knows the operator or its recorded inputs do not suffice.

    `list_dtype`: the type of lists of tensors, for calls that have no other tensor.
    """
    if find(op) is None or is_free(op):
        return None
    list_dtype = _own_dtype(shape) or list_dtype
    recorded = recorded_call(op, shape, list_dtype)
    if recorded is None:
        return None
    try:
        call, work = _work(recorded.call)
    except _FAILS:
        return None
    if work is None:
        return None
    told = op_work(op, shape, list_dtype)
    moved = told.bytes if told is not None else _least_bytes(call, work, sum(recorded.touched))
    executed = 2 * (work.macs - work.skipped_macs + work.recomputed_macs)
    executed += work.transform_flops + work.other_flops
    if not (0 <= executed < MOST and 0 <= moved < MOST):
        return None
    return CallWork(
        flops=work.flops,
        all_flops=work.flops + work.other_flops,
        skipped=2 * work.skipped_macs,
        executed=executed,
        bytes=moved,
        dtype=_arithmetic(call, list_dtype),
    )


def _work(call: Call) -> tuple[Call, Work | None]:
    if "attention" in call.op and any(
        size > LONGEST_SEQUENCE for t in call.tensors[:4] for size in t.shape
    ):
        return call, None
    # a fused optimizer writes its first list; its bytes are op_work's, which knows the others
    fused = call.op.startswith("aten::_fused_") and isinstance(call.args[0], list)
    outputs = tuple(call.args[0]) if fused else outputs_of(call)
    if outputs is not None:
        call = msgspec.structs.replace(call, outputs=outputs)
    elif not _by_inputs(call.op):
        return call, None
    return call, work_of(call)


def _by_inputs(op: str) -> bool:
    known = find(op)
    return known is not None and known.__module__.rpartition(".")[2] in _BY_INPUTS


def _least_bytes(call: Call, work: Work, touched: int) -> int:
    read = touched if work.read_bytes is None else work.read_bytes
    written = work.written_bytes
    return read + (sum(t.nbytes for t in call.outputs) if written is None else written)


def _own_dtype(shape: Shape) -> str:
    types = (DTYPES.get(str(kind).removeprefix("c10::"), "") for kind in shape.types)
    return next((t for t in types if _is_floating(t)), "")


def _arithmetic(call: Call, list_dtype: str) -> str:
    """Of the first floating operand; a product's first may be a bias, of the same type."""
    tensors = [a for a in call.args if isinstance(a, Tensor)] or list(call.tensors)
    floating = [t.dtype for t in tensors if _is_floating(t.dtype)]
    return next(iter(floating or [t.dtype for t in tensors]), list_dtype)


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
