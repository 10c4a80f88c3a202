"""Loops in Python over rows and time steps, and what only looks like one."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.python_loops import python_loop as look
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_launch import case, gradients, site

SOURCE = """import torch
class Head:
    def forward(self, x):
        rows = []
        for row in x:
            rows.append(torch.tanh(self.mix(row)))
        return torch.stack(rows)
class Cell:
    def forward(self, x, h):
        return torch.tanh(x + h)
class Net:
    def __init__(self):
        self.cell = Cell()
    def forward(self, x):
        h = x[0]
        while more(x):
            h = self.cell(x[0], h)
        return h
def main():
    for x in data:
        model(x).sum().backward()
"""
ROW = (256,)


def rows(at: tuple[str, int] = ("forward", 3), number: float = 96) -> list[OpSite]:
    back = "autograd::engine::evaluate_function: AddmmBackward0"
    return [
        site("linear", number, 2.0, at=at, dims=(ROW, (256, 256)), module="Head / Linear_0"),
        site("addmm", number, 6.0, at=at, dims=((256,), (1, 256)), within=("aten::linear",),
             module="Head / Linear_0"),
        site("tanh", number, 2.0, at=at, dims=(ROW,), module="Head"),
        site(back, number, 9.0, at=at, dims=(), phase="backward", module="Head"),
        site("mm", 1, 5.0, module="Linear_3"),
        site("mm", 1, 9.0, phase="backward", module="Linear_3"),
    ]  # fmt: skip


def test_loop_over_rows_is_found_with_its_backward() -> None:
    (one,) = look(case([*rows(), *gradients(4)], source=SOURCE))
    assert "A Python loop in forward() calls the same operators 96 times a step" in one.claim
    assert "192 small calls" in one.claim
    assert one.place == "train.py:5"
    assert one.confidence == "high"
    assert one.share_pct == pytest.approx(100 * (0.5 * 0.98 + 0.3 * 0.5), abs=18)
    assert "`x`" in one.change
    assert "`row`" in one.change


def test_recurrence_is_found_where_the_cell_is_called() -> None:
    (one,) = look(case([*rows(at=("forward", 9)), *gradients(4)], source=SOURCE))
    assert one.line == 16
    assert one.confidence == "medium"
    assert "`h`" in one.change
    assert "not all of it" in one.doubt


def test_tensors_of_a_batch_that_are_moved_one_by_one_are_no_rows() -> None:
    moved = SOURCE.replace("torch.tanh(self.mix(row))", "row.to(device)")
    assert not [*look(case([site("to", 96, 9.0, at=("forward", 3), dims=(ROW,))], source=moved))]


def test_without_source_it_is_said_with_less_confidence() -> None:
    (one,) = look(case([*rows(), *gradients(4)]))
    assert one.confidence == "low"
    assert one.line == 3


def test_layers_that_share_weights_in_a_library_s_loop_are_not_a_loop_of_the_program() -> None:
    assert not [*look(case([*rows(at=("main", 19)), *gradients(4)], source=SOURCE))]


def test_depth_of_a_model_is_not_a_loop() -> None:
    deep = [site("linear", 1, 1.0, at=("forward", 3), module=f"Block_{i}") for i in range(64)]
    assert not [*look(case([*deep, *gradients(64)], source=SOURCE))]


def test_loop_over_layers_is_the_depth_of_a_model() -> None:
    """x + tanh(l(x)): the sum and the tanh are the model's own operators, 96 times."""
    deep = SOURCE.replace("for row in x:", "for l in self.layers:").replace("self.mix(row)", "l(x)")
    assert not [*look(case([*rows(), *gradients(4)], source=deep))]


def test_large_pieces_and_operators_inside_one_call_are_silent() -> None:
    chunks = site("linear", 96, 60.0, at=("forward", 3), dims=((4096, 1024),))
    assert not [*look(case([chunks, *gradients(4)], source=SOURCE))]
    recurrent = site("linear", 96, 6.0, at=("forward", 3), within=("aten::lstm",))
    assert not [*look(case([recurrent, *gradients(4)], source=SOURCE))]


def test_views_alone_are_silent() -> None:
    views = [site("select", 500, 5.0, at=("forward", 3)), site("detach", 500, 5.0)]
    assert not [*look(case([*views, *gradients(4)], source=SOURCE))]


def of(body: str) -> list[str]:
    """Changes proposed for a loop at line 7."""
    text = f"""import torch
class Net:
    def __init__(self):
        self.mix, self.score = nn.Linear(8, 8), 1
    def forward(self, x, y):
        h = x
{body}
"""
    ops = [*rows(at=("forward", 5)), *gradients(4)]
    return [one.change for one in look(case(ops, source=text))]


