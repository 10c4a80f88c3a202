"""What a kernel that torch.compile wrote does, from the operators in its name.

`triton_red_fused_add_mean_mul_pow_rsqrt_0`: how it loops (poi elementwise, red and per reductions,
tem a template, for a list), then the fused operators in alphabetical order, then a number.
"""

import re

from ridgeline.records.trace import Category

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
    """The category of a generated kernel, None for any other name."""
    found = _NAME.match(kernel)
    if found is None:
        return None
    loop, fused = found[1], f"_{found[2]}_"
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
