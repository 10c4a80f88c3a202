"""FFTs and matrix factorisations: heavy, and not made of multiply-accumulates.

A complex FFT of n points is 5 n log2 n FLOPs, a real one half that (the usual radix-2 account);
factorisations have LAPACK's leading terms. Iterative ones (svd, eig) depend on the data and have no
formula on purpose: they show up as not counted.
"""

from math import log2, prod

from ridgeline.cost.formulas.call import Call, Work
from ridgeline.cost.formulas.registry import formula


def _fft_flops(elements: int, points: int, per_point: float) -> int:
    return round(per_point * elements * log2(points)) if points > 1 else 0


def _points(call: Call, shape: tuple[int, ...]) -> int:
    return prod(shape[d] for d in call.get("dim", 1))


@formula("aten::_fft_c2c")
def complex_fft(call: Call) -> Work:
    x = call.tensor(0)
    return Work(transform_flops=_fft_flops(x.numel, _points(call, x.shape), 5))


@formula("aten::_fft_r2c")
def real_fft(call: Call) -> Work:
    x = call.tensor(0)
    return Work(transform_flops=_fft_flops(x.numel, _points(call, x.shape), 2.5))


@formula("aten::_fft_c2r")
def inverse_real_fft(call: Call) -> Work:
    shape = list(call.tensor(0).shape)
    shape[call.get("dim", 1)[-1]] = call.get("last_dim_size", 3)
    return Work(transform_flops=_fft_flops(prod(shape), _points(call, tuple(shape)), 2.5))


@formula("aten::linalg_cholesky_ex", "aten::cholesky", "aten::_linalg_check_errors_cholesky")
def cholesky(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=a.numel * a.shape[-1] // 3)


@formula(
    "aten::linalg_lu_factor_ex", "aten::_linalg_det", "aten::_linalg_slogdet", "aten::linalg_lu"
)
def lu(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=2 * a.numel * a.shape[-1] // 3)


@formula("aten::linalg_inv_ex")
def inverse(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=2 * a.numel * a.shape[-1])


@formula("aten::_linalg_solve_ex")
def solve(call: Call) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    return Work(transform_flops=2 * a.numel * a.shape[-1] // 3 + 2 * b.numel * a.shape[-1])


@formula("aten::linalg_lu_solve", "aten::cholesky_solve")
def solve_factored(call: Call) -> Work:
    factor, b = sorted((t for t in call.tensors if len(t.shape) >= 2), key=lambda t: -t.numel)[:2]
    return Work(transform_flops=2 * b.numel * factor.shape[-1])


@formula("aten::linalg_solve_triangular", "aten::triangular_solve")
def solve_triangular(call: Call) -> Work:
    first, second = call.tensor(0), call.tensor(1)
    triangle, b = (second, first) if call.op.endswith("triangular_solve") else (first, second)
    return Work(transform_flops=b.numel * triangle.shape[-1])


@formula("aten::linalg_qr")
def qr(call: Call) -> Work:
    a = call.tensor(0)
    *batch, m, n = a.shape
    small = min(m, n)
    return Work(transform_flops=prod(batch) * (2 * m * n * small - 2 * small**3 // 3))
