"""A small framework over NumPy, shaped as a student's: tensors that wrap an array, layers with
`forward` and `parameters`, and a graph for backward in matrix products and sums."""

from typing import Any

import numpy as np

rng = np.random.default_rng(0)


class Tensor:
    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data = np.array(data, dtype=np.float32)
        self.requires_grad = requires_grad
        self.grad: Any = None
        self._back: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def matmul(self, other: "Tensor") -> "Tensor":
        out = Tensor(self.data @ other.data, self.requires_grad or other.requires_grad)

        def back(gradient: Any) -> None:
            rows = self.data.reshape(-1, self.data.shape[-1])
            other.receive(rows.T @ gradient.reshape(-1, gradient.shape[-1]))
            self.receive(gradient @ other.data.T)

        out._back = back
        return out

    def receive(self, gradient: Any) -> None:
        if self.requires_grad:
            self.grad = gradient if self.grad is None else self.grad + gradient
            if self._back is not None:
                self._back(gradient)

    def backward(self, gradient: Any = None) -> None:
        self.receive(np.ones_like(self.data) if gradient is None else gradient)

    def mean(self) -> "Tensor":
        out = Tensor(self.data.mean(), self.requires_grad)
        out._back = lambda gradient: self.receive(
            np.full_like(self.data, gradient / self.data.size)
        )
        return out


class Linear:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = Tensor(rng.standard_normal((inputs, outputs)))
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return x.matmul(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def parameters(self) -> list[Tensor]:
        return [self.weight]


class ReLU:
    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.maximum(x.data, 0))

    def parameters(self) -> list[Tensor]:
        return []


class Sequential:
    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x


class Conv2d:
    """Settings as torch has them; `forward` only makes an output of the right shape."""

    def __init__(self, inputs: int, outputs: int, kernel_size: Any, **settings: Any) -> None:
        self.in_channels, self.out_channels = inputs, outputs
        self.kernel_size = kernel_size
        for name, value in {"stride": 1, "padding": 0, **settings}.items():
            setattr(self, name, value)

    def parameters(self) -> list[Tensor]:
        return []


class MultiHeadAttention:
    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.q_proj, self.k_proj = Linear(width, width), Linear(width, width)
        self.v_proj, self.out_proj = Linear(width, width), Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = self.q_proj(x), self.k_proj(source), self.v_proj.forward(source)
        scores = q.data @ k.data.swapaxes(-1, -2)
        return self.out_proj(Tensor(scores @ v.data))

    def parameters(self) -> list[Tensor]:
        projections = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        return [p for layer in projections for p in layer.parameters()]


class TransformerBlock:
    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.attention = MultiHeadAttention(width, num_heads)
        self.mlp = Sequential(Linear(width, 4 * width), Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = Tensor(x.data + self.attention.forward(x).data)
        return Tensor(x.data + self.mlp.forward(x).data)

    def parameters(self) -> list[Tensor]:
        inner = [p for layer in self.mlp.layers for p in layer.parameters()]
        return self.attention.parameters() + inner


class CrossAttention:
    """Queries from the input, keys and values from three times as many tokens."""

    def __init__(self, width: int) -> None:
        self.attention = MultiHeadAttention(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention.forward(x, Tensor(np.concatenate([x.data] * 3, axis=1)))


class TiedModel:
    def __init__(self) -> None:
        self.first = Linear(6, 6)
        self.second = Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def parameters(self) -> list[Tensor]:
        return [self.first.weight, self.second.weight]


class HandWritten:
    """Two bare matrices, no layers, no parameters()."""

    def __init__(self) -> None:
        self.W1, self.W2 = rng.standard_normal((8, 32)), rng.standard_normal((32, 4))
        self.seen = None

    def forward(self, x: Any) -> Any:
        self.seen = x
        return np.maximum(x @ self.W1, 0) @ self.W2
