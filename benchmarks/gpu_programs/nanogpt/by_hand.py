"""The GPT of plain.py, tuned by hand: bfloat16, SDPA, torch.compile, fused AdamW, resident data."""

import plain
import torch
import torch.nn.functional as F
from plain import SMALL, GPTConfig, StepTimer


class FlashAttention(plain.CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


def main():
    args = plain.parse_args()
    config = SMALL if args.small else GPTConfig()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    data = torch.from_numpy(plain.make_data(config).astype("int64")).to(device)
    plain.CausalSelfAttention = FlashAttention
    model = plain.GPT(config).to(device)
    optimizer = model.configure_optimizer(fused=on_gpu)
    window = torch.arange(config.block_size + 1, device=device)
    timer = StepTimer(args.steps, args.time)

    def loss_of(x, y):
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            return model(x, y)[1]

    if on_gpu:
        loss_of = torch.compile(loss_of)

    model.train()
    parameters = list(model.parameters())
    for it in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = plain.get_lr(it)
        ix = torch.randint(len(data) - config.block_size, (config.batch_size,))
        if on_gpu:
            ix = ix.pin_memory().to(device, non_blocking=True)
        tokens = data[ix[:, None] + window]
        loss = loss_of(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, plain.grad_clip)
        optimizer.step()
        if it % args.log_every == 0:
            print(f"iter {it}: loss {loss.item():.4f}")
        timer.tick()


if __name__ == "__main__":
    main()
