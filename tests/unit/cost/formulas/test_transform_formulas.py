"""FFTs (5 n log2 n, half where one side is real) and LAPACK's leading terms."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of

T = Tensor


@pytest.mark.parametrize(
    ("op", "args", "flops"),
    [
        ("_fft_c2c", (T((3, 8), "complex64"), [1], 0, True), 5 * 24 * 3),
        ("_fft_c2c", (T((4, 8), "complex64"), [0, 1], 0, True), 5 * 32 * 5),
        ("_fft_c2c", (T((3, 8), "complex64"), [-1], 0, True), 5 * 24 * 3),
        ("_fft_r2c", (T((3, 8)), [1], 0, True), 2.5 * 24 * 3),
        ("_fft_c2r", (T((3, 5), "complex64"), [1], 0, 8), 2.5 * 24 * 3),
        ("_fft_c2c", (T((3, 1), "complex64"), [1], 0, True), 0),
        ("linalg_cholesky_ex", (T((2, 6, 6)),), 2 * 6**3 // 3),
        ("linalg_lu_factor_ex", (T((2, 6, 6)),), 2 * 2 * 6**3 // 3),
        ("linalg_inv_ex", (T((2, 6, 6)),), 2 * 2 * 6**3),
        ("_linalg_solve_ex", (T((6, 6)), T((6, 2))), 2 * 6**3 // 3 + 2 * 12 * 6),
        ("linalg_solve_triangular", (T((6, 6)), T((6, 2))), 12 * 6),
        ("triangular_solve", (T((6, 2)), T((6, 6))), 12 * 6),
        ("linalg_lu_solve", (T((6, 6)), T((6,), "int32"), T((6, 2))), 2 * 12 * 6),
        ("cholesky_solve", (T((6, 20)), T((6, 6))), 2 * 120 * 6),
        ("linalg_qr", (T((8, 6)),), 2 * 8 * 6 * 6 - 2 * 6**3 // 3),
    ],
)
def test_transforms(op: str, args: tuple[object, ...], flops: float) -> None:
    assert work_of(Call(f"aten::{op}", args)) == Work(transform_flops=int(flops))


@pytest.mark.parametrize("op", ["_linalg_svd", "_linalg_eigh", "linalg_eig"])
def test_iterative_algorithms_have_no_formula(op: str) -> None:
    assert find(f"aten::{op}") is None
