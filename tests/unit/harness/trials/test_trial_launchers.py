import pytest

from ridgeline.harness.capture.launch import is_launcher
from ridgeline.harness.capture.step_boundaries import Anchor, Turn


@pytest.mark.parametrize(
    ("typed", "launches"),
    [
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], True),
        (["python", "-u", "/opt/bin/torchrun", "train.py"], True),
        (["python", "train.py", "-m", "torch.distributed.run"], False),
        (["python", "-m", "mypackage.train"], False),
        (["python", "-c", "import torch"], False),
        (["python"], False),
    ],
)
def test_a_launcher_is_distinguished_from_a_program_that_trains(
    typed: list[str], launches: bool
) -> None:
    assert is_launcher(typed) is launches


def test_an_optimizer_that_is_gone_does_not_come_back_as_another() -> None:
    anchor = Anchor()
    for who in (1, 1, 2, 2):
        assert anchor.stepped(who) is Turn.ENDS
    anchor.gone(1)
    assert anchor.stepped(1) is Turn.ENDS  # a third, which has the first one's id
    assert not anchor.cyclic