def test_turns_that_change_an_object_are_silent() -> None:
    """Steps of an environment: two functions call operators in one loop."""
    text = """class Env:
    def step(self, a):
        self.s = 0.9 * self.s + a
        return self.s
env = Env()
for update in range(9):
    for t in range(96):
        a = torch.tanh(pi(obs))
        nxt = env.step(a)
        obs = nxt
    loss.backward()
"""
    ops = [*rows(at=("step", 2)), *rows(at=("<module>", 1))]
    assert not [*look(case([*ops, *gradients(4)], source=text))]
    alone = text.replace("obs = nxt", "pass")
    assert not [*look(case([*ops, *gradients(4)], source=alone))]
    free = alone.replace("0.9 * self.s + a", "torch.tanh(a)")
    assert [*look(case([*ops, *gradients(4)], source=free))]


def test_one_loop_gives_one_finding() -> None:
    text = """def mix(row):
    return torch.tanh(row)
def forward(x):
    for row in x:
        y.append(mix(row).exp())
"""
    ops = [*rows(at=("mix", 1))[2:3], *rows(at=("forward", 3)), *gradients(4)]
    (one,) = look(case(ops, source=text))
    assert one.place == "train.py:4"
    assert "288 small calls" in one.claim


def test_code_is_proposed_only_where_it_means_the_same() -> None:
    loop = "        for i in range(n):\n            "
    (safe,) = of(loop + "out.append(torch.tanh(x[i] * 2))")
    assert safe.startswith("out = torch.tanh(x[:n] * 2) ")
    for body in (
        "out.append(F.cross_entropy(x[i], torch.tensor([i])))",
        "out.append((y == i).sum())",
        "out.append(torch.tanh(x[i]) * i)",
    ):
        (words,) = of(loop + body)
        assert words.startswith("# without `for i in range(n)`: line 8 for all `i` at once")
        assert "torch.arange(n)" in words
        assert "`:`" not in words


def test_torchs_own_cell_takes_the_whole_sequence() -> None:
    text = """class Net:
    def __init__(self):
        self.rnn = nn.LSTMCell(48, hidden)
    def forward(self, e):
        for t in range(e.size(1)):
            h, c = self.rnn(e[:, t], (h, c))
            hs.append(h)
"""
    ops = [site("lstm_cell", 96, 20.0, at=("forward", 4), dims=(ROW,), module="Net"), *rows()[-2:]]
    (one,) = look(case([*ops, *gradients(4)], source=text))
    layer, call = one.change.splitlines()
    assert layer.startswith("self.rnn = nn.LSTM(48, hidden, batch_first=True)  # line 3")
    assert call.startswith("hs, _ = self.rnn(e, (h[None], c[None]))  #")
    assert one.claim == "A Python loop in forward() calls lstm_cell 96 times a step"
    fed = text.replace("self.rnn(e[:, t],", "self.rnn(mix(h),")
    (own,) = look(case([*ops, *gradients(4)], source=fed))
    assert own.change.startswith("@torch.compile")


def test_names_handed_on_are_a_recurrence_only_where_gradients_come_back() -> None:
    text = """def forward(x):
    for t in range(n):
        z = torch.tanh(mix(h))
        h = z + x[t]
"""
    ops = [*rows(at=("forward", 1)), *gradients(4)]
    (one,) = look(case(ops, source=text))
    assert one.change.startswith("@torch.compile")
    assert "`h`" in one.change
    rolled = [s for s in ops if s.phase != "backward" or s.module != "Head"]
    assert not [*look(case(rolled, source=text))]
    few = [*rows(at=("forward", 1), number=24), *gradients(4)]
    assert not [*look(case(few, source=text))]


CELL = """class Net:
    def __init__(self):
        self.rnn = nn.LSTMCell(1, 51)
    def forward(self, x):
        for part in x.split(1, dim=1):
            h, c = self.rnn(part, (h, c))
            outputs.append(h)
"""


def cells(batch: int, element_ms: float) -> list[OpSite]:
    """A cell called 40 times with a batch whose product takes far longer than a call."""
    where, inside = ("forward", 4), ("aten::lstm_cell",)
    product = replace(
        site("addmm", 40, 20.0, at=where, within=inside, dims=((512,), (batch, 128)), module="Net"),
        flops=40 * 2.0 * batch * 128 * 512,
    )
    return [
        site("lstm_cell", 40, 2.0, at=where, dims=((batch, 128),), module="Net"),
        product,
        site("sigmoid_", 120, element_ms, at=where, within=inside, module="Net"),
        *rows()[-2:],
    ]


def test_a_cell_over_a_large_batch_is_advised_to_use_the_layer() -> None:
    """Its products keep the processor busy, the calls around them do not: 1.6 × was measured."""
    (one,) = look(case([*cells(64, 2.0), *gradients(4)], source=CELL))
    assert one.place == "train.py:5"
    assert "nn.LSTM(1, 51)" in one.change
    assert "torch.stack(tuple(x.split(1, dim=1)))" in one.change
    assert one.gain_bound > 1 / (1 - one.share_pct / 100)


def test_a_cell_whose_work_is_large_and_a_decoder_are_silent() -> None:
    assert not [*look(case([*cells(1024, 22.0), *gradients(4)], source=CELL))]
    fed = CELL.replace("self.rnn(part,", "self.rnn(mix(h),")
    assert not [*look(case([*cells(1024, 2.0), *gradients(4)], source=fed))]
