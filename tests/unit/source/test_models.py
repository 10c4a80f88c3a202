from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.models import Called, MadeAt, backward, called, made, to_backward

FUNCTION = """\
import torch
def main():
    model = Net().to(device)
    opt = torch.optim.SGD(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        for x, y in loader:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
"""
TRAINER = """\
class Trainer:
    def __init__(self, model):
        self.model = model
        self.loss = nn.MSELoss()
    def step(self, batch):
        out = self.model(batch["x"], mask=mask)
        loss = self.loss(
            out,
            batch["y"],
        )
        self.scaler.log(loss)
        loss.backward()
"""
MODULE = """\
net = Net()
if distributed:
    net = DDP(net)
def evaluate():
    return net(x)
for x, y in data:
    out = net(x)
    loss = F.mse_loss(out, y)
    loss.backward()
"""
RETURNED = """\
def build(vocabulary):
    model = GPT(vocabulary)
    return model
def train(model, data):
    for x in data:
        out = model(x)
        (out.sum() / 2).backward()
def main():
    gpt, opt = build(10), None
    train(gpt, data)
if __name__ == "__main__":
    main()
"""


def test_a_model_of_a_function_is_found_behind_its_loss() -> None:
    assert called(FUNCTION, 8) == Called(name="model", first=8, last=8, given=("x",))
    assert made(FUNCTION, 8) == MadeAt(line=3, name="model")
    assert to_backward(FUNCTION, 8) == (8, 9)


def test_a_model_of_an_object_is_found_where_init_sets_it() -> None:
    assert called(TRAINER, 6) == Called(name="self.model", first=6, last=6, given=("", ""))
    assert made(TRAINER, 6) == MadeAt(line=3, name="self.model")
    assert to_backward(TRAINER, 6) == (6, 11)


def test_a_branch_that_wraps_the_model_is_left_before_it_is_changed() -> None:
    assert made(MODULE, 7) == MadeAt(line=2, name="net")
    assert made(MODULE, 5) == MadeAt(line=2, name="net")


def test_a_wrapped_model_is_reached_inside_its_wrapper() -> None:
    text = "m = DDP(Net())\nfor x in d:\n    m(x).sum().backward()\n"
    assert made(text, 3) == MadeAt(line=1, name="m.module")
    moved = text.replace("DDP(Net())", "nn.DataParallel(Net()).cuda()")
    assert made(moved, 3) == MadeAt(line=1, name="m.module")


def test_a_model_handed_to_a_function_is_followed_to_its_caller() -> None:
    assert made(RETURNED, 6) == MadeAt(line=9, name="gpt")
    assert to_backward(RETURNED, 6) == (6, 6)


def test_a_model_made_under_the_main_guard_stays_there() -> None:
    text = 'def go(m):\n    m(x)\nif __name__ == "__main__":\n    a = 1\n    m = Net()\n    go(m)\n'
    assert made(text, 2) == MadeAt(line=5, name="m")


def test_names_that_may_not_be_given_away_are_left_out() -> None:
    """An assignment in a closure would hide the name around it."""
    text = "m = Net()\nfor x in d:\n    def closure():\n        return m(x)\n    m(x, **x)\n"
    inner, outer = called(text, 4), called(text, 5)
    assert isinstance(inner, Called)
    assert isinstance(outer, Called)
    assert (inner.given, outer.given) == (("",), ("x",))


def test_a_model_handed_over_from_another_file_is_found_there() -> None:
    engine = "def train(model, data):\n    for x in data:\n        model(x).sum().backward()\n"
    main = "from engine import train\nnet = Net()\ntrain(net, d)\n"
    files = [("engine.py", engine), ("main.py", main)]
    assert made(engine, 3, "", files) == MadeAt(line=2, name="net", file="main.py")
    twice = [*files, ("other.py", main)]
    elsewhere = because(Obstacle.MADE_IN_OTHER_FILE, name="model", function="train")
    assert made(engine, 3, "", twice) == elsewhere


def test_the_class_tells_the_model_from_what_prepares_its_input() -> None:
    text = "tok = Tokenizer()\nm = Net()\nfor x in d:\n    loss = m(tok(x)).loss\n"
    found = called(text, 4, "Net")
    assert isinstance(found, Called)
    assert found.name == "m"


def test_a_call_over_several_lines_is_found_by_the_model_s_own_line() -> None:
    text = "m = Net()\nfor x in d:\n    loss = F.mse_loss(\n        m(x),\n        y,\n    )\n"
    assert called(text, 4) == Called(name="m", first=3, last=6, given=("x",))


def test_what_cannot_be_followed_is_said() -> None:
    def obstacle(text: str, line: int) -> str:
        answer = made(text, line)
        assert isinstance(answer, Reason)
        return answer.code

    assert obstacle("models[0](x)\n", 1) == Obstacle.NO_NAMED_CALL
    assert obstacle("def f(model):\n    model(x)\n", 2) == Obstacle.MADE_IN_OTHER_FILE
    assert obstacle("for x in d:\n    m = Net()\n    m(x)\n", 3) == Obstacle.ASSIGNED_EVERY_PASS
    text = "a = N()\nb = N()\ndef f(m):\n    m(x)\nf(a)\nf(b)\n"
    assert obstacle(text, 4) == Obstacle.FROM_SEVERAL_PLACES
    text = "class L:\n    def s(self, b):\n        self(b)\n"
    assert obstacle(text, 3) == Obstacle.MODEL_CALLS_ITSELF
    assert obstacle("def (:\n", 1) == Obstacle.NOT_PYTHON


def test_a_loss_in_one_statement_with_its_backward_is_refused() -> None:
    text = "m = Net()\nfor x in d:\n    F.mse_loss(m(x), y).backward()\n"
    assert to_backward(text, 3) == because(Obstacle.ONE_STATEMENT)


def test_a_block_that_returns_the_loss_is_taken_whole() -> None:
    text = "def loss_of(model, x):\n    out = model(x)\n    out = out * 2\n    return out.mean()\n"
    assert to_backward(text, 2) == (2, 4)


def test_a_block_without_an_end_is_refused() -> None:
    text = "m = Net()\nfor x in d:\n    out = m(x)\n    use(out)\n"
    assert to_backward(text, 3) == because(Obstacle.NO_BACKWARD)


def test_a_backward_after_the_block_the_call_is_in_is_found() -> None:
    text = "m = GPT()\nwhile True:\n    for micro in range(4):\n        with ctx:\n"
    text += "            logits, loss = m(X, Y)\n            loss = loss / 4\n        X = get()\n"
    text += "        scaler.scale(loss).backward()\n    opt.step()\n"
    assert to_backward(text, 5) == (5, 6)
    assert backward(text, 5) == (8, 8)
    assert made(text, 5) == MadeAt(line=1, name="m")


def test_the_backward_may_be_a_framework_s_or_in_a_branch() -> None:
    text = "m = Net()\nfor x in d:\n    out = m(x)\n    loss = f(out)\n    if train:\n"
    text += "        accelerator.backward(loss)\n"
    assert to_backward(text, 3) == (3, 4)
    assert backward(text, 3) == (5, 6)
    nothing = "m = N()\nfor x in d:\n    m(x)\n"
    assert backward(nothing, 3) == because(Obstacle.NO_BACKWARD)
