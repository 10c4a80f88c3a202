"""Integer products whose weight travels packed; account unpacks it to a tensor beforehand."""

from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import formula


@formula(
    "quantized::linear",
    "quantized::linear_relu",
    "quantized::linear_dynamic",
    "quantized::linear_relu_dynamic",
    "quantized::linear_dynamic_fp16",
    "quantized::linear_relu_dynamic_fp16",
    "quantized::linear_leaky_relu",
    "quantized::linear_tanh",
)
def linear(call: Call) -> Work:
    x, weight = call.tensor(0), call.args[1]
    columns = weight.shape[0] if isinstance(weight, Tensor) else call.outputs[0].shape[-1]
    return Work(macs=x.numel * columns)


@formula("onednn::qlinear_pointwise")
def onednn_linear(call: Call) -> Work:
    return Work(macs=call.tensor(0).numel * call.outputs[0].shape[-1])


@formula(
    "quantized::conv1d",
    "quantized::conv2d",
    "quantized::conv3d",
    "quantized::conv1d_relu",
    "quantized::conv2d_relu",
    "quantized::conv3d_relu",
    "quantized::conv2d_add",
    "quantized::conv2d_add_relu",
)
def convolution(call: Call) -> Work:
    weight = call.args[1]
    if not isinstance(weight, Tensor):
        raise TypeError(f"{call.op}: the packed weight could not be read")
    return Work(macs=call.outputs[0].numel * weight.numel // weight.shape[0])
