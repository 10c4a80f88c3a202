"""Made-up outcomes of `ridgeline optimize`: a long ladder on a GPU, and the ways it can end."""

from typing import Any

from msgspec.structs import replace

from ridgeline.records.facts import Place, Ratio, Reason, because
from ridgeline.records.optimized import Optimized, Rung, SearchCode, Total, Written
from ridgeline.records.parity import Check, Parity
from ridgeline.records.reason_codes import ByHand, Done, Obstacle
from ridgeline.records.trial import Applied, FixTarget, TrialFailure

GIB = 2**30
HOSTILE = (
    '</text><script>alert(1)</script> | a ``` b\n# head \x1b[31mred\u202e & "q" [bold]x[/bold]'
)
DIFF = """--- train.py
+++ optimized_train.py
@@ -3,4 +3,5 @@
 import torch
+torch.set_float32_matmul_precision("high")  # TF32: 1.36 × on its own
-loader = DataLoader(data, batch_size=32)
+loader = DataLoader(data, batch_size=32, num_workers=8)
 ``` = "a fence of the user's own"
"""


def ratio(value: float, around: float = 0.015, pairs: int = 3) -> Ratio:
    return Ratio(
        value=value, ci_low=value * (1 - around), ci_high=value * (1 + around), pairs=pairs
    )


def parity(equality: Any = "equal", difference: float = 2e-7, why: str = "") -> Parity:
    checks = (
        Check(
            what="losses", passed=equality != "differs", difference=difference, allowed=1e-5,
            step=3, text=f"largest difference {difference:g} at step 3, allowed 1e-05",
        ),
        Check(
            what="applied steps", passed=True, text="8 optimizer steps, as before", difference=0.0
        ),
        Check(what="settings", passed=True, text="the optimizers were told the same"),
    )  # fmt: skip
    missing = ("the loader draws in its workers",) if equality == "weak" else ()
    return Parity(
        equality=equality, why=why or f"losses agree to {difference:g}", checks=checks,
        missing=missing,
    )  # fmt: skip


EXACT = parity(difference=0.0, why="losses, gradients and parameters are the same")
ROUNDED = parity()


def rung(fix: str, title: str, status: Any, why: str | Reason = "", **told: Any) -> Rung:
    """A rung whose reason is given, or is what a fix said about the program."""
    reason = because(TrialFailure.RAISED, error=why) if isinstance(why, str) else why
    return Rung(fix=fix, title=title, status=status, reason=reason, **told)


def measured(code: SearchCode, known: Ratio) -> Reason:
    return because(
        code, value=known.value, ci_low=known.ci_low, ci_high=known.ci_high, pairs=known.pairs
    )


OUT_OF_TIME = because(SearchCode.OUT_OF_TIME)
INTERRUPTED = because(SearchCode.INTERRUPTED)
UNCLEAR = Ratio(value=1.01, ci_low=0.98, ci_high=1.04, pairs=4)
WORSE = Ratio(value=0.93, ci_low=0.91, ci_high=0.95, pairs=2)


def step(fix: str, title: str, gain: float, before_ms: float, **told: Any) -> Rung:
    """A kept one."""
    known = ratio(gain)
    return Rung(
        **{
            "fix": fix, "title": title, "status": "kept", "ratio": known,
            "reason": measured(SearchCode.FASTER, known), "verdict": "FASTER",
            "before_ms": before_ms, "step_ms": before_ms / gain, "parity": ROUNDED,
            "alters": "rounding", "peak_bytes": 7 * GIB, "peak_before_bytes": 8 * GIB,
            "spent_s": 41.0, **told,
        }
    )  # fmt: skip


NOT_TRIED = (
    *(rung(name, title, "not tried", "no convolution was seen") for name, title in (
        ("channels-last", "channels-last convolutions"), ("cudnn-autotune", "cuDNN autotuning"),
        ("eval-fusing", "batch norms folded into convolutions"))),
    rung("autocast-fp16", "float16 autocast with a scaled loss", "not tried",
         "this GPU has bfloat16, which needs no scaling"),
    rung("foreach-optimizer", "an optimizer update over lists of tensors", "not tried",
         "torch does so by itself on a GPU"),
    rung("inference-mode", "inference mode", "not tried", "the program trains"),
    rung("threads", "threads of an operator", "not tried", "the work is on the GPU"),
    rung("affinity", "every core of the machine", "not tried", "the work is on the GPU"),
    rung("set-to-none", "gradients dropped, not zeroed", "not tried",
         because(SearchCode.BOUND_TOO_SMALL, bound=1.0)),
    rung("compiled-autograd", "compiled autograd", "not tried",
         "this version of torch has it in parts only"),
    rung("prefetch", "more batches made ahead", "not tried",
         because(SearchCode.BOUND_TOO_SMALL, bound=1.01)),
    rung("chunked-cross-entropy", "cross-entropy in chunks", "not tried", OUT_OF_TIME),
    rung("checkpointing", "activation checkpointing of repeated blocks", "not tried",
         "it is for memory, and the goal is speed"),
    rung("padded-vocabulary", "padded vocabulary", "not tried", "there is no vocabulary"),
    rung("persistent-workers", "workers that stay between epochs", "not applied",
         "the program makes one pass over its data"),
)  # fmt: skip


