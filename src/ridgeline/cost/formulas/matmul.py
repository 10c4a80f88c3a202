"""Matrix products. A complex multiply-accumulate is four real ones."""

from math import prod

from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import formula


def _macs(a: Tensor, columns: int) -> int:
    """Every element of `a` (of a sparse one, every stored element) meets each column once."""
    elements = a.numel if a.stored is None else a.stored
    return elements * columns * (4 if a.is_complex else 1)


def _product_macs(a: Tensor, b: Tensor) -> int:
    if b.stored is not None and a.stored is None:  # dense x sparse: stored elements meet rows
        return _macs(b, a.shape[-2])
    return _macs(a, b.shape[-1])


@formula("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::bmm", "aten::_sparse_mm")
def product(call: Call) -> Work:
    return Work(macs=_product_macs(call.tensor(0), call.tensor(1)))


@formula("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::_sparse_addmm")
def product_and_add(call: Call) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    return Work(macs=_product_macs(a, b), other_flops=prod(a.shape[:-1]) * b.shape[-1])


@formula("aten::addbmm")
def products_summed(call: Call) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    return Work(macs=_macs(a, b.shape[-1]))


@formula("aten::mv", "aten::dot", "aten::vdot")
def vector_product(call: Call) -> Work:
    return Work(macs=_macs(call.tensor(0), 1))


@formula("aten::addmv")
def vector_product_and_add(call: Call) -> Work:
    matrix = call.tensor(1)
    return Work(macs=_macs(matrix, 1), other_flops=matrix.shape[0])


@formula("aten::addr")
def outer_and_add(call: Call) -> Work:
    rows, columns = call.tensor(1), call.tensor(2)
    return Work(macs=_macs(rows, columns.numel))


@formula("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
def linear(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    return Work(macs=_macs(x, weight.shape[0]))


@formula("aten::linear_backward", "aten::mkldnn_linear_backward")
def linear_backward(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(2)
    mask = call.get("output_mask", 3) or (True, True)
    return Work(macs=_macs(x, weight.shape[0]) * sum(bool(m) for m in mask[:2]))


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_product(call: Call) -> Work:
    """Rows or columns are split among groups, so each row of a 2-D operand meets one group."""
    a, b = call.tensor(0), call.tensor(1)
    return Work(macs=_macs(a, b.shape[-1]))


@formula("aten::_weight_int8pack_mm")
def int8_weight_product(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)  # weight is [out, in]
    return Work(macs=x.numel * weight.shape[0])


@formula(
    "aten::_weight_int4pack_mm",
    "aten::_weight_int4pack_mm_for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros",
)
def int4_weight_product(call: Call) -> Work:
    """The packed weight hides its shape; rows of x times the result's columns do not."""
    x = call.tensor(0)
    return Work(macs=x.numel * call.outputs[0].shape[-1])


@formula("aten::_trilinear")
def trilinear(call: Call) -> Work:
    """Multiply three broadcast operands and sum: one MAC and one more multiply each."""
    shapes: list[tuple[int, ...]] = []
    for operand, name, index in ((0, "expand1", 3), (1, "expand2", 4), (2, "expand3", 5)):
        shape = list(call.tensor(operand).shape)
        for dim in sorted(call.get(name, index)):
            shape.insert(dim, 1)
        shapes.append(tuple(shape))
    volume = prod(max(sizes) for sizes in zip(*shapes, strict=True))
    return Work(macs=volume, other_flops=volume)


@formula("aten::_cdist_forward", "aten::_euclidean_dist")
def pairwise_distance(call: Call) -> Work:
    """A difference and a multiply-accumulate for each pair and coordinate, then a root."""
    x, y = call.tensor(0), call.tensor(1)
    pairs = max(prod(x.shape[:-2]), prod(y.shape[:-2])) * x.shape[-2] * y.shape[-2]
    volume = pairs * x.shape[-1]
    return Work(macs=volume, other_flops=volume + pairs)


@formula("aten::_cdist_backward")
def pairwise_distance_backward(call: Call) -> Work:
    x, y = call.tensor(1), call.tensor(2)
    pairs = max(prod(x.shape[:-2]), prod(y.shape[:-2])) * x.shape[-2] * y.shape[-2]
    return Work(macs=pairs * x.shape[-1], other_flops=2 * pairs * x.shape[-1])


@formula("aten::_pdist_forward")
def own_distances(call: Call) -> Work:
    rows, width = call.tensor(0).shape
    pairs = rows * (rows - 1) // 2
    return Work(macs=pairs * width, other_flops=pairs * (width + 1))
