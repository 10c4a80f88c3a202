"""Which functions draw random numbers, by their source."""

import pytest

from ridgeline.source.datasets import draws_random_numbers
from ridgeline.source.file import SourceFiles


def drawn(body: str) -> bool | None:
    return draws_random_numbers(
        SourceFiles(texts={"a.py": f"def f(x):\n    {body}\n    return x\n"}), "a.py", 2
    )


@pytest.mark.parametrize(
    "body",
    [
        "x = random.random()",
        "i = torch.randint(0, 4, (1,))",
        "x = self.rng.integers(4)",
        "x = np.random.default_rng(0).normal()",
        "x = RandomCrop(32)(x)",
        "random.shuffle(x)",
        "x = self.augment(x)",
        "x.uniform_(0, 1)",
    ],
)
def test_draws(body: str) -> None:
    assert drawn(body) is True


@pytest.mark.parametrize(
    "body",
    ["x = json.loads(x)", "x = x[::-1]", "x = Image.open(x).convert('RGB')", "x = torch.stack(x)"],
)
def test_does_not(body: str) -> None:
    assert drawn(body) is False


def test_a_file_that_cannot_be_read_is_not_known() -> None:
    assert draws_random_numbers(SourceFiles(texts={}), "gone.py", 3) is None
