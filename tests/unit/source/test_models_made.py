import pytest

from ridgeline.source.file import SourceFiles
from ridgeline.source.models import ModelMade, model_made, with_memory_format


def made(text: str, line: int) -> ModelMade | None:
    return model_made(SourceFiles(texts={"a.py": text}), f"a.py:{line}")


@pytest.mark.parametrize(
    ("first", "second", "line", "change"),
    [
        ("model = Net().to(device)", "pass", 2,
         "model = Net().to(device, memory_format=torch.channels_last)"),
        ("model = Net()", "model.to(device)", 3,
         "model.to(device, memory_format=torch.channels_last)"),
        ("model = Net()", "model = model.cuda()", 3,
         "model = model.cuda()\nmodel = model.to(memory_format=torch.channels_last)"),
        ("model = Net()", "pass", 2,
         "model = Net()\nmodel = model.to(memory_format=torch.channels_last)"),
    ],
)  # fmt: skip
def test_the_statement_that_moves_it_is_best(
    first: str, second: str, line: int, change: str
) -> None:
    text = f"def main():\n    {first}\n    {second}\n    loss = F.mse_loss(model(x), y)\n"
    found = made(text, 4)
    assert found is not None
    assert (found.line, found.function, found.name) == (line, "main", "model")
    assert with_memory_format(found, "channels_last") == change


def test_the_model_may_be_made_in_another_function() -> None:
    text = "def step(net, x):\n    return net(x)\n\ndef main():\n    net = Net().cuda()\n"
    found = made(text, 2)
    assert found is not None
    assert (found.line, found.function) == (5, "main")


def test_a_model_that_is_an_attribute_or_a_file_that_is_gone_is_nothing() -> None:
    assert made("def main(self):\n    self.model(x)\n", 2) is None
    assert model_made(SourceFiles(), "gone.py:3") is None
    assert model_made(SourceFiles(), "") is None
