"""Fixes of programs that write text, on whole programs, each in a process of its own."""

from itertools import pairwise
from pathlib import Path

import pytest

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import run
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import codes, done

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

STEPS, WATCHED = 20, 8
BFLOAT16 = 2.0**-8
GENERATES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging
logging.set_verbosity_error()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0,
    eos_token_id=None, pad_token_id=0, initializer_range=0.2,
)
model = LlamaForCausalLM(config).eval()
for prompt in torch.randint(1, 128, (4, 2, 5)):
    out = model.generate(prompt, max_new_tokens=8, do_sample=False)
"""
BY_HAND = """
import torch
from torch import nn
torch.manual_seed(0)
class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(64, 32), nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 64)
    def forward(self, tokens):
        return self.head(self.cell(self.embed(tokens))[0])
model = Writer().eval()
text = torch.randint(0, 64, (2, 4))
with torch.no_grad():
    for _ in range(40):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], 1)
"""


def trial(home: Path, source: str, *fixes: str, jitter: float = 0.0) -> Trial:
    home.mkdir(exist_ok=True)
    script = home / "script.py"
    script.write_text(source)
    plan = Plan(
        fixes=tuple(Asked(fix=fix) for fix in fixes), steps=STEPS, watch=WATCHED, trains=False,
        jitter=jitter,
    )  # fmt: skip
    found = run(Target(kind="script", name=str(script)), plan, home / "home", timeout_s=120)
    assert found.trial is not None, (found.failure, found.last_lines)
    assert not found.trial.problems
    return found.trial


def test_a_step_is_a_token_and_its_prediction_is_noted(tmp_path: Path) -> None:
    for name, source in (("generate", GENERATES), ("by_hand", BY_HAND)):
        plain = trial(tmp_path / name, source)
        assert [step.forwards for step in plain.watched] == [1] * WATCHED
        fed = [step.predicted[0] for step in plain.watched]
        for before, after in pairwise(fed[:7]):
            assert after.given == tuple(tokens[0] for tokens in before.tokens)


def test_a_static_cache_writes_the_same_text(tmp_path: Path) -> None:
    plain, fixed = (
        trial(tmp_path / "a", GENERATES),
        trial(tmp_path / "b", GENERATES, "static-cache"),
    )
    assert codes(done(fixed.applied)) == [Done.STATIC_CACHE]
    assert [one.lines[0][1] for one in fixed.applied] == [14]
    perturbed = trial(tmp_path / "c", GENERATES, jitter=2.0**-23)
    found = compare([plain, perturbed], fixed, "rounding")
    assert found.equality == "equal", found.why
    assert {"tokens", "outputs"} <= {check.what for check in found.checks}


@pytest.mark.parametrize("source", [GENERATES, BY_HAND], ids=["generate", "by hand"])
def test_weights_in_bfloat16_are_no_other_program(tmp_path: Path, source: str) -> None:
    plain = trial(tmp_path / "a", source)
    fixed = trial(tmp_path / "b", source, "half-weights")
    assert codes(done(fixed.applied)) == [Done.HALF_WEIGHTS]
    perturbed = trial(tmp_path / "c", source, jitter=BFLOAT16)
    found = compare([plain, perturbed], fixed, "rounding", "bfloat16")
    assert found.is_proven, found.why
    other = trial(
        tmp_path / "d", source.replace("manual_seed(0)", "manual_seed(1)"), "half-weights"
    )
    assert compare([plain, perturbed], other, "rounding", "bfloat16").equality == "differs"


def test_a_cache_is_judged_by_the_new_tokens_alone(tmp_path: Path) -> None:
    source = GENERATES.replace("do_sample=False", "do_sample=False, use_cache=False")
    plain, fixed = trial(tmp_path / "a", source), trial(tmp_path / "b", source, "kv-cache")
    perturbed = trial(tmp_path / "c", source, jitter=2.0**-23)
    assert codes(done(fixed.applied)) == [Done.KV_CACHE]
    assert compare([plain, perturbed], fixed, "rounding").equality == "equal"
    others = source.replace("manual_seed(0)", "manual_seed(2)")
    other = trial(tmp_path / "d", others, "kv-cache")
    assert compare([plain, perturbed], other, "rounding").equality == "differs"
