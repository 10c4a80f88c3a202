"""Train a graph convolutional network of PyTorch Geometric on a whole synthetic graph."""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer


class GCN(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout):
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = nn.ModuleList([GCNConv(widths[i], widths[i + 1]) for i in range(num_layers)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(width) for width in widths[1:-1]])
        self.dropout = dropout

    def forward(self, x, edge_index):
        for conv, bn in zip(self.convs[:-1], self.bns, strict=True):
            x = F.relu(bn(conv(x, edge_index)))
            x = F.dropout(x, p=self.dropout, training=self.training)
        return self.convs[-1](x, edge_index)


def make_graph(nodes, edges, features, classes):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    return Data(
        x=torch.randn(nodes, features, generator=generator),
        edge_index=to_undirected(edge_index, num_nodes=nodes),
        y=torch.randint(0, classes, (nodes,), generator=generator),
        train_mask=torch.rand(nodes, generator=generator) < 0.5,
    )


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=170_000)
    parser.add_argument("--edges", type=int, default=1_100_000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--small", action="store_true", help="a tiny graph, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()
    if args.small:
        args.nodes, args.edges, args.hidden = 500, 2000, 16
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = make_graph(args.nodes, args.edges, 128, 40).to(device)
    model = GCN(128, args.hidden, 40, num_layers=3, dropout=0.5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    timer = StepTimer(args.steps, args.time)

    for epoch in range(args.steps):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        if epoch % args.log_every == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
        timer.tick()


if __name__ == "__main__":
    main()
