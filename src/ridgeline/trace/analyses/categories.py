"""What sort of work a kernel does: by its name, else by the operator that launched it.

A plain matrix product launched by a convolution is that convolution (cuDNN runs many as GEMMs), so
for kernels whose name says no more than "gemm" the operator is asked first.
"""

import re
from functools import lru_cache

import numpy as np

from ridgeline.cost.formulas import find
from ridgeline.records.trace import Category, CategoryRow, Window
from ridgeline.trace.analyses.distinct import distinct
from ridgeline.trace.analyses.inductor import inductor_category
from ridgeline.trace.analyses.within import within
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

LONGEST = 4096
"""Characters of a name that are read: templates run to thousands, what they do stands in front."""

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
_FAMILIES: dict[str, Category] = {
    "attention": "attention",
    "convolution": "convolution",
    "matmul": "matmul",
    "quantized": "matmul",
    "recurrent": "matmul",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "movement": "copy",
}
"""A formula's file is its family."""


@lru_cache(maxsize=65536)
def category_of(kernel: str, op: str = "") -> Category:
    """The category of a kernel launched by an operator; of the operator alone with no kernel."""
    kernel, op = kernel[:LONGEST], op[:LONGEST]
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
    """Summed time of device operations by category, the largest first."""
    rows = within(trace.device, window)
    if not len(rows):
        return ()
    device, op = trace.device.take(rows), links.device_op[rows]
    launcher = np.where(op >= 0, trace.ops.name[np.maximum(op, 0)] if len(trace.ops) else -1, -1)
    plain = device.kind != Kind.KERNEL
    pairs, pair = distinct(device.name, launcher, plain.astype(np.int64))
    sums: dict[Category, list[int]] = {}
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, pair, device.dur)
    count = np.bincount(pair, minlength=len(pairs))
    for i, (name, by, copies) in enumerate(pairs.tolist()):
        category = "copy" if copies else category_of(trace.text(name), trace.text(by))
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
    known = find(op)
    if known is None:
        return None
    return _FAMILIES.get(known.__module__.rpartition(".")[2])


def _first(rules: Rules, text: str) -> Category | None:
    return next((category for pattern, category in rules if pattern.search(text)), None)
