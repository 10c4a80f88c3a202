"""Plans for a training step within a budget of memory: do they fit, and how near is the best?

    python benchmarks/memory_plans.py -o docs/results/memory-plans.md

Seven models, each capped at 75, 50 and 25 % of its activations. For each cap: whether a plan was
found, its measured peak over the budget and over the prediction, its time by the planner's own
times against the best set that a search through all sets of blocks finds, and its measured time
against the step as given, in turns.
"""

import argparse
import itertools
import platform
import sys
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import memory_prediction as models
from examples import resnet
from ridgeline import machine
from ridgeline.cost.counting import count
from ridgeline.cost.study.placement import place
from ridgeline.cost.study.planning import Planner
from ridgeline.cost.study.running import Options
from ridgeline.cost.study.target import Prepared, Subject
from ridgeline.memory.planner import has_solver, micro_batch_counts
from ridgeline.records.cost import PHASES
from ridgeline.records.memory_plan import MemoryPlan
from ridgeline.records.model import ModelReport

SHARES = (0.75, 0.5, 0.25)
MAX_SEARCHED_BLOCKS = 4
"""All sets of more blocks would take too long: the search then takes its pick of the largest."""
MAX_SEARCHED_COUNTS = 2


def encoder() -> models.Built:
    return models.transformer(256, 4, 4).train(), torch.randn(8, 128, 256)


def perceptron() -> models.Built:
    layers = [
        nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)
    ]
    return nn.Sequential(*layers), torch.randn(512, 256)


MODELS: dict[str, Callable[[], models.Built]] = {
    "MLP, 4 blocks": perceptron,
    "TransformerEncoder, 4 × 256": encoder,
    "GPT-2, 4 × 256": lambda: (models.gpt(), torch.randint(0, 100, (8, 128))),
    "Llama-style, 4 × 256": lambda: (models.llama_style(), torch.randint(0, 100, (8, 128))),
    "ResNet-18, 8 × 64²": lambda: (resnet.resnet18(), torch.randn(8, 3, 64, 64)),
    "U-Net-like, 8 × 64²": lambda: (models.UNet(), torch.randn(8, 3, 64, 64)),
    "Conv1d stack": lambda: (models.conv1d(), torch.randn(8, 16, 2048)),
}


def planner_of(built: models.Built) -> Planner:
    model, x = built
    host = torch.device("cpu")
    prepared = Prepared(Subject("benchmark", model, (x,), {}), model, (x,), {}, host)
    options = Options(training=True, fit_bytes=1)
    account = count(model, (x,), training=True, optimizer="adamw")
    inference = count(model, (x,))
    device = machine.ceilings("cpu", ["float32"])
    report = ModelReport(
        target="benchmark", model=type(model).__name__, inputs=(), samples=len(x), mode="training",
        device=device, parameters=account.parameters, cost=account.cost,
        inference_memory=inference.memory, training_memory=account.memory, measured_peak=None,
        latency=None, latency_missing="", notes=(),
        placement=place(account.cost, PHASES, device, None, tf32=False),
    )  # fmt: skip
    return Planner(prepared, options, host, report, lambda text: None)


def searched(planner: Planner) -> list[MemoryPlan]:
    """Return every plan of sets of blocks and micro-batches, each with its counted peak."""
    blocks = sorted(planner.blocks, key=lambda m: -m.activation_bytes)[:MAX_SEARCHED_BLOCKS]
    paths = [m.path for m in planner.blocks if m in blocks and m.calls == 1]
    found = []
    for parts in micro_batch_counts(planner.batch, 8)[:MAX_SEARCHED_COUNTS]:
        for size in range(len(paths) + 1):
            for chosen in itertools.combinations(paths, size):
                plan = MemoryPlan(
                    checkpointed=chosen, micro_batches=parts, micro_batch=planner.batch // parts,
                    optimizer="adamw", predicted_peak_bytes=0, predicted_slowdown=1.0,
                )  # fmt: skip
                found.append(planner.told(plan, planner.count_peak(plan)))
    return found


def rows_of(name: str) -> list[str]:
    torch.manual_seed(0)
    planner = planner_of(MODELS[name]())
    planner.look_at_times()
    memory = planner.report.memory
    every = searched(planner)
    rows = []
    for share in SHARES:
        planner.budget = memory.peak_bytes - int((1 - share) * memory.activations_bytes)
        plans = [p for p in planner.search() if p.changes == "nothing"]
        fitting = [p for p in every if p.predicted_peak_bytes <= planner.budget]
        best = min((p.predicted_slowdown for p in fitting), default=None)
        cells = [name, f"{100 * share:.0f} %", f"{planner.budget / 2**20:.1f}"]
        if not plans:
            rows.append(f"| {' | '.join(cells)} | none | — | — | — | {best or '—'} | — |")
            continue
        plan = planner.run(plans[0])
        assert plan.measured_peak_bytes is not None
        baseline, paired = planner.against_baseline([plan])
        against = f"{plan.predicted_slowdown / best:.3f}" if best else "—"
        cells += [
            f"{len(plan.checkpointed)} blocks, {plan.micro_batches} × {plan.micro_batch}",
            f"{plan.measured_peak_bytes / planner.budget:.3f}",
            f"{plan.measured_peak_bytes / plan.predicted_peak_bytes:.3f}",
            f"{plan.predicted_slowdown:.2f}", against, f"{paired[0] / baseline:.2f}",
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="models whose name contains this text")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# Plans for a training step within a budget of memory, on a CPU",
        "",
        f"{date.today()} · torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads, scipy {'there' if has_solver() else 'missing'}; "
        "made by `python benchmarks/memory_plans.py -o docs/results/memory-plans.md`.",
        "",
        "The budget is the predicted peak less a share of the activations: at 25 %, three quarters",
        "of them must go. \"search\" goes through every set of up to four blocks with one and two",
        "micro-batches, each counted, and takes the fastest that fits by the same times: at 1.000",
        "the planner found a set that is as good, below it a better one with more micro-batches.",
        "",
        "| model | kept | budget MiB | plan | peak / budget | peak / predicted | predicted time | "
        "… / search | measured time |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name in MODELS:
        for line in rows_of(name) if chosen.only in name else ():
            lines.append(line)
            print(line, flush=True)
    if chosen.output is not None:
        chosen.output.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
