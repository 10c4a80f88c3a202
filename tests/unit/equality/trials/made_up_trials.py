"""A tiny real training program that writes its own trial: two linear layers with a batch norm
between them (whose bias before it has no gradient but rounding), dropout, two micro-batches a step,
clipping, weight decay, two parameter groups. Every field of `Program` is a change to it: an honest
one computes the same in another way, a cheat computes less.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor, nn

from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.records.trial import TensorPrint, Trial, WatchedStep

FEATURES, HIDDEN, CLASSES, BATCH = 12, 24, 4, 16
JITTER, JITTER_BFLOAT16 = 2.0**-23, 2.0**-8


@dataclass(frozen=True)
class Program:
    seed: int = 0
    steps: int = 8
    adam: bool = True
    # correct changes
    jitter: float = 0.0
    fused: bool = False
    foreach: bool = False
    double: bool = False
    chunked: bool = False
    permuted: bool = False
    autocast: str = ""
    tf32: bool = False
    # cheats
    skip: tuple[int, ...] = ()
    keep_rows: int = 1
    batch: int = BATCH
    frozen: bool = False
    slowed: bool = False
    micro: int = 2
    backwards: int = 0
    loss_scale: float = 1.0
    dropout: float = 0.2
    weight_decay: float = 0.01
    rate: float = 1.0
    clip: float = 0.5
    norm_twice: bool = False
    momentum_from: int = 0
    low_bits: bool = False
    forgotten_group: bool = False
    poison: int = -1
    nan_to_zero: bool = False
    shuffled: bool = False
    # records, beside numbers, the settings of the optimizer and the dtypes of tensors
    told: bool = False


class Net(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self._linear(self.first, x)
        if self.program.norm_twice and self.training:
            with torch.no_grad():
                self.norm(hidden)
        hidden = torch.relu(self.norm(hidden))
        # The mask comes from the generator alone, whatever the precision.
        keep = 1 - self.program.dropout
        if self.training and keep < 1:
            mask = torch.bernoulli(torch.full(hidden.shape, keep))
            hidden = hidden * mask / keep
        return self._linear(self.last, torch.tanh(self._linear(self.second, hidden)))

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        weight = layer.weight
        if self.program.double:
            return F.linear(x.double(), weight.double(), layer.bias.double()).to(x.dtype)
        if self.program.tf32:
            return F.linear(_shortened(x), _shortened(weight), layer.bias)
        if self.program.chunked:
            parts = zip(x.split(5, dim=1), weight.split(5, dim=1), strict=True)
            return sum(a @ b.T for a, b in parts) + layer.bias
        if self.program.permuted:
            order = torch.arange(x.shape[1] - 1, -1, -1)
            return F.linear(x[:, order], weight[:, order], layer.bias)
        return layer(x)


def trial_of(program: Program) -> Trial:
    torch.manual_seed(program.seed)
    net = Net(program)
    start = {name: tensor.detach().clone() for name, tensor in _state(net)}
    if program.low_bits:
        _keep_in_bfloat16(net)
    optimizer = _optimizer(program, net)
    generator = torch.Generator().manual_seed(program.seed + 1000)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    if program.shuffled:
        generator.manual_seed(program.seed + 2000)
    watched = []
    early: tuple[TensorPrint, ...] = ()
    gradients: tuple[TensorPrint, ...] = ()
    first: Tensor | None = None
    for step in range(program.steps):
        if step < program.momentum_from:
            optimizer.state.clear()
        seen, x = _step(program, net, optimizer, step, generator, teacher)
        watched.append(seen)
        if step == 0:
            gradients = tuple(_gradients(net))
        if step == 1:
            early = tuple(_prints(program, net, start))
        first = x if first is None else first
    assert first is not None
    return Trial(
        watched=tuple(watched),
        evaluation=_evaluated(net, first),
        tensors=tuple(_prints(program, net, start)),
        early=early,
        gradients=gradients,
        jitter=program.jitter,
        settings=_settings(optimizer) if program.told else (),
    )


def _step(
    program: Program,
    net: Net,
    optimizer: torch.optim.Optimizer,
    step: int,
    generator: torch.Generator,
    teacher: Tensor,
) -> tuple[WatchedStep, Tensor]:
    net.train()
    optimizer.zero_grad()
    sums, samples, losses = 0.0, 0, []
    backwards = 0
    for micro in range(program.micro):
        x = torch.randn(BATCH, FEATURES, generator=generator)[: program.batch]
        y = (x @ teacher + 0.5 * torch.randn(len(x), CLASSES, generator=generator)).argmax(1)
        sums, samples = sums + float(x.double().sum()), samples + len(x)
        if step == program.poison:
            x = x.clone()
            x[0, 0] = float("nan")
        if program.jitter:
            signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(step))
            x = x * (1 + program.jitter * (2 * signs - 1))
        loss = _loss(program, net, x[:: program.keep_rows], y[:: program.keep_rows])
        losses.append(float(loss.detach()))
        if not program.backwards or micro < program.backwards:
            (loss / program.micro).backward()
            backwards += 1
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    gradients = [gradient for gradient in gradients if gradient is not None]
    norm = nn.utils.clip_grad_norm_([p for p in net.parameters() if p.grad is not None], 1e9)
    if program.clip:
        nn.utils.clip_grad_norm_(net.parameters(), program.clip)
        norm = torch.stack([g.norm() for g in gradients]).norm()
    if step not in program.skip:
        optimizer.step()
        if program.low_bits:
            _keep_in_bfloat16(net)
    seen = WatchedStep(
        loss=sum(losses) / len(losses), gradient_norm=float(norm), gradients=len(gradients),
        applied=step not in program.skip, samples=samples, batch_sum=sums,
        forwards=program.micro, backwards=backwards,
        learning_rate=optimizer.param_groups[0]["lr"] if program.told else None,
    )  # fmt: skip
    return seen, x


def _loss(program: Program, net: Net, x: Tensor, y: Tensor) -> Tensor:
    if program.autocast:
        with torch.autocast("cpu", dtype=getattr(torch, program.autocast)):
            out = net(x)
    else:
        out = net(x)
    loss = F.cross_entropy(out.float(), y) * program.loss_scale
    return loss.nan_to_num(0.0) if program.nan_to_zero else loss


def _optimizer(program: Program, net: Net) -> torch.optim.Optimizer:
    if program.frozen:
        net.second.requires_grad_(False)
    head = [] if program.forgotten_group else list(net.last.parameters())
    body = [*net.first.parameters(), *net.norm.parameters()]
    slow = list(net.second.parameters())
    rate = (2e-3 if program.adam else 5e-2) * program.rate
    groups: list[dict[str, Any]] = [{"params": body}]
    if head:
        groups.append({"params": head})
    if not program.frozen:
        groups.append({"params": slow, "lr": rate * (1e-4 if program.slowed else 1)})
    how = {"fused": True} if program.fused else {"foreach": program.foreach}
    if program.adam:
        return torch.optim.AdamW(groups, lr=rate, weight_decay=program.weight_decay, **how)
    return torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=program.weight_decay, **how)


def _settings(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return tuple(
        f"{len(group['params'])} parameters, lr {group['lr']}, decay {group['weight_decay']}"
        for group in optimizer.param_groups
    )


def _evaluated(net: Net, x: Tensor) -> tuple[float, float]:
    net.eval()
    with torch.no_grad():
        out = net(x).float().flatten()
    return float(out.norm()), float(out @ _direction("evaluation", out.numel()))


def _prints(program: Program, net: Net, start: dict[str, Tensor]) -> Iterator[TensorPrint]:
    for name, tensor in _state(net):
        first = prints.sampled(torch, start[name])
        found = prints.printed(
            torch, name, tensor, first, buffer=not isinstance(tensor, nn.Parameter)
        )
        yield structs.replace(found, dtype=_kept_in(program, tensor))


def _gradients(net: Net) -> Iterator[TensorPrint]:
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            yield prints.gradient(torch, name, parameter.grad, 1.0)


def _kept_in(program: Program, tensor: Tensor) -> str:
    if not program.told:
        return ""
    low = program.low_bits and isinstance(tensor, nn.Parameter)
    return "bfloat16" if low else str(tensor.dtype).removeprefix("torch.")


def _direction(name: str, numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}:{numel}".encode()))
    return F.normalize(torch.randn(numel, generator=generator), dim=0)


def _state(net: Net) -> list[tuple[str, Tensor]]:
    return [*net.named_parameters(), *net.named_buffers()]


def _keep_in_bfloat16(net: Net) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16().float())


def _shortened(x: Tensor) -> Tensor:
    """Round to the 10 bits of TF32's mantissa; the gradient passes unchanged."""
    bits = (x.detach().view(torch.int32) + 0x1000) & ~0x1FFF
    return x + (bits.view(torch.float32) - x).detach()


def trials_of_baseline(seed: int, *, perturbed: bool = True, **settings: Any) -> list[Trial]:
    program = Program(seed=seed, adam=seed % 2 == 0, **settings)
    trials = [trial_of(program), trial_of(program)]
    if perturbed:
        trials.append(trial_of(replace(program, jitter=JITTER)))
        trials.append(trial_of(replace(program, jitter=JITTER_BFLOAT16)))
    return trials


def candidate_of(seed: int, **changes: Any) -> Trial:
    return trial_of(Program(seed=seed, adam=seed % 2 == 0, **changes))
