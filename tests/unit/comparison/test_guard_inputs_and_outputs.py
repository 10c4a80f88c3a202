"""Guards on what goes in and what comes out, each with a cheat and with honest code beside it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from verdict_on import built, judged, verdict_on

torch.manual_seed(0)
X, W = torch.randn(64, 64), torch.randn(64, 64)


def test_a_candidate_that_changes_its_input_fails() -> None:
    verdict = verdict_on(lambda x: x.sort().values, lambda x: x.copy_(x.sort().values), X.clone())
    assert "mutated inputs" in verdict.failed
    assert "input 0" in verdict.guards["mutated inputs"].detail


def test_a_candidate_that_changes_what_it_closes_over_fails() -> None:
    def factory(in_place: bool) -> Callable[[], Callable[[], Tensor]]:
        def build() -> Callable[[], Tensor]:
            x = torch.randn(64, 64).abs() + 1

            def normalise() -> Tensor:
                return x.div_(x.sum()) if in_place else x / x.sum()

            return normalise

        return build

    verdict = judged(built(factory(False)), built(factory(True)))
    assert "mutated inputs" in verdict.failed


def test_a_candidate_that_trains_where_the_baseline_does_not_fails() -> None:
    norm, frozen = nn.BatchNorm1d(64), nn.BatchNorm1d(64)
    frozen.eval()
    assert not verdict_on(lambda: norm(X), lambda: norm(X) * 1).failed
    assert "mutated inputs" not in verdict_on(lambda: norm(X), lambda: frozen(X)).failed

    weight = nn.Parameter(torch.ones(64))

    def decay() -> Tensor:
        out = X * weight.detach()
        weight.data.mul_(0.999)
        return out

    verdict = verdict_on(lambda: X * weight.detach(), decay)
    assert "mutated inputs" in verdict.failed


def test_scratch_of_its_own_is_no_input() -> None:
    scratch = torch.zeros(64, 64)

    def with_scratch() -> Tensor:
        torch.mm(X, W, out=scratch)
        return scratch + 1

    verdict = verdict_on(lambda: X @ W + 1, with_scratch)
    assert verdict.results.ok
    assert verdict.guards["mutated inputs"].outcome == "passed"
    assert "scratch" in verdict.guards["mutated inputs"].detail


def test_scratch_in_both_variants_is_fine() -> None:
    one, two = torch.zeros(64, 64), torch.zeros(64, 64)

    def using(scratch: Tensor) -> Callable[[], Tensor]:
        def call() -> Tensor:
            torch.mm(X, W, out=scratch)
            return scratch.relu()

        return call

    verdict = verdict_on(using(one), using(two))
    assert verdict.results.status == "bit-identical"
    assert not verdict.failed


def test_static_buffers_as_a_cuda_graph_has_them_warn_and_do_not_fail() -> None:
    def factory() -> tuple[Callable[[Tensor], Tensor], Tensor]:
        torch.manual_seed(5)
        weight, x = torch.randn(64, 64), torch.randn(64, 64)
        static_in, static_out = torch.zeros(64, 64), torch.zeros(64, 64)

        def replayed(x: Tensor) -> Tensor:
            static_in.copy_(x)
            torch.mm(static_in, weight, out=static_out)
            return static_out

        return replayed, x

    def plain() -> tuple[Callable[[Tensor], Tensor], Tensor]:
        torch.manual_seed(5)
        weight, x = torch.randn(64, 64), torch.randn(64, 64)
        return lambda x: x @ weight, x

    verdict = judged(built(plain), built(factory))
    assert verdict.results.ok, verdict.results
    assert verdict.results.strength == "strong"
    assert not verdict.failed, verdict.guards
    assert verdict.warned == ["reused output buffer"]


def test_a_new_output_each_call_is_no_reuse() -> None:
    verdict = verdict_on(lambda: X @ W, lambda: X.mm(W))
    assert verdict.guards["reused output buffer"].outcome == "passed"


def test_an_output_that_is_the_input_itself_is_the_same_in_both() -> None:
    verdict = verdict_on(lambda: (X, X @ W), lambda: (X, X.mm(W)))
    assert verdict.guards["reused output buffer"].outcome == "passed"


class Lazy(torch.Tensor):
    """Computes when somebody looks."""


def generator() -> Iterator[Tensor]:
    yield X @ W


async def coroutine() -> Tensor:
    return X @ W


def closed() -> Any:
    waiting = coroutine()
    waiting.close()  # nobody will await it
    return waiting


@pytest.mark.parametrize(
    ("lazy", "word"),
    [
        (lambda: (X @ W).as_subclass(Lazy), "Lazy"),
        (generator, "generator"),
        (closed, "coroutine"),
        (lambda: lambda: X @ W, "function"),
        (lambda: asyncio.Future(loop=asyncio.new_event_loop()), "Future"),
        (lambda: torch.futures.Future(), "Future"),
        (lambda: (X @ W).to("meta"), "meta"),
    ],
)
def test_work_put_off_fails(lazy: Callable[[], Any], word: str) -> None:
    verdict = verdict_on(lambda: X @ W, lazy)
    assert "lazy outputs" in verdict.failed, verdict.guards
    assert word in verdict.guards["lazy outputs"].detail


def test_a_subclass_that_both_return_is_no_trick() -> None:
    verdict = verdict_on(lambda: (X @ W).as_subclass(Lazy), lambda: X.mm(W).as_subclass(Lazy))
    assert verdict.guards["lazy outputs"].outcome == "passed"
    assert verdict.results.ok


def test_a_parameter_is_a_plain_tensor() -> None:
    weight = nn.Parameter(torch.randn(8))
    verdict = verdict_on(lambda: weight.detach().clone(), lambda: weight)
    assert verdict.guards["lazy outputs"].outcome == "passed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_memory_that_nobody_wrote_to_is_seen(dtype: torch.dtype) -> None:
    right = (X * 100).to(dtype)
    # Small enough for the allocator to hand out what was freed last, which is what the trick needs.
    verdict = verdict_on(lambda: right * 1, lambda: torch.empty(64, 64, dtype=dtype))
    assert verdict.results.status == "different"
    assert "unwritten memory" in verdict.failed, verdict.guards


def test_minus_one_and_nan_that_both_return_are_no_unwritten_memory() -> None:
    minus = torch.full((64,), -1)
    verdict = verdict_on(lambda: (minus * 1, X / X * torch.nan), lambda: (minus + 0, X * torch.nan))
    assert verdict.guards["unwritten memory"].outcome == "passed"


def test_threads_left_behind_are_named() -> None:
    stop = threading.Event()

    def leaving() -> Tensor:
        threading.Thread(target=stop.wait, name="left-working", daemon=True).start()
        return X @ W

    try:
        verdict = verdict_on(lambda: X @ W, leaving)
    finally:
        stop.set()
    assert "threads left behind" in verdict.warned
    assert "left-working" in verdict.guards["threads left behind"].detail


def test_threads_that_have_ended_are_not_left_behind() -> None:
    def joining() -> Tensor:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        return X @ W

    assert not verdict_on(lambda: X @ W, joining).warned


def test_less_work_is_said() -> None:
    tall = torch.randn(256, 64)
    verdict = verdict_on(lambda: (tall @ W) @ X, lambda: tall @ (W @ X))
    assert verdict.guards["less work"].outcome == "passed"
    assert "0.62 ×" in verdict.guards["less work"].detail
    verdict = verdict_on(lambda: (tall @ W @ W @ W)[:8], lambda: tall[:8] @ W @ W @ W)
    assert verdict.guards["less work"].outcome == "warned"
    assert verdict.results.ok


def test_a_baseline_that_returns_a_generator_did_no_work_to_compare_with() -> None:
    def lazily() -> Any:
        return (X @ X + i for i in range(3))

    found = verdict_on(lazily, lambda: iter(()))
    assert "lazy outputs" in found.failed
    assert "baseline" in found.guards["lazy outputs"].detail
