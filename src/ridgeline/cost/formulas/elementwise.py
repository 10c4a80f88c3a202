"""Elementwise operators: so many operations an element.

The number is how many arithmetic operations the definition has, a transcendental (exp, erf, tanh,
sqrt) being one. That is a convention: these numbers enter `all_flops` only, never `flops`.
Selecting, comparing bits and logic do no arithmetic and cost nothing but their bytes.
"""

from ridgeline.cost.formulas.call import Call, Work
from ridgeline.cost.formulas.registry import Formula, formula

_OPERATIONS = {
    0: "where masked_fill logical_and logical_not logical_or logical_xor bitwise_and bitwise_not "
    "bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ "
    "__ilshift__ __irshift__ __xor__ __ixor__ __and__ __or__ isfinite isinf isnan isneginf "
    "isposinf signbit positive conj_physical nan_to_num frexp nextafter copysign "
    "masked_scatter",
    1: "abs add sub rsub mul div true_divide floor_divide pow float_power neg reciprocal sqrt "
    "rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh atan2 erf erfc erfinv ceil floor round trunc frac sign sgn maximum minimum "
    "fmax fmin max min clamp_max clamp_min relu threshold threshold_backward eq ne lt le gt ge "
    "fmod remainder heaviside gcd lcm angle hardshrink softshrink deg2rad rad2deg lgamma digamma "
    "polygamma mvlgamma i0 igamma igammac special_i0e special_i1 special_i1e special_erfcx "
    "special_ndtri special_log_ndtr special_zeta special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t "
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
    "special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1 "
    "special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 hardtanh_backward "
    "hardshrink_backward softshrink_backward",
    2: "clamp clip hardtanh relu6 leaky_relu ldexp xlogy special_xlog1py special_entr sinc "
    "native_dropout_backward leaky_relu_backward prelu _prelu_kernel rrelu rrelu_with_noise "
    "clamp_backward dropout",
    3: "sigmoid addcmul addcdiv lerp elu celu selu softplus hypot hardsigmoid logit "
    "sigmoid_backward tanh_backward elu_backward hardsigmoid_backward softplus_backward "
    "logit_backward log_sigmoid_forward glu _prelu_kernel_backward native_dropout logaddexp2",
    4: "silu hardswish logaddexp log_sigmoid_backward hardswish_backward",
    5: "gelu mish glu_backward glu_jvp",
    6: "silu_backward",
    8: "gelu_backward mish_backward",
}


def _each(operations: int) -> Formula:
    def elementwise(call: Call) -> Work:
        # max(dim) and friends reduce: what they read is what they work on.
        elements = max((t.numel for t in call.tensors), default=0)
        return Work(other_flops=operations * max(elements, call.elements))

    return elementwise


for _operations, _names in _OPERATIONS.items():
    formula(*(f"aten::{name}" for name in _names.split()))(_each(_operations))
