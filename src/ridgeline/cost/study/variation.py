"""A prepared model varied: over a dimension, up to a memory budget, token by token."""

import torch

from ridgeline.cost.study import inputs
from ridgeline.cost.study.fit import largest_batch
from ridgeline.cost.study.options import Options, Say
from ridgeline.cost.study.prepared import Prepared, quiet_stdout
from ridgeline.cost.study.running import can_run, make_step, time_step
from ridgeline.cost.study.sweep import sweep
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure import time_generation
from ridgeline.records.latency import Generation
from ridgeline.records.model import Fit, Sweep, SweepPoint


def swept(prepared: Prepared, options: Options, host: torch.device, say: Say) -> Sweep:
    assert options.sweep is not None
    dimension, sizes = options.sweep

    def point_at(size: int) -> SweepPoint:
        say(f"{dimension} {size}")
        args, kwargs = inputs.resize(prepared.args, prepared.kwargs, dimension, size, virtual=True)
        account = prepared.account(
            training=options.training, optimizer=options.optimizer, args=args, kwargs=kwargs
        )
        flops = sum(account.cost.phases[p].flops for p in account.cost.phases)
        runs, missing = can_run(prepared, options, account.memory, host)
        median = None
        if runs and options.timed:
            args, kwargs = inputs.resize(prepared.args, prepared.kwargs, dimension, size)
            step = make_step(prepared, options, args, kwargs)
            median = time_step(prepared, step, host, options, 1.0).summary.median_ns / 1e6
        return SweepPoint(
            size=size,
            flops=flops,
            peak_bytes=account.memory.peak_bytes,
            median_ms=median,
            note=missing,
        )

    return sweep(dimension, sizes, point_at)


def check_variations(prepared: Prepared, options: Options) -> None:
    """Refuse what the inputs cannot do before anything long is done."""
    tensors = [a for a in (*prepared.args, *prepared.kwargs.values()) if torch.is_tensor(a)]
    seq = options.sweep is not None and options.sweep[0] == "seq"
    if seq and not any(t.dim() in (2, 3) for t in tensors):
        raise UsageError(
            "--sweep seq= needs an input of shape [batch, sequence] or [batch, sequence, width]",
            "use --sweep batch=…",
        )
    if options.generate:
        _prompt(prepared)


def _prompt(prepared: Prepared) -> torch.Tensor:
    for value in (*prepared.args, *prepared.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
            return value
    raise UsageError("--generate needs token ids as input", "for example --input 1x128:int64")


def fitted(prepared: Prepared, options: Options, say: Say) -> Fit:
    def peak_of(batch: int) -> int:
        say(f"predicting batch {batch}")
        args, kwargs = inputs.resize(prepared.args, prepared.kwargs, "batch", batch, virtual=True)
        account = prepared.account(
            training=options.training, optimizer=options.optimizer, args=args, kwargs=kwargs
        )
        return account.memory.peak_bytes

    return largest_batch(peak_of, options.fit_bytes, options.mode)


def generated(
    prepared: Prepared, options: Options, host: torch.device, missing: str, say: Say
) -> Generation:
    if missing:
        raise RidgelineError(f"generation was not timed: {missing}")
    prompt = _prompt(prepared)
    say(f"generating {options.generate} tokens")
    try:
        with quiet_stdout():
            return time_generation(
                prepared.model, prompt, options.generate, str(host), 2 * options.budget_s
            )
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error
