"""FLOPs and bytes of one recorded call, by the formulas shared with live models."""

from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.cost.formulas import Call, Tensor, Work, family_of, find, work_of
from ridgeline.trace.analyses.recorded_calls import DTYPES, Recorded, outputs_of, recorded_call
from ridgeline.trace.trace import Shape

_UNARY = (
    "abs neg exp log sqrt rsqrt sin cos tanh sigmoid relu silu erf ceil floor round sign square "
    "reciprocal logical_not bitwise_not isnan isfinite exp2 log2 log1p expm1"
)
_BINARY = (
    "mul div pow maximum minimum eq ne lt le gt ge bitwise_and bitwise_or logical_and logical_or "
    "clamp_min clamp_max fmod remainder mm bmm gelu hardtanh_backward tanh_backward "
    "sigmoid_backward silu_backward cat"
)
_TERNARY = "add sub clamp where threshold_backward lerp index_select _softmax _log_softmax gather"
_FOUR = "addcmul addcdiv sum mean _softmax_backward_data _log_softmax_backward_data"
_ARITY = {
    name: count
    for count, names in ((1, _UNARY), (2, _BINARY), (3, _TERNARY), (4, _FOUR), (5, "addmm baddbmm"))
    for name in names.split()
}
"""Arguments of the functional form: a tensor after them is where the result goes (`out=`)."""

_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_",
               "exponential_")  # fmt: skip
_FUSED_STATES = {"_fused_adam_": (0, 2, 3), "_fused_adamw_": (0, 2, 3), "_fused_sgd_": (0, 2)}
"""The lists that a fused optimizer writes: parameters and moments, not gradients."""
_FAILS = (TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError,
          OverflowError, StopIteration)  # fmt: skip
"""The errors that formulas raise for shapes that the operator does not take."""
TOLD_BY_BACKWARD = ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")


MAX_CALL_WORK = 10**24
"""More FLOPs or bytes of one call come from damaged sizes."""
MAX_SEQUENCE_LENGTH = 2**22
"""A causal mask is summed row by row; no attention has a longer sequence."""


class OpWork(Struct, frozen=True):
    flops: int
    bytes: int
    dtype: str
    """The type of the first floating tensor, else of the first tensor."""
    dtype_of_list: bool = False


def op_work(
    op: str, shape: Shape, list_dtype: str = "", result: tuple[int, ...] | None = None
) -> OpWork | None:
    """Return the work of an operator; None where no formula knows it or its recorded inputs do not
    suffice. `result` is the size of its result, where something else in the trace tells it."""
    recorded = recorded_call(op, shape, list_dtype)
    if recorded is None:
        return None
    try:
        recorded = _older_backward(_without_out(recorded))
        call = recorded.call
        if result is not None:
            call = msgspec.structs.replace(call, outputs=(Tensor(result, call.tensor(0).dtype),))
        outputs = _outputs(call)
        if outputs is None:
            return None
        call = msgspec.structs.replace(call, outputs=outputs)
        work = None if _endless(call) else work_of(call)
        if work is None:
            return None
        flops, moved = _flops(work), _bytes(recorded, call, work)
        alone = [arg for arg in call.args if isinstance(arg, Tensor)]
        dtype = _dtype(alone or list(call.tensors))
        sane = 0 <= flops < MAX_CALL_WORK and 0 <= moved < MAX_CALL_WORK
        return OpWork(flops, moved, dtype, not alone) if sane else None
    except _FAILS:
        return None


def _endless(call: Call) -> bool:
    long = any(size > MAX_SEQUENCE_LENGTH for t in call.tensors[:4] for size in t.shape)
    return long and "attention" in call.op


def _flops(work: Work) -> int:
    """Return the FLOPs of the kernel: without what a causal kernel leaves out, with what it
    computes again."""
    macs = work.macs - work.skipped_macs + work.recomputed_macs
    return 2 * macs + work.transform_flops + work.other_flops


def _bytes(recorded: Recorded, call: Call, work: Work) -> int:
    name = call.op.partition("::")[2]
    read = work.read_bytes
    if read is None:
        read = sum(recorded.touched[1:] if name in _OVERWRITES else recorded.touched)
    written = work.written_bytes
    if written is None:
        written = sum(t.nbytes for t in call.outputs)
    return read + written


def _dtype(tensors: list[Tensor]) -> str:
    floating = [t.dtype for t in tensors if t.dtype.startswith(("float", "bfloat", "complex"))]
    return next(iter(floating or [t.dtype for t in tensors]), "")


def _outputs(call: Call) -> tuple[Tensor, ...] | None:
    name = call.op.partition("::")[2]
    if name in _FUSED_STATES:
        return tuple(t for i in _FUSED_STATES[name] for t in call.args[i])
    if call.op == "aten::convolution_backward" and call.outputs:
        return call.outputs
    return outputs_of(call)


def _without_out(recorded: Recorded) -> Recorded:
    name = recorded.call.op.partition("::")[2]
    arity = _ARITY.get(name)
    args = recorded.call.args
    if arity is None or len(args) <= arity or not isinstance(args[arity], Tensor):
        return recorded
    call = msgspec.structs.replace(recorded.call, args=args[:arity])
    return Recorded(call, recorded.touched[:arity])


def _older_backward(recorded: Recorded) -> Recorded:
    """Before 2022 each gradient of a convolution was an operator of its own, named by backend.

    `…_backward_input(sizes, grad, weight, …)` is one; the weight's does not say the weight's size,
    so `…_backward(x, grad, weight, …)`, which calls it, stands for it.
    """
    call = recorded.call
    backend, _, part = call.op.partition("_convolution_backward")
    if backend not in ("aten::cudnn", "aten::miopen") or part not in ("", "_input"):
        return recorded
    grad, weight = call.tensor(1), call.tensor(2)
    if part == "_input":
        x: Any = Tensor((grad.shape[0],), grad.dtype)
        touched = (recorded.touched[1], 0, recorded.touched[2])
        mask, outputs = (True, False, False), (x,)
    else:
        x = call.tensor(0)
        touched = (recorded.touched[1], recorded.touched[0], 0)
        mask, outputs = (False, True, False), (weight,)
    args = (grad, x, weight, None, None, None, None, False, None, None, mask)
    return Recorded(Call("aten::convolution_backward", args, (), outputs), (*touched, *(0,) * 8))


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
    """Return the work of a call; None where no formula knows it or its recorded inputs do not
    suffice. `list_dtype` is the type of lists of tensors, for calls without another tensor."""
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
    if not (0 <= executed < MAX_CALL_WORK and 0 <= moved < MAX_CALL_WORK):
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
        size > MAX_SEQUENCE_LENGTH for t in call.tensors[:4] for size in t.shape
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
    return family_of(op) in _BY_INPUTS


def _least_bytes(call: Call, work: Work, touched: int) -> int:
    read = touched if work.read_bytes is None else work.read_bytes
    written = work.written_bytes
    return read + (sum(t.nbytes for t in call.outputs) if written is None else written)


def _own_dtype(shape: Shape) -> str:
    types = (DTYPES.get(str(kind).removeprefix("c10::"), "") for kind in shape.types)
    return next((t for t in types if _is_floating(t)), "")


def _arithmetic(call: Call, list_dtype: str) -> str:
    """Return the type of the first floating operand. The first operand of a product may be a bias,
    of the same type."""
    tensors = [a for a in call.args if isinstance(a, Tensor)] or list(call.tensors)
    floating = [t.dtype for t in tensors if _is_floating(t.dtype)]
    return next(iter(floating or [t.dtype for t in tensors]), list_dtype)


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
