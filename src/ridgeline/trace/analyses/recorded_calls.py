"""The recorded inputs of a call: as a line of text (`[32, 3, 224, 224] [64, 3, 7, 7] float`), as a
call that the formulas of `cost` understand, and as the FLOPs and bytes that they give for it."""

import ast
from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.cost.formulas import Call, Tensor, Work, family_of, find, work_of
from ridgeline.cost.formulas.call import ITEM_BYTES
from ridgeline.cost.formulas.products import output_sites
from ridgeline.trace.trace import Shape

_NO_TENSOR = frozenset({
    "", "Scalar", "ScalarList", "Int", "Double", "Bool", "Float", "Long", "GenericList", "String",
    "Device", "None", "Dict", "Generator", "Stream", "Layout", "ScalarType",
})  # fmt: skip
"""Types that are no tensor. Tensors have C++ names (`float`, `long int`), scalars capitals."""
LIST = "TensorList"
MAX_TENSORS = 6


def is_tensor(kind: Any) -> bool:
    return isinstance(kind, str) and kind not in _NO_TENSOR and kind != LIST


def shape_text(shape: Shape) -> str:
    """Return the sizes of the tensors, then each of their types once; scalars are left out."""
    parts: list[str] = []
    types: list[str] = []
    for index, dims in enumerate(shape.dims):
        kind = shape.types[index] if index < len(shape.types) else None
        if kind is None and dims:
            parts.append(_sizes(dims))  # traces that recorded sizes and no types
        elif kind == LIST and dims:
            parts.append(_list(dims))
        elif is_tensor(kind):
            parts.append(_sizes(dims))
            types.append(str(kind).removeprefix("c10::").lower())
    if len(parts) > MAX_TENSORS:
        parts = [*parts[:MAX_TENSORS], f"+{len(parts) - MAX_TENSORS} more"]
    return " ".join([*parts, ", ".join(dict.fromkeys(types))]).strip()


def _sizes(dims: Any) -> str:
    if not isinstance(dims, list):
        return str(dims)
    if any(isinstance(d, list) for d in dims):
        return _list(dims)
    return "[" + ", ".join(str(d) for d in dims) + "]"


def _list(dims: Any) -> str:
    """Return `3x[16, 64]` where all are alike, else the first and how many more there are."""
    if not isinstance(dims, list) or not dims:
        return "[]"
    texts = [_sizes(d) for d in dims]
    if len(set(texts)) == 1:
        return f"{len(texts)}x{texts[0]}"
    return f"({texts[0]} +{len(texts) - 1} more)"


DTYPES = {
    "float": "float32", "double": "float64", "BFloat16": "bfloat16", "Half": "float16",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short int": "int16", "short": "int16", "signed char": "int8", "char": "int8",
    "unsigned char": "uint8", "bool": "bool", "unsigned short": "uint16", "unsigned int": "uint32",
    "unsigned long": "uint64", "complex<float>": "complex64", "complex<double>": "complex128",
    "complex<Half>": "complex32", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "Float8_e8m0fnu": "float8_e8m0fnu", "Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "qint8": "qint8", "quint8": "quint8", "qint32": "qint32",
}  # fmt: skip
"""C++ names as torch records them, without `c10::`."""

_MAX_LIST_CHARACTERS = 4000
"""A list of scalars longer than this is not read."""


class _Unrecorded:
    """Stands where a value is not known; every use of it says so."""

    def __bool__(self) -> bool:
        raise TypeError("an argument was not recorded")

    def __iter__(self) -> Any:
        raise TypeError("an argument was not recorded")

    def __int__(self) -> int:
        raise TypeError("an argument was not recorded")

    __index__ = __int__


UNRECORDED = _Unrecorded()


class Recorded(Struct, frozen=True):
    call: Call
    touched: tuple[int, ...]
    """Bytes of each argument's distinct elements; 0 for what is no tensor."""


