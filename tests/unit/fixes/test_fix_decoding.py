"""Fixes of programs that write text: a static cache for `generate`, whose compiled decoding is seen
call by call, and weights in bfloat16; and what other fixes write where `generate` calls the model.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CompileConfig,
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicCache, StaticCache

from ridgeline.fixes.catalog import (
    autocast,
    compile_reduce_overhead,
    half_weights,
    kv_cache,
    static_cache,
)
from ridgeline.fixes.program import Program
from ridgeline.harness.capture import text_generation
from ridgeline.harness.capture.progress import Gate
from ridgeline.optimization.patching import patches
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.run import ModuleSeen
from tests.unit.fixes.seams_here import applied, code, codes, done, why

PROMPT = torch.tensor([[5, 6, 7], [8, 9, 10]])
TOKENS = 6


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny model; what a test changes in transformers' classes is put back."""
    monkeypatch.setattr(GenerationMixin, "generate", GenerationMixin.generate)
    monkeypatch.setattr(PreTrainedModel, "get_compiled_call", PreTrainedModel.get_compiled_call)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def fixed(model: Any, **given: Any) -> tuple[Any, Program]:
    program = Program(torch)
    static_cache.apply(program, {})
    tokens = model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False, **given)
    return tokens, program


def test_generate_gets_a_static_cache_and_gives_the_same_tokens(model: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False)
    caches: list[type] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        caches.append(type(kwargs["past_key_values"]))

    model.register_forward_pre_hook(note, with_kwargs=True)
    tokens, program = fixed(model)
    assert set(caches) == {StaticCache}
    assert torch.equal(tokens, plain)
    (fix,), _ = program.outcome()
    assert [one.done.facts["model"] for one in fix.targets] == ["LlamaForCausalLM"]
    assert fix.lines[0][0] == __file__


@pytest.mark.parametrize(
    ("given", "skip"),
    [
        ({"cache_implementation": "dynamic"}, Skip.ALREADY_SET),
        ({"num_beams": 2}, Skip.OTHER_DECODING),
        ({"use_cache": False}, Skip.NO_CACHE),
        ({"past_key_values": DynamicCache()}, Skip.OWN_CACHE),
    ],
)
def test_a_call_that_chooses_its_own_way_stays_as_it_is(
    model: Any, given: dict[str, Any], skip: Skip
) -> None:
    _, program = fixed(model, **given)
    assert codes(why(program.outcome()[1])) == [skip]


def test_a_model_that_cannot_have_a_static_cache_keeps_its_own(model: Any) -> None:
    type(model)._can_compile_fullgraph = False
    try:
        _, program = fixed(model)
    finally:
        type(model)._can_compile_fullgraph = True
    assert codes(why(program.outcome()[1])) == [Skip.NO_STATIC_CACHE]


def test_each_compiled_call_of_decoding_is_heard_like_a_plain_one(model: Any) -> None:
    gate, heard = Gate(), []

    def enter(module: Any, args: Any, kwargs: Any) -> str:
        heard.append(module)
        return "token"

    left: list[Any] = []
    text_generation.show_compiled_decoding(
        lambda: gate.closed, enter, left.append, lambda _, value: value
    )
    config = CompileConfig(backend="eager", mode="default")
    config._compile_all_devices = True
    given = {"cache_implementation": "static", "compile_config": config}
    model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False, **given)
    assert heard == [model] * (TOKENS - 1)  # the first token comes from the prompt's own call
    assert left == ["token"] * (TOKENS - 1)
    gate.closed = True
    model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False, **given)
    assert len(heard) == TOKENS - 1


def test_a_module_that_is_imported_later_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders, seen = list(sys.meta_path), []
    for times in (2, 3):
        text_generation.when_imported(
            "imported_later", lambda module, times=times: seen.append(times * module.value)
        )
    import imported_later  # type: ignore[import-not-found]  # noqa: F401

    assert sorted(seen) == [2, 3]
    assert sys.meta_path == finders
    text_generation.when_imported("imported_later", lambda module: seen.append(module.value))
    assert seen[-1] == 1
    del sys.modules["imported_later"]


GENERATES = """\
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny")
for prompt in prompts:
    out = model.generate(prompt, max_new_tokens=8)
    text = pipe(prompt)
"""


