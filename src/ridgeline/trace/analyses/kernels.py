"""Kernels, copies and fills by name: how often, how long, who launched them."""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formulas import Family, family_of
from ridgeline.records.trace import Category, CategoryRow, KernelRow, Window
from ridgeline.trace.columns import Kind
from ridgeline.trace.links import Links, distinct, sums_by
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import rows_in


def kernels(
    trace: Trace, links: Links, window: Window, limit: int = 50
) -> tuple[tuple[KernelRow, ...], int]:
    """Return the rows by total time, and how many further names there are."""
    rows = rows_in(trace.device, window)
    if not len(rows):
        return (), 0
    dur, names = trace.device.dur[rows], trace.device.name[rows]
    names_found, name = np.unique(names, return_inverse=True)
    total = sums_by(name, dur, len(names_found))
    least, most = (
        np.full(len(names_found), np.iinfo(np.int64).max),
        np.zeros(len(names_found), np.int64),
    )
    np.minimum.at(least, name, dur)
    np.maximum.at(most, name, dur)
    count = np.bincount(name, minlength=len(names_found))
    launcher = _usual_op(trace, links, rows, name, len(names_found))
    kind = np.zeros(len(names_found), np.uint8)
    kind[name] = trace.device.kind[rows]
    whole = max(int(total.sum()), 1)
    table = []
    for i in np.argsort(-total, kind="stable")[:limit].tolist():
        text, op = trace.text(int(names_found[i])), trace.text(int(launcher[i]))
        is_copy = kind[i] != Kind.KERNEL
        table.append(
            KernelRow(
                name=text,
                category="copy" if is_copy else category_of(text, op),
                count=int(count[i]),
                total_ns=int(total[i]),
                share=int(total[i]) / whole,
                mean_ns=int(total[i]) / int(count[i]),
                least_ns=int(least[i]),
                most_ns=int(most[i]),
                op=op,
                tensor_cores=False if is_copy else uses_tensor_cores(text),
            )
        )
    return tuple(table), max(len(names_found) - limit, 0)


def _usual_op(
    trace: Trace, links: Links, rows: NDArray[np.int64], name: NDArray[np.int64], names: int
) -> NDArray[np.int64]:
    """Return for each kernel name the operator name that launches it most often; -1 where none
    does."""
    usual = np.full(names, -1, np.int64)
    op = links.device_op[rows]
    linked = op >= 0
    if not linked.any():
        return usual
    launcher = trace.ops.name[op[linked]].astype(np.int64)
    pairs, number = distinct(name[linked], launcher)
    # the last written is the most frequent
    order = np.argsort(np.bincount(number, minlength=len(pairs)), kind="stable")
    usual[pairs[order, 0]] = pairs[order, 1]
    return usual


MAX_NAME_CHARACTERS = 4096
"""Names of templates have thousands of characters; what a kernel does stands at their beginning."""

Rules = tuple[tuple[re.Pattern[str], Category], ...]


def _rules(*rules: tuple[str, Category]) -> Rules:
    return tuple((re.compile(pattern, re.IGNORECASE), category) for pattern, category in rules)


