"""Peak memory predicted on tensors without data, against what a real run allocates here.

    python benchmarks/memory_prediction.py -o docs/results/memory-cpu.md

One line a model and mode: the prediction over the measurement in the same run. Allocations are
counted, not timed, so a busy machine changes nothing.
"""

import argparse
import platform
import sys
import warnings
from collections.abc import Callable
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


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for out in (32, 32, 64, 64):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 4)


def module_of(built: object) -> nn.Module:
    found = built[0] if isinstance(built, tuple) else built
    assert isinstance(found, nn.Module)
    return found


MODELS: dict[str, Callable[[], Built]] = {
    "ResNet-18, batch 4": lambda: (resnet.resnet18(), torch.randn(4, 3, 224, 224)),
    "GPT-2, small": lambda: (module_of(gpt2.tiny()), torch.randint(0, 100, (8, 64))),
    "Llama, small": lambda: (module_of(llama.tiny()), torch.randint(0, 100, (4, 128))),
    "TransformerEncoder": lambda: (transformer(), torch.randn(32, 64, 128)),
    "checkpointed MLP": lambda: (Checkpointed(), torch.randn(512, 256)),
    "VGG-like": lambda: (vgg(), torch.randn(4, 3, 96, 96)),
    "U-Net-like": lambda: (UNet(), torch.randn(4, 3, 128, 128)),
    "VGG-like, channels_last": lambda: (
        vgg().to(memory_format=torch.channels_last),
        torch.randn(4, 3, 96, 96).to(memory_format=torch.channels_last),
    ),
    "Conv3d": lambda: (nn.Conv3d(16, 16, 3, padding=1), torch.randn(2, 16, 16, 32, 32)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(64, 32, 4, 2, 1), torch.randn(4, 64, 32, 32)),
    "GRU, 2 layers": lambda: (
        First(nn.GRU(128, 256, 2, batch_first=True)),
        torch.randn(32, 64, 128),
    ),
    "LSTM, 2 layers": lambda: (
        First(nn.LSTM(128, 256, 2, batch_first=True)),
        torch.randn(32, 64, 128),
    ),
}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    output: Path | None = parser.parse_args().output
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    lines = [
        "# Peak memory, predicted over measured, on a CPU",
        "",
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.backends.cpu.get_cpu_capability()}; made by "
        "`python benchmarks/memory_prediction.py -o docs/results/memory-cpu.md`",
        "",
        "| model | mode | predicted MiB | measured MiB | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, build in MODELS.items():
        for optimizer in ("", "adamw"):
            predicted, measured, share = ratio(build(), optimizer)
            mode = f"training, {optimizer}" if optimizer else "inference"
            lines.append(f"| {name} | {mode} | {predicted:.1f} | {measured:.1f} | {share:.3f} |")
    text = "\n".join([*lines, ""])
    print(text)
    if output is not None:
        output.write_text(text)


if __name__ == "__main__":
    main()
