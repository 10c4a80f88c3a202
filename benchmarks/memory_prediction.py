"""Peak memory predicted on tensors without data, against what a real run allocates here.

    python benchmarks/memory_prediction.py -o docs/results/memory-cpu.md

One line a model and mode: the prediction over the measurement in the same run. Allocations are
counted, not timed, so a busy machine changes nothing.
"""

import argparse
import copy
import platform
import sys
import warnings
from collections.abc import Callable
from datetime import date
from importlib import metadata
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples import gpt2, llama, resnet
from ridgeline.cost.counting import count
from ridgeline.cost.counting.operands import stored_bytes
from ridgeline.cost.study.running import Step
from ridgeline.measure.peak import measure_peak

Built = tuple[nn.Module, torch.Tensor]


class First(nn.Module):
    """The first output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 32, 3, padding=1)
        self.deep = nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.Conv2d(96, 32, 3, padding=1)
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x).relu()
        coarse = self.deep(nn.functional.max_pool2d(fine, 2)).relu()
        wide = nn.functional.interpolate(coarse, scale_factor=2)
        return self.out(self.up(torch.cat([fine, wide], 1)).relu())


class Experts(nn.Module):
    """A mixture of four experts. Every token goes to the two that its router ranks highest, so the
    shapes depend on values, and the pass is counted on real tensors."""

    def __init__(self, width: int = 256, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for out in (32, 32, 64, 64):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def conv1d() -> nn.Module:
    layers: list[nn.Module] = []
    width = 16
    for out in (64, 64, 128, 128):
        layers += [nn.Conv1d(width, out, 5, padding=2, stride=1 + (out > width)), nn.GELU()]
        width = out
    return nn.Sequential(*layers)


def transformer(width: int = 128, heads: int = 4, depth: int = 4) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
    return nn.TransformerEncoder(layer, depth)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


def module_of(built: object) -> nn.Module:
    found = built[0] if isinstance(built, tuple) else built
    assert isinstance(found, nn.Module)
    return found


def gpt(depth: int = 4) -> nn.Module:
    return gpt2.GPT2(gpt2.Config(vocabulary=8192, context=256, width=256, heads=4, depth=depth))


def llama_style(depth: int = 4) -> nn.Module:
    return llama.Llama(llama.Config(8192, 256, 704, 8, 2, depth, dtype=torch.float32))


def recurrent(layer: nn.Module, *shape: int) -> Built:
    return First(layer), torch.randn(shape)


MODELS: dict[str, Callable[[], Built]] = {
    "ResNet-18, 4 × 224²": lambda: (resnet.resnet18(), torch.randn(4, 3, 224, 224)),
    "ResNet-50, 4 × 224²": lambda: (resnet.resnet50(), torch.randn(4, 3, 224, 224)),
    "GPT-2, 4 × 256 wide, 4 × 256": lambda: (gpt(), torch.randint(0, 100, (4, 256))),
    "Llama-style, 4 × 256 wide, 4 × 256": lambda: (llama_style(), torch.randint(0, 100, (4, 256))),
    "TransformerEncoder": lambda: (transformer(), torch.randn(32, 64, 128)),
    "mixture of experts": lambda: (Experts(), torch.randn(1024, 256)),
    "checkpointed MLP": lambda: (Checkpointed(), torch.randn(512, 256)),
    "VGG-like": lambda: (vgg(), torch.randn(4, 3, 96, 96)),
    "U-Net-like": lambda: (UNet(), torch.randn(4, 3, 128, 128)),
    "VGG-like, channels_last": lambda: (
        vgg().to(memory_format=torch.channels_last),
        torch.randn(4, 3, 96, 96).to(memory_format=torch.channels_last),
    ),
    "Conv1d stack": lambda: (conv1d(), torch.randn(8, 16, 2048)),
    "Conv3d": lambda: (nn.Conv3d(16, 16, 3, padding=1), torch.randn(2, 16, 16, 32, 32)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(64, 32, 4, 2, 1), torch.randn(4, 64, 32, 32)),
    "GRU, 2 layers": lambda: recurrent(nn.GRU(128, 256, 2, batch_first=True), 32, 64, 128),
    "LSTM, 2 layers": lambda: recurrent(nn.LSTM(128, 256, 2, batch_first=True), 32, 64, 128),
    "LSTM, both directions": lambda: recurrent(nn.LSTM(64, 128, bidirectional=True), 96, 16, 64),
    "LSTM, 1 × 300 wide": lambda: recurrent(nn.LSTM(100, 300), 40, 8, 100),
    "linears, bf16": lambda: (perceptron().bfloat16(), torch.randn(1024, 512).bfloat16()),
    "VGG-like, bf16": lambda: (vgg().bfloat16(), torch.randn(4, 3, 96, 96).bfloat16()),
    "GPT-2, bf16": lambda: (gpt().bfloat16(), torch.randint(0, 100, (4, 256))),
}


NO_ANSWER = "—"


def by_torch(model: nn.Module, x: torch.Tensor, training: bool) -> float | str:
    """Return the peak in MiB by torch's own MemTracker, on real tensors, at its second step: in the
    first the state of the optimizer does not exist before forward."""
    from torch.distributed._tools.mem_tracker import MemTracker

    model = copy.deepcopy(model).train(training)
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = MemTracker()
    try:
        tracker.track_external(model, optimizer, x)
        for _ in range(2 if training else 1):
            tracker.reset_mod_stats()
            with tracker:
                with torch.set_grad_enabled(training):
                    output = model(x)
                if training:
                    output.backward(torch.ones_like(output))
                    optimizer.step()
                    optimizer.zero_grad()
        peaks = tracker.get_tracker_snapshot("peak")
    except Exception as error:  # a model that a peer cannot take is a result
        return type(error).__name__
    return max(float(one["Total"]) for one in peaks.values()) / 2**20


def by_torchinfo(model: nn.Module, x: torch.Tensor, training: bool) -> float | str:
    """Return torchinfo's "Estimated Total Size" in MiB: input, weights, and the outputs of all
    layers, twice for the backward. Gradients and the optimizer are not in it."""
    try:
        import torchinfo
    except ImportError:
        return NO_ANSWER
    try:
        mode = "train" if training else "eval"
        found = torchinfo.summary(copy.deepcopy(model), input_data=x, mode=mode, verbose=0)
    except Exception as error:  # a model that a peer cannot take is a result
        return type(error).__name__
    return (found.total_input + found.total_output_bytes + found.total_param_bytes) / 2**20


def by_accelerate(model: nn.Module, x: torch.Tensor, training: bool) -> float | str:
    """Return the largest figure of `accelerate estimate-memory` in MiB. The command takes the name
    of a model on a hub; its arithmetic is called here on the model itself."""
    try:
        from accelerate.commands.estimate import estimate_training_usage
        from accelerate.utils import calculate_maximum_sizes
    except ImportError:
        return NO_ANSWER
    size = calculate_maximum_sizes(model)[0]
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    found = max(estimate_training_usage(size, dtype).values()) if training else size
    return float(found) / 2**20


PEERS = {"MemTracker": by_torch, "torchinfo": by_torchinfo, "accelerate": by_accelerate}


def ratio(built: Built, optimizer: str) -> tuple[float, float, float]:
    """(predicted MiB, measured MiB, ratio); `optimizer` "" is inference."""
    model, x = built
    training = bool(optimizer)
    predicted = count(model, (x,), training=training, optimizer=optimizer).memory.peak_bytes
    step = Step(model, (x,), {}, training=training, optimizer=optimizer)
    step()
    step.forget_gradients()
    static = step.state_bytes() + stored_bytes(*model.parameters(), *model.buffers(), x)
    mode = "training" if training else "inference"
    measured = measure_peak(step, "cpu", static, mode).peak_bytes
    return predicted / 2**20, measured / 2**20, predicted / measured


def row_of(name: str, optimizer: str) -> str:
    torch.manual_seed(0)
    built = MODELS[name]()
    predicted, measured, share = ratio(built, optimizer)
    model, x = MODELS[name]()
    cells = [f"{predicted:.1f}", f"{measured:.1f}", f"{share:.3f}"]
    for peer in PEERS.values():
        answer = peer(model, x, bool(optimizer))
        cells.append(answer if isinstance(answer, str) else f"{answer / measured:.3f}")
    mode = f"training, {optimizer}" if optimizer else "inference"
    return f"| {name} | {mode} | {' | '.join(cells)} |"


def versions() -> str:
    names = ("torchinfo", "accelerate")
    found = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="models whose name contains this text")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# Peak memory, predicted over measured, on a CPU",
        "",
        f"{date.today()} · torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads; "
        f"{versions()}; made by "
        "`python benchmarks/memory_prediction.py -o docs/results/memory-cpu.md`.",
        "",
        "The column ratio is Ridgeline's prediction over the measured peak. The last three columns",
        "are the predictions of other tools over the same measured peak; 1 is exact. MemTracker",
        "runs the model for real, but does not see memory that a kernel allocates internally.",
        "torchinfo's total leaves out gradients and the optimizer. accelerate counts the weights",
        "only, whatever the batch.",
        "",
        f"| model | mode | predicted MiB | measured MiB | ratio | {' | '.join(PEERS)} |",
        f"| --- | --- | ---: | ---: | ---: |{' ---: |' * len(PEERS)}",
    ]
    for name in MODELS:
        for optimizer in ("", "adamw") if chosen.only in name else ():
            lines.append(row_of(name, optimizer))
            print(lines[-1], flush=True)
    text = "\n".join([*lines, ""])
    if chosen.output is not None:
        chosen.output.write_text(text)


if __name__ == "__main__":
    main()
