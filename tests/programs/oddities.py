"""What few programs do, each in a line or two: all of it must come out the same under a run."""

import copy
import inspect
import io
import pickle
import sys
import threading
import traceback
import warnings

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, Blocks, mlp
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

torch.manual_seed(0)
model = Blocks()
inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))


def show(name: str, value: object) -> None:
    print(name, value.tolist() if isinstance(value, Tensor) else value)


def depth() -> int:
    """How deep a stack may get."""
    try:
        return 1 + depth()
    except RecursionError:
        return 0


class Deep(nn.Module):
    def forward(self, x: Tensor) -> int:
        return depth()


class Warns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("where?", stacklevel=2)
        return x


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("on purpose")


class OwnCall(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x) + 1


def loss_of(weights: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(functional_call(model, weights, (inputs,)), labels)


weights = {name: value.detach() for name, value in model.named_parameters()}
show("jit.trace", torch.jit.trace(model, inputs)(inputs).sum())
show("jit.script", torch.jit.script(mlp())(inputs).sum())
show("fx", len(torch.fx.symbolic_trace(model).graph.nodes))
show("export", len(torch.export.export(model, (inputs,)).graph.nodes))
show("make_fx", len(make_fx(lambda x: model(x))(inputs).graph.nodes))
show("vmap", vmap(model)(inputs.unsqueeze(1)).sum())
show("func.grad", grad(loss_of)(weights)["head.bias"])
with FakeTensorMode(allow_non_fake_inputs=True):
    show("fake", tuple(nn.Linear(4, 4)(torch.empty(2, 4)).shape))
show("meta", tuple(nn.Linear(4, 4, device="meta")(torch.empty(2, 4, device="meta")).shape))
show("depth inside a model", Deep()(inputs) - depth())
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    Warns()(inputs)
show("warned at", [(w.filename.rpartition("/")[2], w.lineno) for w in heard])
try:
    Raises()(inputs)
except ValueError as error:
    show("frames", [frame.name for frame in traceback.extract_tb(error.__traceback__)])
try:
    (inputs.requires_grad_().sum() * float("nan")).backward(torch.ones(3))
except RuntimeError as error:
    frames = traceback.extract_tb(error.__traceback__)
    show("backward raised in", [frame.name for frame in frames][:2])
inputs = inputs.detach()
show("own __call__", OwnCall(WIDTH, 2)(inputs).shape)
show("source of __call__", "forward" in inspect.getsource(nn.Module.__call__))
show("signature", inspect.signature(torch.autograd.backward))
show("pickled", pickle.loads(pickle.dumps(model))(inputs).equal(model(inputs)))
kept = io.BytesIO()
torch.save(model, kept)
kept.seek(0)
show("saved", torch.load(kept, weights_only=False)(inputs).equal(model(inputs)))
show("copied", copy.deepcopy(model)(inputs).equal(model(inputs)))
found: list[Tensor] = []
threads = [threading.Thread(target=lambda: found.append(model(inputs).sum())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
show("threads", [value.item() for value in found])
outer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    outer.zero_grad()
    twice = F.cross_entropy(model(inputs), labels)
    twice.backward(retain_graph=True)
    torch.autograd.backward([twice], inputs=list(model.parameters()))
    outer.step()
show("trained", F.cross_entropy(model(inputs), labels).item())
show("profile function", sys.getprofile())
show("trace function", sys.gettrace())
show("threads alive", threading.active_count())
