"""TF32 on for a while; the program's setting comes back."""

from collections.abc import Iterator

import pytest
import torch

from ridgeline.machine.microbenchmarks import float32_products


@pytest.fixture(autouse=True)
def _default_afterwards() -> Iterator[None]:
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_the_flag_is_restored(before: bool, tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = before
    with float32_products(tf32=tf32):
        pass
    assert torch.backends.cuda.matmul.allow_tf32 is before
    assert torch.get_float32_matmul_precision() == ("high" if before else "highest")


def _leave(tf32: bool) -> None:
    with float32_products(tf32=tf32):
        raise KeyError


def test_the_flag_is_restored_after_an_error() -> None:
    with pytest.raises(KeyError):
        _leave(tf32=True)
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9 brought fp32_precision"
)
def test_an_inherited_setting_stays_inherited() -> None:
    torch.backends.cuda.matmul.fp32_precision = "none"
    with float32_products(tf32=True):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "none"
