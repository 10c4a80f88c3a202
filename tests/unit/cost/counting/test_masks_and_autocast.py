"""What tensors without data would change: masks that a real run leaves out, autocast on meta."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ridgeline.cost.counting import count
from ridgeline.cost.counting.passes import MASK_NOTE
from ridgeline.records.cost import Cost
from tests.models.row import EVERYWHERE, Backend, attention, linear

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
BATCH, TOKENS, WIDTH, HIDDEN, VOCABULARY, LAYERS = 2, 6, 16, 32, 50, 2
ROWS = BATCH * TOKENS
LANGUAGE_MACS = LAYERS * (
    4 * linear(ROWS, WIDTH, WIDTH)
    + attention(BATCH, TOKENS, TOKENS, WIDTH)
    + 3 * linear(ROWS, WIDTH, HIDDEN)
) + linear(ROWS, WIDTH, VOCABULARY)


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def language(request: pytest.FixtureRequest) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{request.param}Config")(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    built: nn.Module = getattr(transformers, f"{request.param}ForCausalLM")(config)
    return built


def tokens(**more: Tensor) -> dict[str, Any]:
    return {"input_ids": torch.ones(BATCH, TOKENS, dtype=torch.int64), **more}


def ones() -> Tensor:
    return torch.ones(BATCH, TOKENS, dtype=torch.int64)


def without_notes(cost: Cost) -> tuple[Any, ...]:
    return cost.phases, cost.ops, cost.modules, cost.coverage_percent


@pytest.mark.parametrize("backend", ["fake", "meta"])
@pytest.mark.parametrize("training", [True, False])
def test_a_mask_of_ones_is_left_out_as_on_a_real_run(
    language: nn.Module, backend: Backend, training: bool
) -> None:
    bare = count(language, (), tokens(), backend=backend, training=training).cost
    masked = count(
        language, (), tokens(attention_mask=ones()), backend=backend, training=training
    ).cost
    assert bare.phases["forward"].macs == LANGUAGE_MACS
    assert without_notes(masked) == without_notes(bare)
    assert MASK_NOTE in masked.notes
    assert MASK_NOTE not in bare.notes


def test_a_real_run_with_a_mask_of_ones_costs_the_same(language: nn.Module) -> None:
    cost = count(language, (), tokens(attention_mask=ones()), backend="real").cost
    assert cost.phases["forward"].macs == LANGUAGE_MACS
    assert MASK_NOTE not in cost.notes


def test_a_mask_that_masks_something_stays(language: nn.Module) -> None:
    mask = ones()
    mask[0, :2] = 0
    cost = count(language, (), tokens(attention_mask=mask)).cost
    assert cost.phases["forward"].macs == LANGUAGE_MACS
    assert MASK_NOTE not in cost.notes


@everywhere
@pytest.mark.parametrize("training", [True, False])
def test_a_padding_mask_through_an_encoder_counts_the_same_everywhere(
    backend: Backend, training: bool
) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, 4:] = True
    names = {"src_key_padding_mask": padding}
    x = torch.zeros(BATCH, TOKENS, WIDTH)
    cost = count(model, (x,), names, backend=backend, training=training).cost
    core, projections = attention(BATCH, TOKENS, TOKENS, WIDTH), linear(ROWS, WIDTH, 3 * WIDTH)
    each = core + projections + linear(ROWS, WIDTH, WIDTH) + 2 * linear(ROWS, WIDTH, HIDDEN)
    assert cost.backend == backend
    assert cost.phases["forward"].macs == LAYERS * each
    assert cost.unformulated == ()
    if training:  # flash makes its scores again; the first projection's input needs no gradient
        assert cost.phases["recompute"].macs == LAYERS * core // 2
        assert cost.phases["backward"].macs == 2 * LAYERS * each - projections


class Half(nn.Module):
    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self.enabled = enabled
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            return self.linear(x)


@everywhere
def test_autocast_is_counted_where_it_acts_and_noted_where_it_does_not(backend: Backend) -> None:
    cost = count(Half(), (torch.zeros(4, 8),), backend=backend).cost
    said = [note for note in cost.notes if note.startswith("autocast does not act on meta")]
    assert cost.phases["forward"].macs == 4 * 8 * 8
    assert (cost.dtype, len(said)) == (("float32", 1) if backend == "meta" else ("bfloat16", 0))


def test_autocast_switched_off_gives_no_note() -> None:
    """As rotary embeddings of Hugging Face models do, to stay in float32."""
    assert count(Half(enabled=False), (torch.zeros(4, 8),), backend="meta").cost.notes == ()
