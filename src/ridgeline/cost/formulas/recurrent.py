"""Recurrent layers run as one operator: every time step meets both weight matrices once."""

from math import prod

from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import formula

GATE_FLOPS = 10
"""About what a cell does elementwise for each hidden unit: three sigmoids or two, a tanh, the
products and sums of the state."""


def _steps(x: Tensor) -> int:
    """Time steps x batch; a packed sequence has just that many rows."""
    return prod(x.shape[:-1])


def _matrices(weights: list[Tensor] | tuple[Tensor, ...]) -> int:
    return sum(w.numel for w in weights if isinstance(w, Tensor) and len(w.shape) == 2)


@formula("aten::mkldnn_rnn_layer")
def onednn_layer(call: Call) -> Work:
    x, input_weight, hidden_weight = call.tensor(0), call.tensor(1), call.tensor(2)
    steps = _steps(x)
    return Work(
        macs=steps * _matrices((input_weight, hidden_weight)),
        other_flops=steps * hidden_weight.shape[-1] * GATE_FLOPS,
    )


@formula("aten::mkldnn_rnn_layer_backward")
def onednn_layer_backward(call: Call) -> Work:
    forward = onednn_layer(call)
    return Work(macs=2 * forward.macs, other_flops=2 * forward.other_flops)


@formula("aten::_cudnn_rnn", "aten::miopen_rnn")
def packed_rnn(call: Call) -> Work:
    weights = call.args[1]
    return _packed(call.tensor(0), weights, 1)


@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def packed_rnn_backward(call: Call) -> Work:
    """Gradients of the input and state, and of the weights where the mask asks for them."""
    mask = call.get("output_mask", 21) or (True, True, True, True)
    return _packed(call.tensor(0), call.args[1], 2 if mask[-1] else 1)


def _packed(x: Tensor, weights: list[Tensor], times: int) -> Work:
    steps = _steps(x)
    hidden = sum(w.shape[-1] for w in weights if isinstance(w, Tensor) and len(w.shape) == 2)
    return Work(
        macs=times * steps * _matrices(weights), other_flops=times * steps * hidden * GATE_FLOPS
    )


@formula("aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell")
def fused_cell(call: Call) -> Work:
    """The gates alone; their matrix products are operators of their own."""
    return Work(other_flops=call.tensor(0).numel * 3)


@formula(
    "aten::_thnn_fused_lstm_cell_backward",
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_gru_cell_backward",
    "aten::_thnn_differentiable_lstm_cell_backward",
    "aten::_thnn_differentiable_gru_cell_backward",
)
def fused_cell_backward(call: Call) -> Work:
    return Work(other_flops=2 * call.elements * GATE_FLOPS)