_KERNELS = _rules(
    (r"^(?:Memcpy|Memset)|CopyDevice|CopyBuffer|fillBuffer", "copy"),
    (r"nccl|rccl|gloo|msccl|nvshmem|cross_device_reduce|(?:one|two)_?shot_?all_?reduce|"
     r"multimem_\w*(?:all|reduce)|allreduce_fusion|symm_mem", "communication"),
    (r"embedding(?!s?_kernel_rotary)(?<!rotary_embedding)|split_lookup|EmbeddingBag", "embedding"),
    (r"rotary|rope_", "elementwise"),
    (r"multi_tensor_apply|FusedAdam|FusedOptimizer|(?:^|[_:<])(?:adamw?|sgd|lamb|lion|adagrad)(?:[_<]|$)|"
     r"amp_update_scale|amp_non_finite", "optimizer"),
    (r"flash_?(?:fwd|bwd|attn|attention)|flash::|fmha|mem_?eff|efficient_attention|attn_fwd|attn_bwd|"
     r"attention(?!_mask)|aotriton|bwd_kernel_dk|bwd_kernel_dq|bwd_preprocess|sdpa|mha_(?:fwd|bwd)|"
     r"reduce_segments|paged_attn|unified_attention|_attn_", "attention"),
    (r"reshape_and_cache|concat_and_cache|copy_blocks", "copy"),
    (r"fprop|dgrad|wgrad|convolve|winograd|conv(?:olution)?[1-3]?d|implicit_gemm|scudnn|hcudnn|"
     r"_conv_|naive_conv|gtcx|Sp3AsmConv|gridwise_conv|im2col|col2im|depthwise|cudnn::cnn|"
     r"conv_?depthwise|igemm", "convolution"),
    (r"batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm|\bbn_(?:fw|bw)|BatchNorm|"
     r"RowwiseMoments|GammaBeta|ComputeFusedParams|LayerNorm|l2norm|weight_norm", "norm"),
    (r"matmul_scatter|routing|bitmatrix|moe_(?:align|sum|permute)|sgl_moe|expert_map", "embedding"),
    (r"CatArray|direct_copy|copy_kernel|\bcopy_|_copy_|copyKernel|nchwToNhwc|nhwcToNchw|transpose|"
     r"FillFunctor|tensor_?transform|SubTensorOp|memset|memcpy|pad_kernel|im2d", "copy"),
    (r"elementwise_kernel_with_index", "elementwise"),
    (r"index|gather|scatter|masked_select|nonzero|DeviceSelect|krn_partial_segment|compute_grad_weight|"
     r"sum_and_scatter|permute_[12]D", "embedding"),
    (r"softmax|SoftMax|nll_loss|cross_entropy|logsumexp|pool|argmax|topk|cumsum|scan_kernel|"
     r"reduce_kernel|reduce_1Block|ReduceOp|warp_?reduce|multinomial|cunn_", "reduction"),
    (r"elementwise|vectorized|silu|gelu|relu|swiglu_kernel|act_and_mul|dropout|fused_bias|add_kernel|"
     r"distribution|threshold|sigmoid|upsample|elemWise", "elementwise"),
)  # fmt: skip
"""The first that matches decides."""

_PRODUCTS = re.compile(
    r"gemm|gemv|cutlass|cublas|Cijk_|nvjet|wgmma|matmul|splitKreduce|dot_kernel|\bmm_|_mm_|_mm\b|"
    r"xmma|wvSplitK|marlin|machete|moe_kernel|rocblas|hipblas|Tensile|RNN|LSTM|GRU|ck::.*Gemm",
    re.IGNORECASE,
)
_LAST = _rules(
    (r"sort|scan|reduce|cub::|thrust|unique|histogram|topk", "reduction"),
    (r"triton_poi", "elementwise"),
)

_OPERATORS = _rules(
    (r"nccl|c10d|record_param_comms|gloo|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
     r"allto|broadcast_coalesced", "communication"),
    (r"attention|sdpa|flash_attn", "attention"),
    (r"conv(?:olution)?(?:[1-3]d|_|$|transpose|backward|depthwise)|Convolution\w*Backward|"
     r"cudnn_convolution|Conv[1-3]D", "convolution"),
    (r"embedding|index|gather|scatter|lookup|nonzero|masked_select|aten::take", "embedding"),
    (r"(?:batch|layer|group|instance|rms|weight)_?norm", "norm"),
    (r"Optimizer\.|_fused_(?:adamw?|sgd|adagrad)|_amp_|multi_tensor", "optimizer"),
    (r"^_?(?:Add|Ba?d?d?b?)?mm\w*Backward|(?:Mm|Addmm|Bmm|Baddbmm|Linear|Matmul)\w*Backward|"
     r"matmul|einsum|::\w*gemm|aten::_scaled_mm|_linear\b", "matmul"),
    (r"(?:Softmax|Sum|Mean|Pool\w*|NllLoss|LogSoftmax|CrossEntropy\w*)\d?Backward|pool|loss",
     "reduction"),
    (r"(?:Mul|Add|Sub|Div|Relu|Gelu|Silu|Sigmoid|Tanh|Pow|Neg|Exp)Backward", "elementwise"),
    (r"(?:ToCopy|Copy|Clone|Cat|Slice|Select)\w*Backward", "copy"),
)  # fmt: skip
_BY_FAMILY: dict[Family, Category] = {
    "attention": "attention",
    "convolution": "convolution",
    "matmul": "matmul",
    "quantized": "matmul",
    "recurrent": "matmul",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "movement": "copy",
}
"""The category of operators that `_OPERATORS` does not name, by the family of their formula."""


