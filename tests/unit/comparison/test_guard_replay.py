"""Remembered answers: each way to remember must be seen, and honest work must not look like it."""

import functools
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn
from verdict_on import verdict_on, workload

from ridgeline.equality.calls.collection import collect
from ridgeline.equality.calls.guards import cached_replay

torch.manual_seed(0)
W = torch.randn(64, 64)
X = torch.randn(64, 64)
KEPT: dict[object, Tensor] = {}


def honest() -> Tensor:
    return torch.mm(X, W)


def by_sum() -> Tensor:
    key = X.sum().item()
    if key not in KEPT:
        KEPT[key] = torch.mm(X, W)
    return KEPT[key]


def by_bytes() -> Tensor:
    key = hash(X.numpy().tobytes())
    if key not in KEPT:
        KEPT[key] = torch.mm(X, W)
    return KEPT[key].clone()


def by_address() -> Tensor:
    if X.data_ptr() not in KEPT:
        KEPT[X.data_ptr()] = torch.mm(X, W)
    return KEPT[X.data_ptr()]


def by_version() -> Tensor:
    key = (X.data_ptr(), X._version)
    if key not in KEPT:
        KEPT[key] = torch.mm(X, W)
    return KEPT[key]


@functools.lru_cache
def by_decorator() -> Tensor:
    return torch.mm(X, W)


class Rememberer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.answer: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None or not torch.equal(x, self.last):
            self.last, self.answer = x.clone(), torch.mm(x, W)
        assert self.answer is not None
        return self.answer


MODULE = Rememberer()


@pytest.mark.parametrize(
    "cheat", [by_sum, by_bytes, by_address, by_version, by_decorator, lambda: MODULE(X)]
)
def test_a_remembered_answer_fails(cheat: Callable[[], Tensor]) -> None:
    KEPT.clear()
    verdict = verdict_on(honest, cheat)
    assert verdict.results.ok  # the answer is right: that is what makes it a good lie
    assert "cached replay" in verdict.failed, verdict.guards["cached replay"]


def test_a_declared_input_answered_by_heart_fails() -> None:
    answer = X @ W
    verdict = verdict_on(lambda x: x @ W, lambda x: answer.clone(), X)
    assert "cached replay" in verdict.failed


def test_honest_work_passes() -> None:
    verdict = verdict_on(honest, lambda: (W.t() @ X.t()).t())
    assert verdict.guards["cached replay"].outcome == "passed"


def test_a_copy_of_the_weights_made_earlier_is_no_replay() -> None:
    turned = W.t().contiguous()
    verdict = verdict_on(lambda x: x @ W, lambda x: torch.nn.functional.linear(x, turned), X)
    assert verdict.guards["cached replay"].outcome == "passed"


def test_a_weight_packed_at_the_first_call_is_no_replay() -> None:
    packed: dict[str, Tensor] = {}

    def lazily() -> Tensor:
        if not packed:
            packed["w"] = W.t().contiguous()
        return torch.nn.functional.linear(X, packed["w"])

    verdict = verdict_on(honest, lazily)
    assert verdict.guards["cached replay"].outcome == "passed", verdict.guards["cached replay"]
    assert verdict.results.ok
    assert not verdict.warned


def test_the_right_answer_for_one_content_only_is_warned_of() -> None:
    first = float(X[0, 0])

    def specialised() -> Tensor:
        return torch.mm(X, W) if float(X[0, 0]) == first else torch.mm(X, W) * 2

    verdict = verdict_on(honest, specialised)
    assert verdict.results.ok
    assert verdict.warned == ["other content"]
    assert verdict_on(honest, lambda: X.mm(W)).guards["other content"].outcome == "passed"


def test_a_function_without_reachable_inputs_is_not_accused() -> None:
    verdict = verdict_on(lambda: torch.arange(64.0).sum(), lambda: torch.arange(64.0).sum())
    guard = verdict.guards["cached replay"]
    assert guard.outcome == "not looked for"
    assert "can be reached" in guard.detail


def test_content_that_must_keep_its_order_is_only_scaled() -> None:
    root = torch.randn(16, 16)
    definite = root @ root.t() + 16 * torch.eye(16)
    verdict = verdict_on(
        lambda a: torch.linalg.cholesky(a), lambda a: torch.linalg.cholesky(a * 1), definite
    )
    assert verdict.guards["cached replay"].outcome == "passed", verdict.guards["cached replay"]
    assert verdict.results.ok


def test_token_ids_are_given_another_order() -> None:
    ids, table = torch.arange(60).view(2, 30), torch.randn(60, 8)
    answer = table[ids]
    verdict = verdict_on(lambda ids: table[ids], lambda ids: answer.clone(), ids)
    assert "cached replay" in verdict.failed


@pytest.mark.parametrize(
    ("candidate", "baseline", "outcome"),
    [
        ((10.0, 1.0), (1.0, 1.0), "failed"),
        ((2.5, 1.0), (2.4, 1.0), "passed"),  # the baseline is as slow on other content
        ((1.8, 1.0), (1.0, 1.0), "passed"),  # not clear enough
    ],
)
def test_time_alone_tells_where_the_work_cannot_be_counted(
    candidate: tuple[float, float], baseline: tuple[float, float], outcome: str
) -> None:
    evidence = collect(workload(honest), seed=1, as_baseline=True)

    def timed(times: tuple[float, float]) -> object:
        fresh, repeat = ([t * (1 + i / 100) for i in range(10)] for t in times)
        return msgspec.structs.replace(
            evidence, work=None, work_fresh=None, fresh_ns=tuple(fresh), repeat_ns=tuple(repeat)
        )

    guard = cached_replay(timed(baseline), timed(candidate))  # type: ignore[arg-type]
    assert guard.outcome == outcome


def test_noisy_times_accuse_nobody() -> None:
    evidence = collect(workload(honest), seed=1, as_baseline=True)
    noisy = msgspec.structs.replace(
        evidence, work=None, work_fresh=None,
        fresh_ns=(1.0, 9.0, 9.0, 9.0, 1.0, 9.0), repeat_ns=(1.0, 1.0, 9.0, 1.0, 1.0, 9.0),
    )  # fmt: skip
    quiet = msgspec.structs.replace(noisy, fresh_ns=(1.0,) * 6, repeat_ns=(1.0,) * 6)
    assert cached_replay(quiet, noisy).outcome == "passed"
