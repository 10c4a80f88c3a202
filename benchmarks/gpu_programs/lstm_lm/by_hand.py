"""The LSTM of plain.py, tuned by hand: bfloat16, decoder and loss compiled into one, fused Adam,
the corpus kept on the GPU, the loss read only where it is printed."""

import plain
import torch
import torch.nn.functional as F
from plain import StepTimer


def main():
    args = plain.parse_args()
    torch.manual_seed(1111)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    train_data = plain.make_corpus(args.vocabulary, args.batch_size).to(device)
    model = plain.RNNModel(args.vocabulary, args.nhid, 2, 0.2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=on_gpu or None)
    parameters = list(model.parameters())
    timer = StepTimer(args.steps, args.time)

    def head_loss(output, targets):
        return F.cross_entropy(model.decoder(model.drop(output)).view(-1, model.ntoken), targets)

    if on_gpu:
        head_loss = torch.compile(head_loss)

    model.train()
    total_loss = torch.zeros((), device=device)
    hidden = model.init_hidden(args.batch_size)
    i = 0
    for step in range(args.steps):
        data, targets = plain.get_batch(train_data, i, args.bptt)
        hidden = plain.repackage_hidden(hidden)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            output, hidden = model.rnn(model.drop(model.encoder(data)), hidden)
            loss = head_loss(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        total_loss += loss.detach()
        if (step + 1) % args.log_every == 0:
            print(f"step {step + 1}: loss {total_loss.item() / args.log_every:.4f}")
            total_loss.zero_()
        i += args.bptt
        if i + args.bptt + 1 > len(train_data):
            i = 0
        timer.tick()


if __name__ == "__main__":
    main()