def test_the_call_gets_the_argument(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(GENERATES)
    did = because(Done.STATIC_CACHE, model="LlamaForCausalLM")
    (file,) = patches(script, [applied("static-cache", did, places=[f"{script}:4"])]).files
    assert 'model.generate(prompt, max_new_tokens=8, cache_implementation="static")' in file.text
    found = patches(script, [applied("static-cache", did, places=[f"{script}:5"])])
    assert codes(found.by_hand) == [ByHand.GIVE_ARGUMENT]


def test_it_is_for_programs_that_generate_on_a_gpu() -> None:
    model = ModuleSeen(name="LlamaForCausalLM", generates=True)
    gpu = Ground(device="cuda", trains=False, modules=(model,))
    assert static_cache.reason_to_skip(gpu) is None
    cpu = Ground(device="cpu", trains=False, modules=(model,))
    assert code(static_cache.reason_to_skip(cpu)) == Skip.NO_GPU
    other = Ground(device="cuda", trains=False, modules=(ModuleSeen(name="BertModel"),))
    assert code(static_cache.reason_to_skip(other)) == Skip.DOES_NOT_GENERATE
    assert code(static_cache.reason_to_skip(Ground(device="cuda", modules=(model,)))) == Skip.TRAINS


def test_weights_are_cast_before_generate_and_buffers_stay(model: Any) -> None:
    program = Program(torch)
    half_weights.apply(program, {})
    caches: list[torch.dtype] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        caches.append(module.dtype)

    model.register_forward_pre_hook(note, with_kwargs=True)
    model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False)
    assert set(caches) == {torch.bfloat16}
    assert {one.dtype for one in model.buffers()} == {torch.float32}
    (fix,), _ = program.outcome()
    (cast,) = fix.targets  # one call after another casts nothing again
    assert cast.done.facts == {"model": "LlamaForCausalLM", "dtype": "bfloat16", "buffers": True}


def test_a_model_that_is_given_numbers_or_trains_keeps_its_weights() -> None:
    for given, training, skip in (
        (torch.randn(2, 4), False, Skip.FLOATING_INPUTS),
        (torch.ones(2, 4, dtype=torch.int64), True, Skip.TRAINING_MODE),
    ):
        net = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4)).train(training)
        program = Program(torch)
        half_weights.apply(program, {})
        program.call_begins(net, (given,), {})
        assert codes(why(program.outcome()[1])) == [skip]
        assert net[1].weight.dtype == torch.float32


def test_half_weights_take_the_place_of_autocast_where_text_is_generated() -> None:
    writer = ModuleSeen(
        name="LlamaForCausalLM", generates=True, dtypes=("float32",), inputs=("int64[4, 32]",)
    )
    gpu = Ground(device="cuda", capability=(9, 0), trains=False, modules=(writer,))
    assert half_weights.reason_to_skip(gpu) is None
    assert code(autocast.reason_to_skip(gpu)) == Skip.CAST_AT_EACH_TOKEN
    images = ModuleSeen(name="Net", dtypes=("float32",), inputs=("float32[4, 3, 8, 8]",))
    seen = Ground(device="cuda", capability=(9, 0), trains=False, modules=(images,))
    assert code(half_weights.reason_to_skip(seen)) == Skip.FLOATING_INPUTS
    assert autocast.reason_to_skip(seen) is None


def test_what_other_fixes_write_around_generate(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(GENERATES)
    name = "LlamaForCausalLM"

    def written(fix: str, done: Any) -> str:
        (file,) = patches(script, [applied(fix, done, places=[f"{script}:4"])]).files
        return file.text

    halved = because(Done.HALF_WEIGHTS, model=name, dtype="bfloat16", buffers=True)
    text = written("half-weights", halved)
    made = text.index("from_pretrained")
    assert made < text.index("parameter.data = parameter.data.to(torch.bfloat16)")
    assert text.index("parameter.data = ") < text.index("for prompt in prompts")
    plain = because(Done.HALF_WEIGHTS, model=name, dtype="bfloat16", buffers=False)
    assert "model.to(torch.bfloat16)" in written("half-weights", plain)
    compiled = because(Done.COMPILED, model=name, arguments="", mode="")
    assert "model.compile()" in written("compile", compiled)
    cast = because(Done.AUTOCAST, model=name, device="cuda", dtype="bfloat16")
    text = written("autocast", cast)
    assert '    with torch.autocast("cuda", dtype=torch.bfloat16):' in text
    assert ".float()" not in text  # tokens are whole numbers


def test_a_cache_that_was_turned_off_is_used_and_may_be_static(model: Any) -> None:
    given: list[tuple[int, ...]] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        given.append(tuple(kwargs["input_ids"].shape))

    model.register_forward_pre_hook(note, with_kwargs=True)
    model.generation_config.use_cache = False
    plain = model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False)
    assert given[-1] == (2, 3 + TOKENS - 1)
    program = Program(torch)
    for fix in (kv_cache, static_cache):
        fix.apply(program, {})
    tokens = model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False)
    assert given[-1] == (2, 1)
    assert torch.equal(tokens, plain)
    assert codes(done(program.outcome()[0])) == [Done.KV_CACHE, Done.STATIC_CACHE]


def test_a_cache_that_is_on_stays_as_it_is(model: Any) -> None:
    program = Program(torch)
    kv_cache.apply(program, {})
    model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False)
    assert codes(why(program.outcome()[1])) == [Skip.ALREADY_SET]


def test_graphs_wait_for_a_cache_that_keeps_its_size() -> None:
    writer = ModuleSeen(name="LlamaForCausalLM", generates=True)
    gpu = Ground(device="cuda", trains=False, modules=(writer,))
    assert code(compile_reduce_overhead.reason_to_skip(gpu)) == Skip.CACHE_GROWS
    images = Ground(device="cuda", trains=False, modules=(ModuleSeen(name="Net"),))
    assert compile_reduce_overhead.reason_to_skip(images) is None  # inference with equal shapes