def recorded_call(op: str, shape: Shape, list_dtype: str = "") -> Recorded | None:
    """Return the call; None where sizes or types are missing. `list_dtype` is the type of lists of
    tensors, which traces leave out: the name of the kernel tells it."""
    if not shape.dims or len(shape.types) < len(shape.dims):
        return None
    # an empty list beside filled ones is empty; where none is filled, lists were not recorded
    lists = any(kind == LIST and dims for kind, dims in zip(shape.types, shape.dims, strict=False))
    args: list[Any] = []
    touched: list[int] = []
    for index, dims in enumerate(shape.dims):
        kind = shape.types[index]
        strides = shape.strides[index] if index < len(shape.strides) else None
        if kind == LIST:
            tensors = _tensors(dims, list_dtype) if lists else None
            if tensors is None:
                return None
            args.append(tensors)
            touched.append(sum(t.nbytes for t in tensors))
        elif is_tensor(kind):
            tensor = _tensor(dims, kind)
            if tensor is None:
                return None
            args.append(tensor)
            touched.append(_touched(tensor, strides))
        else:
            args.append(_scalar(shape, index, kind))
            touched.append(0)
    return Recorded(Call(op=op, args=tuple(args)), tuple(touched))


def _tensor(dims: Any, kind: Any) -> Tensor | None:
    dtype = DTYPES.get(str(kind).removeprefix("c10::"))
    sizes = sizes_of(dims)
    return None if dtype is None or sizes is None else Tensor(sizes, dtype)


def _tensors(dims: Any, dtype: str) -> list[Tensor] | None:
    if not isinstance(dims, list) or not dtype:
        return None
    sizes = [sizes_of(entry) for entry in dims]
    return None if None in sizes else [Tensor(s, dtype) for s in sizes if s is not None]


def sizes_of(dims: Any) -> tuple[int, ...] | None:
    """Return the sizes of a tensor; None where the file holds something else in their place."""
    if not isinstance(dims, list):
        return None
    if any(isinstance(d, bool) or not isinstance(d, int) or not 0 <= d < 2**40 for d in dims):
        return None
    return tuple(dims)


def _touched(tensor: Tensor, strides: Any) -> int:
    """Return the elements that are read: an expanded dimension (stride 0) is one element deep."""
    if not isinstance(strides, list) or len(strides) != len(tensor.shape):
        return tensor.nbytes
    distinct = prod(n for n, stride in zip(tensor.shape, strides, strict=True) if stride or n == 0)
    return distinct * ITEM_BYTES.get(tensor.dtype, 4)


def _scalar(shape: Shape, index: int, kind: Any) -> Any:
    if index >= len(shape.concrete):
        return UNRECORDED
    text = shape.concrete[index]
    if not isinstance(text, str) or len(text) > _MAX_LIST_CHARACTERS:
        return UNRECORDED
    if text == "":
        return UNRECORDED if kind in ("Scalar", "ScalarList") else None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


Outputs = tuple[Tensor, ...]
Rule = Callable[[Call], Outputs]

_BITS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and",
         "logical_or", "logical_not", "logical_xor")  # fmt: skip
_RANK = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
_SCALAR_TYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16",
                 6: "float32", 7: "float64", 11: "bool", 15: "bfloat16"}  # fmt: skip
"""torch's numbers of dtypes, as a concrete input shows them."""

# strides, padding and dilation by position, where the schema has them
_CONVOLUTIONS = {
    "convolution": (3, 4, 5), "_convolution": (3, 4, 5), "convolution_overrideable": (3, 4, 5),
    "cudnn_convolution": (3, 2, 4), "miopen_convolution": (4, 3, 5),
    "miopen_depthwise_convolution": (4, 3, 5), "mkldnn_convolution": (4, 3, 5),
    "cudnn_convolution_relu": (3, 4, 5), "cudnn_convolution_add_relu": (5, 6, 7),
    "_slow_conv2d_forward": (4, 5, None), "slow_conv3d_forward": (4, 5, None),
    "_conv_depthwise2d": (4, 5, 6), "conv_depthwise3d": (4, 5, 6),
    "slow_conv_dilated2d": (4, 5, 6), "slow_conv_dilated3d": (4, 5, 6),
}  # fmt: skip


