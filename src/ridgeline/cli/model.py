"""`ridgeline model`: what a model costs, and how close it comes to what the machine can do."""

from pathlib import Path
from typing import Any

import click

from ridgeline.cli.amounts import parse_size
from ridgeline.cli.output_options import PAGE_ENDINGS, output_options
from ridgeline.errors import UsageError
from ridgeline.units import parse_seconds

EXAMPLES = """\b
Examples:
  ridgeline model net.py:build --input 32x3x224x224
  ridgeline model net.py:build --input 8x1024:int64 --train --optimizer adamw --measure
  ridgeline model gpt.py:build_70b --meta --input 1x4096:int64 --train
  ridgeline model net.py:build --input 1x3x224x224 --train --fit 80GiB
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
    help="Shape of one input, in the order forward takes them: 32x3x224x224, 8x1024:int64; "
    "a named one: mask=8x1024:bool. Left out where the target returns its own inputs.",
)
@click.option("--train", is_flag=True, help="Study a training step: forward, backward, optimizer.")
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    help="sgd, momentum, adam, adamw, adafactor, rmsprop, adagrad; adam8bit, adamw8bit and "
    "momentum8bit by estimate.",
)
@click.option(
    "--device", default=None, help="cpu, cuda, cuda:1. Default: a GPU where there is one."
)
@click.option(
    "--dtype",
    default=None,
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Build the model and its floating inputs in this dtype.",
)
@click.option(
    "--meta",
    is_flag=True,
    help="Build without weights: counts a model that does not fit here. Nothing is timed.",
)
@click.option("--measure", is_flag=True, help="Measure peak memory too, beside the prediction.")
@click.option("--no-time", is_flag=True, help="Count and predict only; do not time.")
@click.option("--budget", default="2s", show_default=True, help="Time spent on timing: 2s, 500ms.")
@click.option("--fit", default=None, metavar="SIZE", help="Largest batch that fits: 80GiB, 24GB.")
@click.option(
    "--sweep",
    "sweep_text",
    default=None,
    metavar="DIM=A,B,C",
    help="Vary batch or seq, fit a cost law, predict the next size and check it.",
)
@click.option(
    "--generate",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Time generation of N tokens: the first, and each after it, with and without KV cache.",
)
@output_options(PAGE_ENDINGS)
def command(
    targets: tuple[str, ...], inputs: tuple[str, ...], as_json: bool, output: Path | None,
    quiet: bool, verbose: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Count, predict and time models.

    TARGET is file.py:callable or package.module:callable; the callable returns a torch.nn.Module,
    or the pair (module, inputs). Several targets are shown side by side.
    """
    from ridgeline.cli.output import check_output, claim_stdout, deliver, progress
    from ridgeline.cost.study.study import study
    from ridgeline.report.views.model import model_report

    claim_stdout()
    check_output(output, PAGE_ENDINGS)
    options = _options(inputs, chosen)
    with progress(quiet) as say:
        reports = [study(target, options, say) for target in targets]
    deliver(model_report(reports), as_json, output)


def _options(inputs: tuple[str, ...], chosen: dict[str, Any]) -> Any:
    from ridgeline.cost.counting.parameters import check_name
    from ridgeline.cost.study.running import Options
    from ridgeline.cost.study.target import parse_input
    from ridgeline.cost.study.variation import parse_sweep

    sweep_text, fit, generate = chosen["sweep_text"], chosen["fit"], chosen["generate"]
    if generate == 1:
        raise UsageError("--generate 1 shows no time a token", "ask for two tokens or more")
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
