"""Train a denoising diffusion U-Net on synthetic 32 x 32 images with the noise-prediction loss."""

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer

TIMESTEPS = 1000


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, in_ch, out_ch, time_dim, groups):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_ch)
        self.conv1 = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.time = nn.Linear(time_dim, out_ch)
        self.norm2 = nn.GroupNorm(groups, out_ch)
        self.conv2 = nn.Conv2d(out_ch, out_ch, 3, padding=1)
        self.skip = nn.Conv2d(in_ch, out_ch, 1) if in_ch != out_ch else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(emb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class AttentionBlock(nn.Module):
    def __init__(self, channels, heads, groups):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Conv2d(channels, channels * 3, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def attention(self, q, k, v):
        scale = q.shape[1] ** -0.5
        weights = torch.einsum("bct,bcs->bts", q * scale, k).softmax(dim=-1)
        return torch.einsum("bts,bcs->bct", weights, v)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b * self.heads, 3 * c // self.heads, h * w)
        q, k, v = qkv.chunk(3, dim=1)
        out = self.attention(q, k, v).reshape(b, c, h, w)
        return x + self.proj(out)


class UNet(nn.Module):
    def __init__(self, base, mults=(1, 2, 2, 2), blocks=2, attention_at=(1,), heads=4, groups=32):
        super().__init__()
        time_dim = base * 4
        self.base = base
        self.time_mlp = nn.Sequential(
            nn.Linear(base, time_dim), nn.SiLU(), nn.Linear(time_dim, time_dim)
        )
        self.conv_in = nn.Conv2d(3, base, 3, padding=1)
        self.downs = nn.ModuleList()
        channels, ch = [base], base
        for level, mult in enumerate(mults):
            for _ in range(blocks):
                layer = nn.ModuleList([ResBlock(ch, base * mult, time_dim, groups)])
                ch = base * mult
                if level in attention_at:
                    layer.append(AttentionBlock(ch, heads, groups))
                self.downs.append(layer)
                channels.append(ch)
            if level != len(mults) - 1:
                self.downs.append(nn.ModuleList([nn.Conv2d(ch, ch, 3, stride=2, padding=1)]))
                channels.append(ch)
        self.mid1 = ResBlock(ch, ch, time_dim, groups)
        self.mid_attn = AttentionBlock(ch, heads, groups)
        self.mid2 = ResBlock(ch, ch, time_dim, groups)
        self.ups = nn.ModuleList()
        for level, mult in reversed(list(enumerate(mults))):
            for block in range(blocks + 1):
                layer = nn.ModuleList(
                    [ResBlock(ch + channels.pop(), base * mult, time_dim, groups)]
                )
                ch = base * mult
                if level in attention_at:
                    layer.append(AttentionBlock(ch, heads, groups))
                if level and block == blocks:
                    layer.append(nn.Conv2d(ch, ch, 3, padding=1))
                self.ups.append(layer)
        self.norm_out = nn.GroupNorm(groups, ch)
        self.conv_out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.time_mlp(timestep_embedding(t, self.base))
        h = self.conv_in(x)
        skips = [h]
        for layer in self.downs:
            for module in layer:
                h = module(h, emb) if isinstance(module, ResBlock) else module(h)
            skips.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, emb)), emb)
        for layer in self.ups:
            h = torch.cat([h, skips.pop()], dim=1)
            for module in layer:
                if isinstance(module, nn.Conv2d):
                    h = F.interpolate(h, scale_factor=2, mode="nearest")
                h = module(h, emb) if isinstance(module, ResBlock) else module(h)
        return self.conv_out(F.silu(self.norm_out(h)))


def build(small):
    if small:
        return UNet(16, mults=(1, 2), blocks=1, heads=2, groups=8)
    return UNet(128)


def make_images(small):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(64 if small else 25600, 3, 32, 32, generator=generator) * 2 - 1


def make_alphas(device):
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, device=device)
    return torch.cumprod(1 - betas, dim=0)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()
    if args.small:
        args.batch_size = 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(args.small).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    alphas_bar = make_alphas(device)
    dataset = TensorDataset(make_images(args.small))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    timer = StepTimer(args.steps, args.time)

    step = 0
    model.train()
    while step < args.steps:
        for (x0,) in loader:
            x0 = x0.to(device)
            t = torch.randint(0, TIMESTEPS, (x0.shape[0],), device=device)
            noise = torch.randn_like(x0)
            a = alphas_bar[t][:, None, None, None]
            xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
            loss = F.mse_loss(model(xt, t), noise)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % args.log_every == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