def outputs_of(call: Call) -> Outputs | None:
    """Return the results; () where they are small beside the inputs; None where no rule knows
    them."""
    name = call.op.partition("::")[2]
    if name.startswith("_foreach_"):
        return () if name.endswith(("_norm", "_max")) else tuple(call.args[0])
    if name.endswith("_") and not name.endswith("__"):
        return (call.tensor(0),)
    if name in _RULES:
        return _RULES[name](call)
    if name in _CONVOLUTIONS:
        return _convolution(call, *_CONVOLUTIONS[name])
    return _elementwise(call) if family_of(call.op) == "elementwise" else None


def _elementwise(call: Call) -> Outputs:
    tensors = call.tensors
    rank = max(len(t.shape) for t in tensors)
    shapes = [(1,) * (rank - len(t.shape)) + t.shape for t in tensors]
    shape = tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*shapes, strict=True))
    name = call.op.partition("::")[2]
    return (Tensor(shape, "bool" if name in _BITS else _promoted(tensors)),)


def _promoted(tensors: tuple[Tensor, ...]) -> str:
    """Return the widest type; a tensor without dimensions (a Python number) widens nothing."""
    counted = [t for t in tensors if t.shape] or list(tensors)
    return max((t.dtype for t in counted), key=lambda d: _RANK.index(d) if d in _RANK else 6)


def _product(first: int) -> Rule:
    def rule(call: Call) -> Outputs:
        a, b = call.tensor(first), call.tensor(first + 1)
        if a.shape[-1] != b.shape[-2]:
            raise TypeError(f"{call.op}: {a.shape} and {b.shape} do not multiply")
        return (Tensor((*a.shape[:-1], b.shape[-1]), a.dtype),)

    return rule


def _linear(call: Call) -> Outputs:
    x, weight = call.tensor(0), call.tensor(1)
    return (Tensor((*x.shape[:-1], weight.shape[0]), x.dtype),)


def _scaled_product(call: Call) -> Outputs:
    a, b = call.tensor(0), call.tensor(1)
    kinds = [_SCALAR_TYPES.get(v) for v in call.args[2:] if type(v) is int]
    dtype = next((k for k in kinds if k), "bfloat16")
    return (Tensor((a.shape[0], b.shape[-1]), dtype),)


def _convolution(call: Call, stride: int, padding: int, dilation: int | None) -> Outputs:
    if call.outputs:  # told by the backward of the same trace
        return call.outputs
    x, weight = call.tensor(0), call.tensor(1)
    steps = [call.args[i] for i in (stride, padding)]
    spread = 1 if dilation is None else call.args[dilation]
    if call.op.endswith(("::convolution", "::_convolution")) and bool(call.args[6]):
        return _transposed(x, weight, steps, spread, call.args[7], call.args[8])
    sites = output_sites(x, weight, steps[0], steps[1], spread)
    return (Tensor((x.shape[0], weight.shape[0], *sites), x.dtype),)


def _transposed(
    x: Tensor, weight: Tensor, steps: list[Any], spread: Any, extra: Any, groups: Any
) -> Outputs:
    dims = len(x.shape) - 2
    stride, padding, dilation, more = (
        list(v) * (dims if len(v) == 1 else 1) for v in (*steps, spread, extra)
    )
    sites = [
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, k, s, p, d, m in zip(
            x.shape[2:], weight.shape[2:], stride, padding, dilation, more, strict=True
        )
    ]
    return (Tensor((x.shape[0], weight.shape[1] * int(groups), *sites), x.dtype),)


def _convolution_backward(call: Call) -> Outputs:
    mask = call.args[10]
    wanted = zip((call.tensor(1), call.tensor(2)), tuple(mask), strict=False)
    return tuple(t for t, asked in wanted if asked)


def _attention(first: int, backward: bool) -> Rule:
    def rule(call: Call) -> Outputs:
        q, k, v = (call.tensor(first + i) for i in range(3))
        return (q, k, v) if backward else (Tensor((*q.shape[:-1], v.shape[-1]), q.dtype),)

    return rule