def rungs() -> tuple[Rung, ...]:
    compile_pair = {
        "ratio": ratio(2.14), "before_ms": 47.9, "step_ms": 22.4, "parity": ROUNDED,
        "alters": "rounding", "peak_bytes": 5 * GIB, "peak_before_bytes": 6 * GIB,
        "compile_s": 48.5, "pays_after": 1902, "beside": ("loader-workers", "autocast"),
    }  # fmt: skip
    return (
        step("loader-workers", "DataLoader workers", 2.48, 152.0, options={"workers": "8"},
             parity=EXACT, alters="nothing", without=ratio(3.1), peak_bytes=8 * GIB),
        step("tf32", "TF32 in float32 products", 1.16, 61.2, status="dropped",
             reason=because(SearchCode.REPLACED, title="bfloat16 autocast"),
             beside=("loader-workers",)),
        step("autocast", "bfloat16 autocast", 1.1, 52.8, without=ratio(1.31),
             peak_bytes=6 * GIB, peak_before_bytes=7 * GIB, beside=("loader-workers",)),
        rung("fused-optimizer", "a fused optimizer update", "rejected",
             measured(SearchCode.UNDECIDED, UNCLEAR), ratio=UNCLEAR, verdict="UNDECIDED",
             parity=EXACT,
             before_ms=47.9, step_ms=47.4, beside=("loader-workers", "autocast"),
             peak_bytes=6 * GIB),
        rung("non-blocking", "copies to the GPU without waiting", "rejected",
             measured(SearchCode.SLOWER, WORSE), before_ms=47.9, step_ms=51.5, ratio=WORSE,
             verdict="SLOWER", parity=EXACT),
        rung("sdpa", "fused attention", "rejected", "losses differ from step 3 on: 0.4, allowed "
             "1e-05", parity=parity("differs", 0.4), alters="rounding"),
        rung("compile-max-autotune", "torch.compile, products chosen by timing", "rejected",
             "it raised RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        rung("compile", "torch.compile", "kept", measured(SearchCode.FASTER, ratio(2.14)),
             together=("compile-reduce-overhead",), **compile_pair),
        rung("compile-reduce-overhead", "CUDA graphs", "kept",
             measured(SearchCode.FASTER, ratio(2.14)),
             together=("compile",), without=ratio(1.42), **compile_pair),
        *NOT_TRIED,
    )  # fmt: skip


def total() -> Total:
    return Total(
        ratio=ratio(6.73, 0.018, 4), fixes=("loader-workers", "autocast", "compile"),
        before_ms=152.3, after_ms=22.6, before_samples_s=210.0, after_samples_s=1416.0,
        parity=ROUNDED, peak_before_bytes=8 * GIB, peak_bytes=5 * GIB, compile_s=48.5,
        pays_after=374, applied=(
            Applied(fix="loader-workers", targets=(FixTarget(
                done=because(Done.OPTION, call="DataLoader", option="num_workers", value=8),
                place=Place("train.py", 41),
            ),)),
        ),
    )  # fmt: skip


def climbed() -> Optimized:
    """As in the design: a program that waited for its data, then for its kernels."""
    return Optimized(
        command="train.py --epochs 1", device="NVIDIA H200", baseline_ms=152.0,
        baseline_bytes=8 * GIB, control=Ratio(value=1.002, ci_low=0.991, ci_high=1.012, pairs=3),
        rungs=rungs(), total=total(), noise=0.012, trials=61, spent_s=552.0, run="1115-0102-train",
        replay="ridgeline optimize --fresh --budget 10m --seed 0 -- train.py --epochs 1",
        longer="ridgeline optimize --budget 20m --seed 0 -- train.py --epochs 1",
        resume="ridgeline optimize --budget 10m --seed 0 -- train.py --epochs 1",
        advice=("train.py:63: .item() waits for the GPU in every step: take it every 50 steps",),
        written=Written(
            files=("optimized_train.py",), diff=DIFF, diff_file="optimized_train.diff",
            by_hand=(
                because(
                    ByHand.PUT_BESIDE, cause=because(Obstacle.SEVERAL_STATEMENTS, line=88),
                    file="model.py", line=88, where="after",
                    text="    self.net = torch.compile(self.net)",
                ),
            ),
            checked="the copy by itself takes 22.7 ms a step, 6.71 ×", agrees=True,
        ),
    )  # fmt: skip


