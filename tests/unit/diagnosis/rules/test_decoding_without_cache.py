"""Loops that give a language model the whole text for each new token."""

from collections.abc import Callable

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.inference import decoding_without_cache as look
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.run import ModuleSeen, Step
from tests.unit.diagnosis.rules.made_up_memory import FILE, capture, case

LOOP = """\
import torch

def main():
    ids = prompt
    for _ in range(100):
        logits = model(ids)[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
"""
GENERATE = """\
import torch

def main():
    model = load()
    for prompt in prompts:
        text = model.generate(prompt, max_new_tokens=64, use_cache=False)
"""
ROWS = 4


def decoding(
    tokens: Callable[[int], int],
    text: str = LOOP,
    *,
    generates: bool = False,
    stepping: str = "call",
    compute: float = 0.8,
) -> Case:
    """A program whose step `i` gives `tokens(i)` tokens to each of the rows."""
    model = ModuleSeen(
        name="Writer", calls=40, parameters=1000, parameter_bytes=4000, place=f"{FILE}:6",
        generates=generates,
    )  # fmt: skip
    steps = tuple(
        Step(index=i, start_ns=i, dur_ns=1, forwards=1, samples=ROWS, tokens=ROWS * tokens(i))
        for i in range(40)
    )
    of = {"input": 0.0, "transfer": 0.0, "overhead": 1 - compute, "communication": 0.0,
          "compute": compute, "memory": 0.0}  # fmt: skip
    return replace(
        case(text),
        capture=capture(stepping=stepping, optimizers=(), modules=(model,)),
        steps=steps,
        shares=Shares(of=of),  # type: ignore[arg-type]
    )


def test_a_text_that_grows_by_a_token_is_computed_again() -> None:
    (finding,) = look(decoding(lambda step: 20 + step))
    assert finding.place == f"{FILE}:6"
    assert finding.function == "main"
    assert 76 < finding.share_pct < 80  # 39 of 40 tokens of 80 %
    assert finding.gain_bound > 20
    assert finding.fix == ""
    compile(finding.change, "advice", "exec")


def test_generate_without_its_cache_gets_the_argument() -> None:
    """Each text begins anew, after its 16 tokens."""
    (finding,) = look(decoding(lambda step: 10 + step % 16, GENERATE, generates=True))
    assert finding.fix == "kv-cache"
    assert "use_cache=True" in finding.change


def test_a_loop_of_its_own_around_a_model_with_a_cache_is_shown_how_to_use_it() -> None:
    (finding,) = look(decoding(lambda step: 20 + step, generates=True))
    assert finding.fix == ""
    assert "past_key_values" in finding.change
    compile(finding.change, "advice", "exec")


def test_a_cache_batches_of_any_length_and_training_are_no_such_loop() -> None:
    assert not list(look(decoding(lambda step: 32 if step % 16 == 0 else 1)))
    assert not list(look(decoding(lambda step: (7 * step) % 31 + 5)))
    assert not list(look(decoding(lambda step: 20 + step, stepping="optimizer")))


def test_a_step_that_waits_for_launches_gains_too_little() -> None:
    assert not list(look(decoding(lambda step: 20 + step, compute=0.04)))
