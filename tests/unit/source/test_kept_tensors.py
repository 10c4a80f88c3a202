"""Lines that keep a tensor of every step."""

import pytest

from ridgeline.source.file import SourceFile
from ridgeline.source.kept_tensors import kept
from ridgeline.source.loops import block_loops

LOOP = """\
def train(model, loader):
    losses, total = [], 0.0
    for epoch in range(3):
        running = 0.0
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            {line}
"""


def found(line: str) -> list[tuple[int, bool, bool]]:
    """(line, with a graph, made anew in a loop further out)"""
    return [(k.line, k.graph, k.renewed) for k in kept(SourceFile("t.py", LOOP.format(line=line)))]


@pytest.mark.parametrize(
    "line",
    ["losses.append(loss)", "total += loss", "total = total + loss", "losses.append((x, out))",
     "cache[epoch] = out", "losses.append(out.float().cpu())", "losses.append(model[0](x))",
     "total = total + x.mean() + out.mean()"],
)  # fmt: skip
def test_with_its_graph(line: str) -> None:
    assert found(line) == [(9, True, False)]


def test_a_sum_of_an_epoch_lets_go_at_its_end() -> None:
    assert found("running += loss") == [(9, True, True)]


@pytest.mark.parametrize(
    "line",
    ["losses.append(loss.item())", "total += float(loss)", "total += loss.item() * len(x)",
     "total += loss.detach()", "losses.append(x.shape)", "steps += 1", "best[epoch] = loss < total",
     "losses.append(f'{loss}')", "count['steps'] = loss"],
)  # fmt: skip
def test_numbers_and_detached_sums_are_none(line: str) -> None:
    assert found(line) == []


def test_a_detached_tensor_is_kept_without_a_graph() -> None:
    assert found("losses.append(out.detach())") == [(9, False, False)]


def test_under_no_grad_there_is_no_graph() -> None:
    text = LOOP.format(line="losses.append(model(x))")
    assert [k.graph for k in kept(SourceFile("t.py", text))] == [True]
    quiet = text.replace("def train", "@torch.no_grad()\ndef train").replace("loss.backward()", "1")
    assert not any(k.graph for k in kept(SourceFile("t.py", quiet)))


def test_what_a_function_returns_is_followed() -> None:
    text = """\
def step(x):
    loss = model(x).mean()
    loss.backward()
    return loss

losses = []
for x in loader:
    losses.append(step(x))
"""
    assert [(k.line, k.graph) for k in kept(SourceFile("t.py", text))] == [(8, True)]
    freed = text.replace("return loss", "return loss.item()")
    assert not kept(SourceFile("t.py", freed))


@pytest.mark.parametrize(
    "change",
    [("self.seen = []", "self.seen = deque(maxlen=3)"), ("pass", "self.seen.clear()"),
     ("pass", "self.seen = []"), ("pass", "self.seen.pop(0)")],
)  # fmt: skip
def test_a_modules_own_list_unless_something_lets_go(change: tuple[str, str]) -> None:
    text = """\
class Net(nn.Module):
    def __init__(self):
        self.seen = []

    def forward(self, x):
        h = self.body(x)
        self.seen.append(h)
        parts = []
        for head in self.heads:
            parts.append(head(h))
        return parts

    def reset(self):
        pass
"""
    assert [(k.line, k.container, k.graph) for k in kept(SourceFile("t.py", text))] == [
        (7, "self.seen", True)
    ]
    assert not kept(SourceFile("t.py", text.replace(*change)))


def test_a_list_made_in_the_same_loop_is_none() -> None:
    text = "for x in loader:\n    outs = []\n    outs.append(model(x))\n"
    assert not kept(SourceFile("t.py", text))


def test_where_blocks_are_called_one_after_the_other() -> None:
    text = """\
class Net:
    def forward(self, x):
        for i, (block, norm) in enumerate(zip(self.blocks, self.norms)):
            x = block(norm(x), mask=self.mask)
        for epoch in range(3):
            y = self.head(x)
        return y
"""
    (loop,) = block_loops(SourceFile("t.py", text))
    assert (loop.line, loop.block, loop.target) == (4, "block", "x")
    assert loop.arguments == "norm(x), mask=self.mask"


def test_a_name_from_elsewhere_is_a_guess() -> None:
    text = """\
cache = {}

def remember(step, h):
    cache[step] = h

for step in range(9):
    began = time.perf_counter()
    times.append(began)
    seen.append(step)
"""
    assert [(k.line, k.guessed) for k in kept(SourceFile("t.py", text))] == [(4, True)]


PREDICT = """\
def predict(batches):
    outputs = []
    for x in batches:
        outputs.append(model(x))
    return torch.cat(outputs)


def train_one(x, y):
    loss = criterion(model(x), y)
    loss.backward()
    return loss


def fit(loader):
    history = []
    for x, y in loader:
        history.append(train_one(x, y))
"""


def test_a_list_of_a_function_that_trains_nothing_is_gone_when_it_returns() -> None:
    found = {k.container: k.temporary for k in kept(SourceFile("t.py", PREDICT))}
    assert found == {"outputs": True, "history": False}


def test_a_list_of_the_module_outlives_every_function() -> None:
    text = PREDICT.replace("    outputs = []\n", "").replace(
        "def predict", "outputs = []\n\ndef predict"
    )
    assert not any(k.temporary for k in kept(SourceFile("t.py", text)))


def test_a_line_that_was_seen_running_comes_before_one_that_was_not() -> None:
    inner = "if debug:\n                losses.append(loss)\n            more.append(out)"
    text = LOOP.format(line=inner)
    unseen, seen = (n for n, line in enumerate(text.splitlines(), 1) if ".append(" in line)
    assert [one.line for one in kept(SourceFile("t.py", text))] == [unseen, seen]
    first, second = kept(SourceFile("t.py", text, {seen: frozenset({"append"})}))
    assert (first.line, first.unseen) == (seen, False)
    assert (second.line, second.unseen) == (unseen, True)