def _like(index: int, *more: int) -> Rule:
    return lambda call: tuple(call.tensor(i) for i in (index, *more))


def _reduced(call: Call) -> Outputs:
    """Return no output: a reduced result is small beside what was read, and bytes are a lower bound
    anyway."""
    return ()


def _cast(call: Call) -> Outputs:
    x, kind = call.tensor(0), call.args[1]
    return (Tensor(x.shape, _SCALAR_TYPES[kind] if kind is not None else x.dtype),)


def _concatenated(call: Call) -> Outputs:
    tensors = call.args[0]
    return (Tensor((sum(t.numel for t in tensors),), tensors[0].dtype),)


def _picked(call: Call) -> Outputs:
    table, index = call.tensor(0), call.tensor(2)
    dim = int(call.args[1])
    sizes = list(table.shape)
    sizes[dim] = index.numel
    return (Tensor(tuple(sizes), table.dtype),)


def _embedded(call: Call) -> Outputs:
    table, index = call.tensor(0), call.tensor(1)
    return (Tensor((*index.shape, table.shape[-1]), table.dtype),)


def _embedding_gradient(call: Call) -> Outputs:
    grad, rows = call.tensor(0), int(call.args[2])
    return (Tensor((rows, grad.shape[-1]), grad.dtype),)


def _gathered(call: Call) -> Outputs:
    return (Tensor(call.tensor(2).shape, call.tensor(0).dtype),)


def _pooled(call: Call) -> Outputs:
    x = call.tensor(0)
    dims = 3 if "3d" in call.op else 1 if "1d" in call.op else 2
    kernel, stride, padding = (_each(call.args[i], dims) for i in (1, 2, 3))
    steps = zip(x.shape[-dims:], kernel, stride or kernel, padding, strict=True)
    sites = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in steps)
    result = Tensor((*x.shape[:-dims], *sites), x.dtype)
    return (result, Tensor(result.shape, "int64")) if "indices" in call.op else (result,)


def _each(value: Any, dims: int) -> list[int]:
    values = list(value) if not isinstance(value, int) else [value]
    return values * dims if len(values) == 1 else values


def _resized(call: Call) -> Outputs:
    x, size = call.tensor(0), list(call.args[1])
    return (Tensor((*x.shape[: len(x.shape) - len(size)], *size), x.dtype),)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), _product(1)),
    "_scaled_mm": _scaled_product,
    "linear": _linear,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
         "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_attention_math", "_flash_attention_forward",
         "_efficient_attention_forward", "_flash_attn_forward"), _attention(0, False)),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_backward",
         "_scaled_dot_product_efficient_attention_backward",
         "_scaled_dot_product_cudnn_attention_backward", "_flash_attention_backward",
         "_efficient_attention_backward", "_flash_attn_backward"), _attention(1, True)),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "native_layer_norm", "native_batch_norm", "cudnn_batch_norm",
         "miopen_batch_norm", "native_group_norm", "_fused_rms_norm", "_softmax_backward_data",
         "_log_softmax_backward_data", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
         "batch_norm_elemt", "cumsum", "cumprod", "clone", "zeros_like", "tril", "triu", "flip",
         "_native_batch_norm_legit", "_safe_softmax", "roll"), _like(0)),
    **dict.fromkeys(
        ("native_layer_norm_backward", "native_batch_norm_backward", "native_group_norm_backward",
         "_fused_rms_norm_backward", "max_pool2d_with_indices_backward", "avg_pool2d_backward",
         "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "nll_loss_backward"), _like(1)),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "argmax", "argmin", "prod", "any", "all", "var", "std",
         "var_mean", "linalg_vector_norm", "norm", "logsumexp", "nll_loss_forward", "mse_loss",
         "_adaptive_avg_pool2d", "batch_norm_stats", "batch_norm_backward_reduce", "max", "min",
         "nansum", "count_nonzero"), _reduced),
    "_to_copy": _cast,
    "cat": _concatenated,
    "index_select": _picked,
    "embedding": _embedded,
    "embedding_dense_backward": _embedding_gradient,
    "gather": _gathered,
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "avg_pool3d",
                     "max_pool3d_with_indices"), _pooled),
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _resized),
}  # fmt: skip


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
"""The argument lists that a fused optimizer writes: parameters and moments, not gradients."""
_FORMULA_ERRORS = (TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError,
          OverflowError, StopIteration)  # fmt: skip
