"""The U-Net of plain.py, tuned by hand: bfloat16, channels last, SDPA, torch.compile, fused AdamW,
the whole step as one CUDA graph, images kept on the GPU."""

import plain
import torch
import torch.nn.functional as F
from graphed_step import GraphedStep
from plain import StepTimer
from torch.utils.data import DataLoader


class FlashAttentionBlock(plain.AttentionBlock):
    def attention(self, q, k, v):
        q, k, v = (
            x.transpose(1, 2).reshape(-1, self.heads, x.shape[2], x.shape[1]) for x in (q, k, v)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return out.flatten(0, 1).transpose(1, 2)


def main():
    args = plain.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    plain.AttentionBlock = FlashAttentionBlock
    model = plain.build(args.small).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=2e-4, fused=on_gpu or None, capturable=on_gpu
    )
    alphas_bar = plain.make_alphas(device)
    images = plain.make_images(args.small).to(device)
    if on_gpu:
        model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    index_loader = DataLoader(
        range(len(images)), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    parameters = list(model.parameters())

    def loss_of(xt, t, noise):
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            predicted = model(xt, t)
        return F.mse_loss(predicted.float(), noise)

    if on_gpu:
        loss_of = torch.compile(loss_of)

    def train_step(x0):
        t = torch.randint(0, plain.TIMESTEPS, (x0.shape[0],), device=device)
        noise = torch.randn_like(x0)
        a = alphas_bar[t][:, None, None, None]
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(xt, t, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return (loss.detach(),)

    run_step = GraphedStep(train_step) if on_gpu else train_step
    timer = StepTimer(args.steps, args.time)

    step = 0
    model.train()
    while step < args.steps:
        for indices in index_loader:
            if on_gpu:
                indices = indices.pin_memory().to(device, non_blocking=True)
            (loss,) = run_step(images[indices])
            if step % args.log_every == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
