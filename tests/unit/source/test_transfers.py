"""Whether what a line copies can be another thing the next time."""

import pytest

from ridgeline.source.file import SourceFile
from ridgeline.source.transfers import copy_on_line, unchanged

NAMES = frozenset({"to", "cuda", "tensor"})


def same(text: str, line: int) -> bool:
    source = SourceFile("train.py", text)
    call = copy_on_line(source, line, NAMES)
    assert call is not None
    return unchanged(source, call)


def loop(body: str, before: str = "") -> str:
    head = f"def main(weights, model):\n    {before or 'pass'}\n"
    return f"{head}    for i, x in data:\n        {body}\n"


@pytest.mark.parametrize(
    "body",
    [
        "f(weights.to(device))",
        "f(weights[0].to(device))",
        "f(data.table.cuda())",
        "f(torch.ones(3).to(device))",
        "f(torch.tensor([1.0, 2.0], device=device))",
        "f(torch.arange(n).float().to(device))",
    ],
)
def test_what_no_turn_of_the_loop_sets_is_the_same(body: str) -> None:
    assert same(loop(body, "n = 3"), 4)


@pytest.mark.parametrize(
    "body",
    [
        "f(x.to(device))",
        "weights = weights.to(device)",
        "f(weights[i].to(device))",
        "weights[0] = x; f(weights.to(device))",
        "weights.copy_(x); f(weights.to(device))",
        "fill(weights); f(weights.to(device))",
        "torch.add(x, 1, out=weights); f(weights.to(device))",
        "f(next(batches).to(device))",
        "f(torch.randn(3).to(device))",
        "f(torch.tensor([i], device=device))",
    ],
)
def test_what_the_loop_sets_fills_or_draws_is_not(body: str) -> None:
    assert not same(loop(body), 4)


def test_in_a_function_called_each_step_arguments_are_another_each_time() -> None:
    text = "MASK = make()\ndef step(x):\n    y = x.to(d)\n    return y + MASK.to(d)\n"
    assert not same(text, 3)
    assert same(text, 4)


def test_an_attribute_is_the_same_where_init_alone_sets_it() -> None:
    text = """\
class Net:
    def __init__(self):
        self.a = make()
        self.b = make()
    def forward(self, x):
        self.b = x
        u = self.a.to(x.device)
        v = self.b.to(x.device)
        w = self.c.to(x.device)
"""
    assert same(text, 7)
    assert not same(text, 8)
    assert not same(text, 9)
