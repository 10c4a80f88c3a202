"""Averages of weights, one tensor at a time or all at once."""

from ridgeline.diagnosis.rules.python_loops import clip_by_tensor, python_loop
from ridgeline.diagnosis.rules.python_loops import metrics_by_tensor as look
from tests.unit.diagnosis.rules.made_up_launch import case, gradients, site

SOURCE = """import torch
def follow(average, model):
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.mul_(0.99).add_(fast, alpha=0.01)
def main():
    for x in data:
        model(x).sum().backward()
        follow(average, model)
"""
AT = ("follow", 2)
EMA = [site("mul_", 100, 4.0, at=AT), site("add_", 100, 4.0, at=AT)]


def test_average_by_tensor_is_found_at_its_loop() -> None:
    whole = case([*EMA, *gradients()], source=SOURCE)
    (one,) = look(whole)
    assert one.claim == "follow() updates 100 tensors one at a time: 200 operator calls a step"
    assert one.place == "train.py:3"
    assert one.change == (
        "torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)"
    )
    assert one.share_pct >= 8
    assert not [*clip_by_tensor(whole)]
    assert not [*python_loop(whole)]


def test_metrics_kept_one_a_tensor_count_too() -> None:
    ops = [site("add_", 40, 4.0, at=("note", 3), dims=((), ())), *gradients()]
    (one,) = look(case(ops))
    assert one.claim == "note() updates 40 tensors a step one at a time"
    assert "names to be replaced by your own" in one.change
    assert one.confidence == "medium"  # no source


def test_one_call_for_all_is_silent() -> None:
    assert not [*look(case([site("_foreach_lerp_", 1, 4.0, at=AT), *gradients()], source=SOURCE))]


def test_clipping_and_an_average_in_one_function_are_told_apart() -> None:
    norms = [site(op, 100, 3.0) for op in ("square", "sum", "mul_")]
    whole = case([*norms, site("lerp_", 100, 4.0), *gradients()])
    (average,) = look(whole)
    (clip,) = clip_by_tensor(whole)
    assert "100 tensors a step" in average.claim
    assert "300 operator" in clip.claim


def test_the_change_has_the_programs_own_names() -> None:
    head = "    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):\n"
    body = "        slow.mul_(0.99).add_(fast, alpha=0.01)\n"
    items = "    for name, value in net.state_dict().items():\n"
    kept = "        self.kept[name] = self.d * self.kept[name] + (1 - self.d) * value\n"
    slow, fast = "list(average.parameters())", "list(model.parameters())"
    for loop, said in {
        head + body.replace("0.01", "tau"): f"slow = {slow}\ntorch._foreach_mul_(slow, 0.99)\n"
        f"torch._foreach_add_(slow, {fast}, alpha=tau)",
        head + "        slow.data.lerp_(fast.data, tau)\n":
        f"torch._foreach_lerp_({slow}, {fast}, tau)",
        head + "        slow.copy_(fast)\n": f"torch._foreach_copy_({slow}, {fast})",
        items + kept: "torch._foreach_lerp_([self.kept[name] for name in net.state_dict()], "
        "list(net.state_dict().values()), 1 - self.d)  # integer buffers left out",
    }.items():  # fmt: skip
        (one,) = look(case([*EMA, *gradients()], source=SOURCE.replace(head + body, loop)))
        assert one.change == said
    more = SOURCE.replace(body, body + "        seen.update(slow)\n")
    (one,) = look(case([*EMA, *gradients()], source=more))
    assert "names to be replaced by your own" in one.change


ROWS = """import torch
def doubled(t):
    res = []
    for i in range(t.size(0)):
        res.append(t[i] * 2)
    return torch.stack(res)
"""


def test_rows_as_large_as_a_parameter_are_data_and_not_averages() -> None:
    ops = [site("mul", 200, 8.0, at=("doubled", 2)), site("select", 200, 2.0, at=("doubled", 2))]
    whole = case([*ops, *gradients()], source=ROWS)
    assert not [*look(whole)]
    (one,) = python_loop(whole)
    assert one.place == "train.py:4"
    assert one.change.startswith("res = t * 2 ")