@lru_cache(maxsize=65536)
def category_of(kernel: str, op: str = "") -> Category:
    """Return the category of a kernel that an operator launched; without a kernel, the category of
    the operator."""
    kernel, op = kernel[:MAX_NAME_CHARACTERS], op[:MAX_NAME_CHARACTERS]
    if not kernel:
        return _operator(op) or "other"
    generated = inductor_category(kernel)
    if generated is not None:
        return generated
    named = _first(_KERNELS, kernel)
    product = _PRODUCTS.search(kernel) is not None
    # a product with a fused epilogue (gemm_relu) is a product
    if product and named in (None, "elementwise", "reduction", "copy"):
        launched = _operator(op)
        return launched if launched in ("convolution", "attention") else "matmul"
    if named is not None:
        return named
    return _operator(op) or _first(_LAST, kernel) or "other"


def categories(trace: Trace, links: Links, window: Window) -> tuple[CategoryRow, ...]:
    """Return the summed time of device operations by category, the largest first."""
    rows = rows_in(trace.device, window)
    if not len(rows):
        return ()
    device, op = trace.device.take(rows), links.device_op[rows]
    launcher = np.where(op >= 0, trace.ops.name[np.maximum(op, 0)] if len(trace.ops) else -1, -1)
    is_copy = device.kind != Kind.KERNEL
    pairs, pair = distinct(device.name, launcher, is_copy.astype(np.int64))
    sums: dict[Category, list[int]] = {}
    total = sums_by(pair, device.dur, len(pairs))
    count = np.bincount(pair, minlength=len(pairs))
    for i, (name, launcher_name, copies) in enumerate(pairs.tolist()):
        category = "copy" if copies else category_of(trace.text(name), trace.text(launcher_name))
        entry = sums.setdefault(category, [0, 0])
        entry[0] += int(total[i])
        entry[1] += int(count[i])
    whole = max(int(total.sum()), 1)
    table = [
        CategoryRow(category=c, device_ns=ns, count=n, share=ns / whole)
        for c, (ns, n) in sums.items()
    ]
    return tuple(sorted(table, key=lambda row: -row.device_ns))


def _operator(op: str) -> Category | None:
    if not op:
        return None
    named = inductor_category(op) or _first(_OPERATORS, op)
    if named is not None:
        return named
    return _BY_FAMILY.get(family_of(op))


def _first(rules: Rules, text: str) -> Category | None:
    return next((category for pattern, category in rules if pattern.search(text)), None)


_NAME = re.compile(
    r"^triton_(poi|red|per|tem|for|mm|split_scan|helion)_?(?:fused_)?(.*?)(?:_\d+)*$"
)
_MOVES = (
    "to_copy|clone|copy|cat|stack|unsafe_view|view|permute|transpose|t|constant_pad_nd|slice|"
    "select|unsqueeze|squeeze|expand|full|zeros|ones|fill|zeros_like|full_like|ones_like|empty|"
    "new_zeros|arange|split|split_with_sizes|repeat|flip|slice_scatter|select_scatter|roll|"
    "as_strided|moe_forward|detach|alias"
)
_ONLY_MOVES = re.compile(rf"(?:(?:{_MOVES})(?:_|$))+")


