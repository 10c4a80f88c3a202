"""The DCGAN of plain.py, tuned by hand: bfloat16, channels last, torch.compile, fused Adam, the
whole step as one CUDA graph, images kept on the GPU.

The loss is taken from the logits: the same number as BCELoss of the sigmoid, and safe in bfloat16.
"""

import plain
import torch
import torch.nn.functional as F
from graphed_step import GraphedStep
from plain import StepTimer, nz
from torch import optim
from torch.utils.data import DataLoader


def main():
    args = plain.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    images = plain.make_images(args.small).to(device)
    index_loader = DataLoader(range(len(images)), batch_size=args.batch_size, shuffle=True)

    netG = plain.Generator(args.features).to(device)
    netG.apply(plain.weights_init)
    netD = plain.Discriminator(args.features).to(device)
    netD.apply(plain.weights_init)
    adam = {"lr": 0.0002, "betas": (0.5, 0.999), "fused": on_gpu or None, "capturable": on_gpu}
    optimizerD = optim.Adam(netD.parameters(), **adam)
    optimizerG = optim.Adam(netG.parameters(), **adam)
    generator, logits_of = netG.main, netD.main[:-1]
    if on_gpu:
        images = images.to(memory_format=torch.channels_last)
        netG.to(memory_format=torch.channels_last)
        netD.to(memory_format=torch.channels_last)
        generator, logits_of = torch.compile(generator), torch.compile(logits_of)
    ones = torch.ones(args.batch_size, device=device)
    zeros = torch.zeros(args.batch_size, device=device)

    def bce(x, label):
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            logits = logits_of(x).view(-1)
        logits = logits.float()
        return F.binary_cross_entropy_with_logits(logits, label), logits

    def train_step(real):
        netD.zero_grad(set_to_none=True)
        errD_real, real_logits = bce(real, ones)
        errD_real.backward()
        noise = torch.randn(args.batch_size, nz, 1, 1, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            fake = generator(noise)
        errD_fake, _ = bce(fake.detach(), zeros)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad(set_to_none=True)
        errG, fake_logits = bce(fake, ones)
        errG.backward()
        optimizerG.step()
        D_x, D_G_z = real_logits.sigmoid().mean(), fake_logits.sigmoid().mean()
        return (errD_real + errD_fake).detach(), errG.detach(), D_x.detach(), D_G_z.detach()

    run_step = GraphedStep(train_step) if on_gpu else train_step
    timer = StepTimer(args.steps, args.time)

    step = 0
    while step < args.steps:
        for indices in index_loader:
            if on_gpu:
                indices = indices.pin_memory().to(device, non_blocking=True)
            errD, errG, D_x, D_G_z = run_step(images[indices])
            if step % args.log_every == 0:
                print(
                    f"[{step}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f} "
                    f"D(x): {D_x.item():.4f} D(G(z)): {D_G_z.item():.4f}"
                )
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
