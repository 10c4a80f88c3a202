"""Train an LSTM language model, in the manner of PyTorch's word_language_model example."""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer


class RNNModel(nn.Module):
    def __init__(self, ntoken, nhid, nlayers, dropout):
        super().__init__()
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output).view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.nlayers, bsz, self.nhid),
            weight.new_zeros(self.nlayers, bsz, self.nhid),
        )


def make_corpus(ntoken, batch_size):
    """Tokens in `batch_size` columns, as `batchify` of the example lays them."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, ntoken, (2_000_000,), generator=generator)
    rows = len(data) // batch_size
    return data[: rows * batch_size].view(batch_size, rows).t().contiguous()


def get_batch(source, i, bptt):
    return source[i : i + bptt], source[i + 1 : i + 1 + bptt].reshape(-1)


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--bptt", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=33278)
    parser.add_argument("--nhid", type=int, default=1024)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()
    if args.small:
        args.batch_size, args.bptt, args.vocabulary, args.nhid = 8, 16, 256, 32
    return args


def main():
    args = parse_args()
    torch.manual_seed(1111)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_data = make_corpus(args.vocabulary, args.batch_size)
    model = RNNModel(args.vocabulary, args.nhid, 2, 0.2).to(device)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    timer = StepTimer(args.steps, args.time)

    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    i = 0
    for step in range(args.steps):
        data, targets = get_batch(train_data, i, args.bptt)
        data, targets = data.to(device), targets.to(device)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total_loss += loss.item()
        if (step + 1) % args.log_every == 0:
            print(f"step {step + 1}: loss {total_loss / args.log_every:.4f}")
            total_loss = 0.0
        i += args.bptt
        if i + args.bptt + 1 > len(train_data):
            i = 0
        timer.tick()


if __name__ == "__main__":
    main()