def inductor_category(kernel: str) -> Category | None:
    """Return the category of a generated kernel; None for any other name."""
    match = _NAME.match(kernel)
    if match is None:
        return None
    loop, fused = match[1], f"_{match[2]}_"
    if loop == "for":
        return "optimizer"
    if loop in ("tem", "mm"):
        return _template(fused)
    if re.search(r"_(?:native_)?(?:batch|layer|group|instance|rms)_norm", fused):
        return "norm"
    if re.search(r"_(?:mean|var_mean|var)_", fused) and "_rsqrt_" in fused:
        return "norm"
    if loop in ("red", "per", "split_scan"):
        return "reduction"
    if re.search(r"_(?:embedding|index_select|index_put|gather|scatter|index)_", fused):
        return "embedding"
    if _ONLY_MOVES.fullmatch(re.sub("_+", "_", fused).strip("_")):
        return "copy"
    # convolution and addmm in the name of a pointwise kernel are the bias that follows them
    return "elementwise"


def _template(fused: str) -> Category:
    if re.search(r"attention|sdpa", fused):
        return "attention"
    return "convolution" if "conv" in fused else "matmul"


_TENSOR_CORES = re.compile(
    r"hmma|imma_|dmma|[hsi]884|[shi]1688|s16816|h16816|i8816|i16832|s161616|s16832|tensorop|"
    r"wmma|wgmma|gmma|tcgen05|utcmma|nvjet|tf32|bf16bf16|f16f16|e4m3|e5m2|"
    r"xmma_(?:new_)?(?:gemm|fprop|dgrad|wgrad)_(?:f16|bf16|tf32|i8|e4m3|e5m2)|sm[89]\d_xmma|"
    r"sm1\d\d_xmma|_MI\d+x\d+|mfma|flash_(?:fwd|bwd)|flash::|fmha_cutlassF_(?:f16|bf16)|"
    r"fmha_cutlassB_(?:f16|bf16)|cudnn_generated_fort_native_sdpa|marlin|machete",
    re.IGNORECASE,
)
_MULTIPLY_ADD = re.compile(r"simt|ffma", re.IGNORECASE)
"""Plain multiply-adds, whatever else the name says: sm80_xmma_gemm_f32f32_f32f32_…_ffma_….

fmha_cutlassF_f32 is in no list: it may run as three TF32 products, and its name does not say.
"""
_NO_TENSOR_CORES = re.compile(
    r"(?:volta|maxwell|pascal|turing|ampere)_(?:s|d|c|z)gemm|"
    r"(?:volta|maxwell|turing|ampere)_(?:scudnn|dgemm)|gemv|gemmSN|dot_kernel|"
    r"(?:implicit|explicit|precomputed)_convolve_(?:s|d)gemm|convolve_common_engine_float|"
    r"(?:dgrad|wgrad)_\w*engine<float|wgrad_alg0_engine<|dgrad_engine<|"
    r"winograd_nonfused|_sgemm|(?:elementwise|reduce|softmax|scan|CatArray\w*)_?kernel|"
    r"^Memcpy|^Memset|^nccl|_MAC_|VALU|\bsgemm_",
    re.IGNORECASE,
)


def uses_tensor_cores(kernel: str) -> bool | None:
    """Return whether a kernel uses tensor cores, by its name; None where the name does not show it.

    A name of plain multiply-adds decides first, then one of tensor cores: `s1688gemm` and
    `tensorop` are tensor cores also in a name with sgemm; `ampere_sgemm_128x64_tn` is plain FMA.
    """
    if _MULTIPLY_ADD.search(kernel):
        return False
    if _TENSOR_CORES.search(kernel):
        return True
    return False if _NO_TENSOR_CORES.search(kernel) else None
