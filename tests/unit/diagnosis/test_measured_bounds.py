"""Bounds held against gains that were measured: a bound below the gain is a defect.

The figures are those of docs/results: planted faults and their twins (diagnosis.md), `ridgeline
optimize` on an H200 (h200-optimize.md, h200-run.md) and on a CPU (cpu-optimize.md).
"""

import pytest

from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.fixes.fix import find_fix
from ridgeline.records.ground import Ground

PLANTED = [
    ("affinity", 0.88, 9.15),
    ("cuda-graph-candidate", 0.90, 9.46),
    ("conv-bias-before-norm", 0.26, 1.36),
    ("item-sync", 0.20, 1.25),
    ("loss-scale-thrash", 0.41, 1.67),
    ("repeated-decoding", 0.695, 3.38),
    ("small-collectives", 0.43, 1.74),
    ("small-files", 0.64, 2.77),
    ("small-kernels", 0.462, 1.94),
    ("zero-grad-fill", 0.35, 1.46),
]
"""Rule, share of the step from which its bound is made, gain between the fault and its twin."""


@pytest.mark.parametrize(("rule", "share", "gain"), PLANTED)
def test_the_bound_of_a_planted_fault_is_not_below_its_gain(
    rule: str, share: float, gain: float
) -> None:
    asked = Rule(id=rule, family="launch", budget="work")
    assert make_finding(asked, claim="a fault", share=share).gain_bound >= gain


GPU = Ground(device="cuda", capability=(9, 0))
GPT2 = Ground(
    device="cuda", capability=(9, 0), busy=0.98, products_share=0.82, products_least_share=0.79,
    optimizer_share=0.02, loss_share=0.03,
)  # fmt: skip
"""GPT-2 124M in float32, attention written out, 193 ms: float32 arithmetic takes 79 %."""
NANOGPT = Ground(
    device="cuda", capability=(9, 0), busy=0.95, products_share=0.57, products_least_share=0.55,
    optimizer_share=0.05,
)  # fmt: skip
"""nanoGPT in bfloat16 with fused attention, not compiled, 32.5 and 128 ms."""
RESNET = Ground(
    device="cuda", capability=(9, 0), busy=0.6, products_share=0.3, products_least_share=0.28,
    convolutions=True, optimizer_share=0.1, overhead_share=0.4,
)  # fmt: skip
"""ResNet-50, batch 32, 18 to 24 ms: the GPU waits for launches."""
VIT = Ground(
    device="cuda", capability=(9, 0), busy=0.88, products_share=0.85, products_least_share=0.83,
    input_share=0.1, optimizer_share=0.02,
)  # fmt: skip
"""ViT-B/16 in float32, batch 64, four workers, 194 ms."""
LLAMA = Ground(
    device="cuda", capability=(9, 0), busy=0.3, products_share=0.27, products_least_share=0.25,
    trains=False, overhead_share=0.7,
)  # fmt: skip
"""`generate` of a Llama of 1.2 B in float32, 14.9 ms a token: the host is late."""
SLOW_LOADER = Ground(input_share=0.87, busy=0.13, cores=2, products_share=0.1)
"""examples/train_slow_loader.py on a CPU of two cores, 20.2 ms."""
VAE = Ground(optimizer_share=0.35, busy=0.9, products_share=0.5, products_least_share=0.4)
"""The VAE of pytorch/examples on a CPU, 3.3 ms."""
MAKEMORE = Ground(optimizer_share=0.1, busy=0.8, products_share=0.5, products_least_share=0.3)
"""A small transformer on a CPU, 5.2 ms."""
MEASURED: list[tuple[str, Ground, tuple[str, ...], float]] = [
    ("GPT-2", GPT2, ("autocast",), 2.50),
    ("GPT-2 in TF32", GPT2, ("autocast", "tf32", "fused-optimizer"), 2.56),
    ("GPT-2 compiled", GPT2, ("autocast", "tf32", "fused-optimizer", "compile"), 6.34),
    ("nanoGPT", NANOGPT, ("compile",), 1.25),
    ("ResNet-50", RESNET, ("compile-reduce-overhead",), 1.82),
    ("ResNet-50, larger batch", RESNET, ("larger-batch",), 1.61),
    ("ResNet-50, the usual set", RESNET,
     ("compile-reduce-overhead", "autocast", "tf32", "fused-optimizer"), 3.49),
    ("ViT-B/16", VIT, ("compile", "autocast", "tf32", "fused-optimizer"), 3.2),
    ("ViT-B/16 by hand", VIT, ("compile", "autocast", "loader-workers"), 194 / 21.8),
    ("Llama", LLAMA, ("compile-reduce-overhead", "autocast"), 14.9 / 2.8),
    ("slow loader", SLOW_LOADER, ("loader-workers",), 6.97),
    ("VAE", VAE, ("fused-optimizer",), 1.64),
    ("makemore", MAKEMORE, ("compile",), 1.35),
    ("makemore, both", MAKEMORE, ("compile", "fused-optimizer"), 1.62),
]  # fmt: skip
"""Program, its ground, the fixes of a set, and how many times as fast it became. Shares that a
result does not state are what such a program has."""


def bound_of_set(ground: Ground, fixes: tuple[str, ...]) -> float:
    """Return the bound of a set as the search has it: together fixes save at most what each saves
    alone, added up. Infinity where a fix has no bound."""
    saved = 0.0
    for one in fixes:
        bound = find_fix(one).bound
        most = bound(ground) if bound is not None else None
        if most is None:
            return float("inf")
        saved += 1 - 1 / most
    return 1 / (1 - saved) if saved < 1 else float("inf")


@pytest.mark.parametrize(
    ("ground", "fixes", "gain"), [one[1:] for one in MEASURED], ids=[one[0] for one in MEASURED]
)
def test_the_bound_of_a_set_is_not_below_what_it_gained(
    ground: Ground, fixes: tuple[str, ...], gain: float
) -> None:
    assert bound_of_set(ground, fixes) >= gain


def test_compiling_inference_or_written_attention_may_replace_products() -> None:
    """One token at a time multiplies a matrix by a vector, for which a compiler makes kernels of
    its own, and it puts a fused operator in the place of attention that is written out."""
    bound = find_fix("compile").bound
    assert bound is not None
    training = Ground(device="cuda", products_least_share=0.9)
    decoding = Ground(device="cuda", products_least_share=0.9, trains=False)
    written = Ground(device="cuda", products_least_share=0.9, findings=("written-attention",))
    limits = [bound(one) for one in (training, decoding, written)]
    assert limits == [pytest.approx(1 / 0.72), pytest.approx(1 / 0.225), pytest.approx(1 / 0.225)]