"""The errors that formulas raise for shapes that the operator does not take."""
SIZED_BY_BACKWARD = ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")


MAX_CALL_WORK = 10**24
"""A call with more FLOPs or bytes has damaged sizes and is not counted."""
MAX_SEQUENCE_LENGTH = 2**22
"""Attention with a longer sequence is not counted: its mask is summed row by row, and such a length
is a damaged size."""


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
        work = None if _is_too_long(call) else work_of(call)
        if work is None:
            return None
        flops, bytes_moved = _flops(work), _bytes(recorded, call, work)
        of_list = not any(isinstance(arg, Tensor) for arg in call.args)
        is_plausible = 0 <= flops < MAX_CALL_WORK and 0 <= bytes_moved < MAX_CALL_WORK
        return OpWork(flops, bytes_moved, _dtype(call), of_list) if is_plausible else None
    except _FORMULA_ERRORS:
        return None


def _is_too_long(call: Call) -> bool:
    long = any(size > MAX_SEQUENCE_LENGTH for t in call.tensors[:4] for size in t.shape)
    return long and "attention" in call.op


def _flops(work: Work) -> int:
    """Return the FLOPs that the kernel executes: without those that a causal kernel skips, with
    those that it repeats."""
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


def _dtype(call: Call) -> str:
    """Return the type of the first floating operand, else of the first. The first operand of a
    product may be a bias, of the same type."""
    tensors = [arg for arg in call.args if isinstance(arg, Tensor)] or list(call.tensors)
    floating = [t.dtype for t in tensors if _is_floating(t.dtype)]
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
    """Return the call of a convolution's backward in today's form. Before 2022, each gradient was
    an operator of its own, named by backend.

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
"""Families whose formulas need no result, or raise without it. Movement needs the result."""

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
"""Views, allocations and queries, which do no work. `to`, `contiguous` and `reshape` may call a
copy, which then counts itself."""


class CallWork(Struct, frozen=True):
    flops: int
    all_flops: int
    skipped: int
    executed: int
    """The FLOPs that the kernel executes: without those that a causal kernel skips, with those that
    it repeats."""
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
    except _FORMULA_ERRORS:
        return None
    if work is None:
        return None
    kernel_work = op_work(op, shape, list_dtype)
    bytes_moved = kernel_work.bytes if kernel_work is not None else _bytes(recorded, call, work)
    executed = _flops(work)
    if not (0 <= executed < MAX_CALL_WORK and 0 <= bytes_moved < MAX_CALL_WORK):
        return None
    return CallWork(
        flops=work.flops,
        all_flops=work.flops + work.other_flops,
        skipped=2 * work.skipped_macs,
        executed=executed,
        bytes=bytes_moved,
        dtype=_dtype(call) or list_dtype,
    )


def _work(call: Call) -> tuple[Call, Work | None]:
    if _is_too_long(call):
        return call, None
    # a fused optimizer writes its first list; its bytes are op_work's, which knows the others
    fused = call.op.startswith("aten::_fused_") and isinstance(call.args[0], list)
    outputs = tuple(call.args[0]) if fused else outputs_of(call)
    if outputs is not None:
        call = msgspec.structs.replace(call, outputs=outputs)
    elif family_of(call.op) not in _BY_INPUTS:
        return call, None
    return call, work_of(call)


def _own_dtype(shape: Shape) -> str:
    types = (DTYPES.get(str(kind).removeprefix("c10::"), "") for kind in shape.types)
    return next((t for t in types if _is_floating(t)), "")


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
