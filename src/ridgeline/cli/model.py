"""`ridgeline model`: what a model costs, and how close it comes to what the machine can do."""

from pathlib import Path
from typing import Any

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options
from ridgeline.errors import UsageError
from ridgeline.units import parse_seconds, parse_size

EXAMPLES = """\b
Examples:
  ridgeline model net.py:build --input 32x3x224x224
  ridgeline model net.py:build --input 8x1024:int64 --train --optimizer adamw --measure
  ridgeline model gpt.py:build_70b --meta --input 1x4096:int64 --train
  ridgeline model net.py:build --input 1x3x224x224 --train --fit 80GiB
  ridgeline model net.py:build --input 32x3x224x224 --train --fit 24GiB --full
  ridgeline model gpt.py:build --input 1x128:int64 --sweep seq=128,256,512
  ridgeline model mlp.py:build cnn.py:build transformer.py:build -o compared.md
"""


@click.command(name="model", epilog=EXAMPLES)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…")
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE[:DTYPE]",
    help="The shape of one input, e.g. 32x3x224x224 or 8x1024:int64; repeat it in the order in "
    "which forward takes them. By name: mask=8x1024:bool. Not needed if the target returns its own "
    "inputs.",
)
@click.option("--train", is_flag=True, help="Study a training step: forward, backward, optimizer.")
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    metavar="NAME",
    help="The optimizer of the training step: sgd, momentum, adam, adamw, adafactor, rmsprop or "
    "adagrad; adam8bit, adamw8bit and momentum8bit are estimated.",
)
@click.option(
    "--device", metavar="cpu|cuda|cuda:1", help="[default: a GPU if there is one, else the CPU]"
)
@click.option(
    "--dtype",
    default=None,
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Build the model and its floating-point inputs in this dtype.",
)
@click.option(
    "--meta",
    is_flag=True,
    help="Build the model without weights, to count one that does not fit here. Nothing is timed.",
)
@click.option("--measure", is_flag=True, help="Also measure the peak of memory that is predicted.")
@click.option("--no-time", is_flag=True, help="Count and predict only; do not time.")
@click.option(
    "--budget",
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How long to time the model: 500ms, 2s, 1m.",
)
@click.option(
    "--fit",
    metavar="SIZE",
    help="Find the largest batch that fits this memory: 80GiB, 24GB. With --train, also plan how "
    "the batch given fits: blocks to checkpoint, micro-batches, precision; then run the plan.",
)
@click.option(
    "--sweep",
    "sweep_text",
    metavar="DIM=A,B,C",
    help="Study several sizes of batch or seq, e.g. seq=128,256,512; fit a law of the cost, "
    "predict the next size, and check the prediction.",
)
@click.option(
    "--generate",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Time the generation of N tokens: the first, and each after it, with and without a KV "
    "cache.  [default: no generation]",
)
@click.option("--full", is_flag=True, help="Show every row of the table of blocks.")
@output_options(PAGE_ENDINGS)
def command(
    targets: tuple[str, ...], inputs: tuple[str, ...], as_json: bool, output: Path | None,
    quiet: bool, verbose: bool, full: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Show what models cost: parameters, FLOPs, bytes, memory, latency, place on the roofline.

    TARGET is file.py:callable or package.module:callable. The callable returns a torch.nn.Module,
    or the pair (module, inputs). Several targets are shown side by side.

    Exit codes: 0 ok; 2 usage; 4 a model could not be built or run.
    """
    from ridgeline.cli.output import check_output, claim_stdout, deliver, progress
    from ridgeline.cost.study.study import study
    from ridgeline.report.views.model import model_report

    claim_stdout()
    check_output(output, PAGE_ENDINGS)
    options = _options(inputs, chosen)
    with progress(quiet) as say:
        reports = [study(target, options, say) for target in targets]
    deliver(model_report(reports), as_json, output, full=full)


def _options(inputs: tuple[str, ...], chosen: dict[str, Any]) -> Any:
    from ridgeline.cost.counting.parameters import check_name
    from ridgeline.cost.study.running import Options
    from ridgeline.cost.study.target import parse_input
    from ridgeline.cost.study.variation import parse_sweep

    sweep_text, fit, generate = chosen["sweep_text"], chosen["fit"], chosen["generate"]
    if generate == 1:
        raise UsageError("--generate 1 has no time per further token", "ask for two tokens or more")
    if generate and (chosen["meta"] or chosen["no_time"]):
        other = "--meta" if chosen["meta"] else "--no-time"
        raise UsageError(f"--generate times tokens, and {other} times nothing", "leave one out")
    return Options(
        inputs=tuple(parse_input(text) for text in inputs),
        training=chosen["train"],
        optimizer=check_name(chosen["optimizer"]),
        device=chosen["device"],
        dtype=chosen["dtype"] or "",
        meta=chosen["meta"],
        timed=not chosen["no_time"],
        budget_s=parse_seconds("--budget", chosen["budget"]),
        measure_memory=chosen["measure"],
        sweep=parse_sweep(sweep_text) if sweep_text else None,
        fit_bytes=parse_size(fit) if fit else 0,
        generate=generate,
    )
