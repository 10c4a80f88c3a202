"""Generation on a simulated clock, with models small enough to know every token."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ridgeline.errors import RidgelineError, TargetError, UsageError
from ridgeline.measure.generation import time_generation

MS = 1e6
PROMPT = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


class Counting(nn.Module):
    """Plain module: the next token is the last one plus one, modulo 16."""

    def __init__(self, positions: int = 1000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.positions = nn.Embedding(positions, 1)
        self.lengths: list[int] = []

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        self.lengths.append(ids.shape[1])
        self.positions(torch.arange(ids.shape[1]))
        return nn.functional.one_hot((ids + 1) % 16, 16).float()


class Caching(Counting):
    """The same with a cache: how many tokens it holds."""

    def forward(
        self, ids: Tensor, past_key_values: int | None = None, use_cache: bool = False
    ) -> Any:
        logits = super().forward(ids)
        return {"logits": logits, "past_key_values": (past_key_values or 0) + ids.shape[1]}


def by_length(model: Counting, per_token: float = 1 * MS) -> Iterator[float]:
    """Durations that follow what the model was just asked for: a millisecond a token."""
    while True:
        yield per_token * model.lengths[-1]


def test_a_plain_module_is_timed_without_cache_and_the_note_says_so(fake_clock: Any) -> None:
    model = Counting()
    result = time_generation(model, PROMPT, 6, "cpu", 60, clock=fake_clock(by_length(model)))
    assert (result.batch, result.prompt_tokens, result.tokens) == (2, 4, 6)
    assert result.first_token_ms == pytest.approx(4.0)
    assert result.uncached.positions == (5, 6, 7, 8, 9)
    assert result.uncached_token_ms == pytest.approx(7.0)
    assert result.uncached.growth_ns == pytest.approx(1 * MS)
    assert (result.cached, result.cached_token_ms, result.cache_speedup) == (None, None, None)
    assert "this model takes no past_key_values" in result.notes[0]


def test_a_cache_is_used_and_its_gain_computed(fake_clock: Any) -> None:
    model = Caching()
    result = time_generation(model, PROMPT, 6, "cpu", 60, clock=fake_clock(by_length(model)))
    assert result.first_token_ms == pytest.approx(4.0)
    assert result.cached is not None
    assert result.cached.positions == result.uncached.positions
    assert result.cached_token_ms == pytest.approx(1.0)
    assert result.cached.growth_ns == 0.0
    assert result.cache_speedup == pytest.approx(7.0)
    assert result.same_tokens is True
    assert result.notes == ()
    assert len(result.cached.samples_ns) == result.first_token.count > 1
    assert all(len(row) == 5 for row in result.cached.samples_ns)


def test_a_cache_that_changes_the_tokens_gives_a_note(fake_clock: Any) -> None:
    class Wrong(Caching):
        def forward(
            self, ids: Tensor, past_key_values: int | None = None, use_cache: bool = False
        ) -> Any:
            shifted = ids + 3 if past_key_values else ids
            return super().forward(shifted, past_key_values, use_cache)

    model = Wrong()
    result = time_generation(model, PROMPT, 6, "cpu", 60, clock=fake_clock(by_length(model)))
    assert result.same_tokens is False
    assert any("different tokens" in note for note in result.notes)


def test_a_model_that_returns_no_cache_is_timed_without(fake_clock: Any) -> None:
    class Empty(Caching):
        def forward(
            self, ids: Tensor, past_key_values: int | None = None, use_cache: bool = False
        ) -> Any:
            return {"logits": super().forward(ids)["logits"], "past_key_values": None}

    model = Empty()
    result = time_generation(model, PROMPT, 3, "cpu", 10, clock=fake_clock(by_length(model)))
    assert result.cached is None
    assert any("returned no past_key_values" in note for note in result.notes)


def test_a_small_budget_times_fewer_positions_and_says_so(fake_clock: Any) -> None:
    model = Counting()
    result = time_generation(model, PROMPT, 200, "cpu", 2, clock=fake_clock(by_length(model)))
    assert 3 <= len(result.uncached.positions) < 20
    assert result.uncached.positions[0] == 5
    assert result.uncached.positions[-1] == 203
    assert result.uncached.growth_ns == pytest.approx(1 * MS)
    assert any("of 199 positions" in note for note in result.notes)


def test_a_slow_cached_run_is_cut_short_and_says_so(fake_clock: Any) -> None:
    model = Caching()
    clock = fake_clock(by_length(model, 100 * MS))
    result = time_generation(model, PROMPT, 500, "cpu", 4, clock=clock)
    assert 2 <= result.tokens < 30
    assert any("of 500 tokens" in note for note in result.notes)


def test_a_compiling_first_call_costs_no_tokens_and_is_in_no_sample(fake_clock: Any) -> None:
    model = Caching()
    clock = fake_clock(chain([90_000 * MS, 30_000 * MS], by_length(model)))
    result = time_generation(model, PROMPT, 6, "cpu", 1, clock=clock)
    assert result.tokens == 6
    assert result.first_token.max_ns == 4 * MS
    assert result.notes == ()


def test_known_position_limits_are_kept(fake_clock: Any) -> None:
    model = Counting(positions=8)
    model.config = {"block_size": 8}  # type: ignore[assignment]
    result = time_generation(model, PROMPT, 50, "cpu", 5, clock=fake_clock(by_length(model)))
    assert result.tokens == 5  # the fifth is chosen at position 8 and never fed back
    assert max(model.lengths) == 8
    assert any("8 positions" in note for note in result.notes)
    with pytest.raises(UsageError, match="no room"):
        time_generation(model, torch.ones(1, 8, dtype=torch.long), 5, "cpu", 5)


def test_an_unknown_position_limit_is_named_when_it_is_hit(fake_clock: Any) -> None:
    model = Counting(positions=8)
    with pytest.raises(TargetError, match=r"Counting failed at position 53 .*IndexError"):
        time_generation(model, PROMPT, 50, "cpu", 5, clock=fake_clock(by_length(model)))


def test_training_flags_come_back_as_they_were(fake_clock: Any) -> None:
    model = Counting()
    model.train()
    model.dropout.eval()
    time_generation(model, PROMPT, 3, "cpu", 1, clock=fake_clock(by_length(model)))
    assert model.training
    assert not model.dropout.training


def test_logits_are_found_in_tuples_and_objects(fake_clock: Any) -> None:
    class Wrapped(Counting):
        def forward(self, ids: Tensor) -> Any:
            return None, (torch.zeros(3), super().forward(ids))

    model = Wrapped()
    result = time_generation(model, PROMPT[0], 3, "cpu", 1, clock=fake_clock(by_length(model)))
    assert result.batch == 1


def test_an_output_without_logits_is_an_error(fake_clock: Any) -> None:
    class Classifier(Counting):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids)[:, -1]

    model = Classifier()
    with pytest.raises(TargetError, match=r"a Tensor of shape \[2, 16\]"):
        time_generation(model, PROMPT, 3, "cpu", 1, clock=fake_clock(by_length(model)))


def test_an_encoder_decoder_is_refused() -> None:
    model = Counting()
    model.config = {"is_encoder_decoder": True}  # type: ignore[assignment]
    with pytest.raises(RidgelineError, match="encoder-decoder"):
        time_generation(model, PROMPT, 3, "cpu", 1)


@pytest.mark.parametrize("prompt", [torch.zeros(2, 3), torch.ones(1, 2, 3).long()])
def test_a_prompt_without_token_ids_is_refused(prompt: Tensor) -> None:
    with pytest.raises(UsageError, match="expected whole token ids"):
        time_generation(Counting(), prompt, 3, "cpu", 1)


def test_one_token_has_no_pace() -> None:
    with pytest.raises(UsageError, match="two at least"):
        time_generation(Counting(), PROMPT, 1, "cpu", 1)


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


@pytest.mark.parametrize("build", [llama, gpt2])
def test_hugging_face_models_generate_the_same_with_and_without_cache(
    build: Any, fake_clock: Any
) -> None:
    torch.manual_seed(0)
    model = build()
    asked: list[int] = []
    model.register_forward_pre_hook(lambda _, args: asked.append(args[0].shape[1]))
    clock = fake_clock(repeat(1 * MS))
    result = time_generation(model, torch.randint(64, (2, 20)), 40, "cpu", 0.05, clock=clock)
    assert result.tokens == 13  # 32 positions, 20 of them the prompt
    assert result.same_tokens is True
    assert result.cached is not None
    assert result.cached.positions == tuple(range(21, 33))
    assert asked.count(1) >= 12  # with cache, one token at a time
    assert max(asked) == 32
