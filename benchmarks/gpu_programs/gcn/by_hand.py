"""The GCN of plain.py, tuned by hand: the edges normalised once and kept as a sparse matrix, whose
product replaces gathering and scattering of messages; TF32; fused Adam; no wait for the device."""

import plain
import torch
import torch.nn.functional as F
from plain import StepTimer
from torch_geometric.nn.conv.gcn_conv import gcn_norm


class SymmetricProduct(torch.autograd.Function):
    """`adjacency @ x` for an adjacency that is its own transpose: the gradient is a product too."""

    @staticmethod
    def forward(ctx, adjacency, x):
        ctx.adjacency = adjacency
        return adjacency @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adjacency @ grad.contiguous()


def normalised_adjacency(edge_index, nodes):
    edge_index, weight = gcn_norm(edge_index, None, nodes)
    adjacency = torch.sparse_coo_tensor(edge_index, weight, (nodes, nodes)).coalesce()
    return adjacency.to_sparse_csr()


def main():
    args = plain.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    data = plain.make_graph(args.nodes, args.edges, 128, 40).to(device)
    model = plain.GCN(128, args.hidden, 40, num_layers=3, dropout=0.5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=on_gpu or None)
    adjacency = normalised_adjacency(data.edge_index, args.nodes)
    train = data.train_mask.nonzero().squeeze(1)
    y_train = data.y[train]

    def between(conv, bn, h):
        h = F.relu(bn(h + conv.bias))
        return F.dropout(h, p=model.dropout, training=True)

    if on_gpu:
        between = torch.compile(between)

    timer = StepTimer(args.steps, args.time)

    model.train()
    for epoch in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        h = SymmetricProduct.apply(adjacency, model.convs[0].lin(data.x))
        for conv, bn, following in zip(model.convs, model.bns, model.convs[1:], strict=False):
            h = following.lin(between(conv, bn, h))
            h = SymmetricProduct.apply(adjacency, h)
        out = (h + model.convs[-1].bias)[train]
        loss = F.cross_entropy(out, y_train)
        loss.backward()
        optimizer.step()
        if epoch % args.log_every == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
        timer.tick()


if __name__ == "__main__":
    main()
