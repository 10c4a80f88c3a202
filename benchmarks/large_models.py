"""Counting forward and backward of 8 and 70 billion parameters, without the memory to hold them.

    python benchmarks/large_models.py
    python benchmarks/large_models.py -o docs/results/large-models.md

Batch 1, 4096 tokens, bfloat16, on the meta device: examples/llama.py, and Hugging Face's Llama from
a config where transformers is installed. Ridgeline against torch's FlopCounterMode in the same run,
each in a process of its own, so that seconds and peak memory are that tool's alone. Seconds are
of building the model and of counting it, without imports. The target for 70 B is < 20 s and < 1 GB.

Truth is arithmetic: forward, every weight matrix meets every token, and attention is the full
square; backward, twice that (the tokens' embeddings take gradients, so no layer is let off). The
fifth product of fused attention, which makes the scores again, is Ridgeline's "recompute".
"""

import argparse
import importlib
import importlib.util
import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

TOKENS = 4096
TOOLS = ("ridgeline", "FlopCounterMode")
LIMIT_S = 600


@dataclass(frozen=True)
class Size:
    width: int
    hidden: int
    heads: int
    kv_heads: int
    depth: int
    vocabulary: int = 128_256

    @property
    def forward_macs(self) -> int:
        head = self.width // self.heads
        layer = (
            2 * self.width * self.width  # queries, way out
            + 2 * self.width * self.kv_heads * head  # keys, values
            + 3 * self.width * self.hidden
        )
        attention = 2 * TOKENS * TOKENS * self.width
        return self.depth * (TOKENS * layer + attention) + TOKENS * self.width * self.vocabulary


SIZES = {
    "8B": Size(width=4096, hidden=14_336, heads=32, kv_heads=8, depth=32),
    "70B": Size(width=8192, hidden=28_672, heads=64, kv_heads=8, depth=80),
}
SOURCES = {"examples/llama.py": "", "Hugging Face": "transformers"}
"""Where each model comes from, and the package that it needs."""


@dataclass(frozen=True)
class Outcome:
    build_s: float = 0.0
    count_s: float = 0.0
    peak_bytes: int = 0
    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    trouble: str = ""


def build(source: str, size: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    with torch.device("meta"):
        if source == "examples/llama.py":
            from examples import llama

            return {"8B": llama.build_8b, "70B": llama.build_70b}[size](batch=1, tokens=TOKENS)
        return build_hugging_face(SIZES[size])


def build_hugging_face(size: Size) -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models.language import Logits

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.hidden,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=TOKENS,
        attn_implementation="sdpa",
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = Logits(LlamaForCausalLM(config))
    return model, (torch.zeros((1, TOKENS), dtype=torch.int64),)


def count_with_ridgeline(model: Any, args: tuple[Any, ...]) -> dict[str, float]:
    from ridgeline.cost.counting import count

    phases = count(model, args, backend="meta", training=True).cost.phases
    return {phase: totals.macs for phase, totals in phases.items()}


def count_with_torch(model: Any, args: tuple[Any, ...]) -> dict[str, float]:
    from torch.utils.flop_counter import FlopCounterMode

    model.train()
    with FlopCounterMode(display=False) as forward:
        loss = model(*args).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return {
        "forward": forward.get_total_flops() / 2,
        "backward": backward.get_total_flops() / 2,
    }


def measure(source: str, size: str, tool: str) -> Outcome:
    """In a process of its own: build, count, and look at what that took."""
    importlib.import_module("torch._dynamo")  # dispatch modes load it on first use: 1.2 s
    if SOURCES[source]:
        importlib.import_module(SOURCES[source]).LlamaForCausalLM  # noqa: B018  loaded lazily
    if tool == "ridgeline":
        importlib.import_module("ridgeline.cost.counting")
    start = time.perf_counter()
    model, args = build(source, size)
    built = time.perf_counter()
    macs = (count_with_ridgeline if tool == "ridgeline" else count_with_torch)(model, args)
    counted = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    truth = SIZES[size].forward_macs
    return Outcome(
        build_s=built - start,
        count_s=counted - built,
        peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
        forward=macs["forward"] / truth,
        backward=macs["backward"] / truth,
        recompute=macs.get("recompute", 0) / truth,
    )


def in_a_child(source: str, size: str, tool: str) -> Outcome:
    if SOURCES[source] and importlib.util.find_spec(SOURCES[source]) is None:
        return Outcome(trouble=f"needs {SOURCES[source]}")
    command = [sys.executable, __file__, "--child", source, size, tool]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Outcome(trouble=f"over {LIMIT_S} s")
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return Outcome(trouble="failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:80])
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def line(source: str, size: str, tool: str, outcome: Outcome) -> str:
    if outcome.trouble:
        return f"| {source} | {size} | {tool} | {outcome.trouble} | | | | | |"
    return (
        f"| {source} | {size} | {tool} | {outcome.build_s:.1f} | {outcome.count_s:.1f} "
        f"| {outcome.peak_bytes / 1e9:.2f} | {outcome.forward:.4f} | {outcome.backward:.4f} "
        f"| {outcome.recompute:.4f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="also write the report here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asdict(measure(*options.child))))
        return 0

    import torch

    lines = [
        "# 8 and 70 billion parameters, counted on meta",
        "",
        f"Forward and backward, batch 1, {TOKENS} tokens; torch {torch.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}; one run. Forward, backward and "
        "recompute are shares of the analytic forward: 1, 2 and (fused attention only) a part.",
        "",
        "| model | size | tool | build s | count s | peak GB | forward | backward | recompute |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    for source in SOURCES:
        for size in SIZES:
            for tool in TOOLS:
                lines.append(line(source, size, tool, in_a_child(source, size, tool)))
                print(lines[-1], flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