def with_batch() -> Optimized:
    rung_of_batch = rung(
        "larger-batch", "a larger batch", "kept", "1.52 × [1.50, 1.54]", options={"batch": "128"},
        alters="semantics", ratio=ratio(1.52), step_ms=59.6, before_ms=22.6, peak_bytes=20 * GIB,
    )  # fmt: skip
    whole = replace(
        total(), ratio=ratio(10.2), after_ms=59.6, before_samples_s=210.0, after_samples_s=2148.0,
        fixes=(*total().fixes, "larger-batch"), peak_bytes=20 * GIB,
        parity=parity("weak", 0.02, "the losses fall alike"),
    )  # fmt: skip
    made = climbed()
    return replace(made, rungs=(*made.rungs, rung_of_batch), with_batch=whole)


def nothing_kept() -> Optimized:
    found = tuple(r for r in rungs() if r.status in ("rejected", "not tried", "not applied"))
    return replace(climbed(), rungs=found, total=None, written=None, advice=())


def unconfirmed() -> Optimized:
    return replace(climbed(), total=None, written=None, stopped=OUT_OF_TIME)


def doubtful() -> Optimized:
    """Fresh processes wavered so much that the whole may be no gain; a copy was written."""
    wide = Ratio(value=2.39, ci_low=0.59, ci_high=9.76, pairs=2)
    return replace(climbed(), total=replace(total(), ratio=wide, confirmed=False), noise=0.64)


def disturbed() -> Optimized:
    """The unchanged program ran while something else did: its step is twice what it is."""
    return replace(
        climbed(), baseline_ms=304.0,
        total=replace(total(), ratio=Ratio(value=4.63, ci_low=4.4, ci_high=4.9, pairs=4)),
    )  # fmt: skip


def interrupted() -> Optimized:
    first = rungs()[:2]
    rest = tuple(replace(r, status="not tried", reason=INTERRUPTED, ratio=None, step_ms=None,
                         parity=None, together=(), beside=()) for r in rungs()[2:9])  # fmt: skip
    return replace(
        climbed(), rungs=(first[0], *rest, *NOT_TRIED), total=None, written=None,
        stopped=INTERRUPTED,
    )  # fmt: skip


def less_memory() -> Optimized:
    checkpointed = step(
        "checkpointing", "activation checkpointing of repeated blocks", 1.64, 152.0,
        options={"blocks": "6"}, step_ms=181.0, peak_bytes=5 * GIB, peak_before_bytes=8 * GIB,
    )  # fmt: skip
    whole = replace(total(), ratio=ratio(1.64, 0.002), after_ms=181.2, pays_after=None,
                    compile_s=0.0, fixes=("checkpointing",))  # fmt: skip
    return replace(
        climbed(), goal="memory", measured="peak memory", total=whole,
        rungs=(checkpointed, *NOT_TRIED[:5]),
    )  # fmt: skip


def many(kept: int = 12) -> Optimized:
    """More kept rungs than any program had, with names as long as names get."""
    made, ms = [], 200.0
    for at in range(kept):
        gain = 1.08 + 0.03 * (at % 4)
        made.append(
            step(f"change-{at}", f"change {at} of a rather long and winding title in the table",
                 gain, ms, without=ratio(gain * 0.97), options={"workers": "8", "mode": "x" * at})
        )  # fmt: skip
        ms /= gain
    whole = replace(total(), ratio=ratio(200.0 / ms), before_ms=200.0, after_ms=ms)
    return replace(climbed(), baseline_ms=200.0, rungs=tuple(made), total=whole)


def hostile() -> Optimized:
    """Every word that comes from a user's program tries to be something else."""
    named = rung("a|b", HOSTILE, "rejected", HOSTILE, ratio=ratio(0.9), parity=parity(why=HOSTILE))
    kept = step("k", HOSTILE, 2.0, 152.0, options={HOSTILE: HOSTILE}, without=ratio(2.0))
    other = step("k2", "=1+1", 1.5, 76.0, without=ratio(1.5))
    untried = rung("u", HOSTILE, "not tried", HOSTILE)
    return replace(
        climbed(), command=HOSTILE, device=HOSTILE, rungs=(kept, other, named, untried),
        advice=(HOSTILE,), problems=(HOSTILE,),
        stopped=because(TrialFailure.RAISED, error=HOSTILE), replay=HOSTILE, run=HOSTILE,
        total=replace(total(), parity=parity("weak", why=HOSTILE)),
        written=Written(
            files=(HOSTILE,), diff=DIFF + HOSTILE, checked=HOSTILE, agrees=False,
            by_hand=(because(ByHand.NAME_TAKEN, file=HOSTILE, copy=HOSTILE),),
        ),
    )  # fmt: skip


ALL = {
    "climbed": climbed, "batch": with_batch, "nothing kept": nothing_kept,
    "unconfirmed": unconfirmed, "doubtful": doubtful, "disturbed": disturbed,
    "interrupted": interrupted, "memory": less_memory, "many": many, "hostile": hostile,
}  # fmt: skip
