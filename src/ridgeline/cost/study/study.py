"""The study of one target: count it, classify it on the roofline, run it, vary its sizes."""

import torch
from msgspec.structs import replace

from ridgeline import machine
from ridgeline.cost.counting import Account, join
from ridgeline.cost.study.placement import ceiling_dtype, place
from ridgeline.cost.study.planning import plan_memory
from ridgeline.cost.study.running import Options, Say, can_run, make_step, peak_of_step, time_step
from ridgeline.cost.study.target import Prepared, base_size, prepare
from ridgeline.cost.study.variation import check_variations, fit_batch, sweep_model, time_tokens
from ridgeline.errors import RidgelineError, TargetError, UsageError
from ridgeline.machine.datasheet import DTYPES
from ridgeline.records.cost import PHASES, Cost, Phase
from ridgeline.records.latency import Latency
from ridgeline.records.machine import Device
from ridgeline.records.model import ModelReport, Placement

MAX_PERCENT_OF_CEILING = 98.0
"""A model that reaches more than this share of a ceiling shows that the ceiling was measured too
low: real models stay below a lone matrix product."""


def study(target: str, options: Options, say: Say = lambda text: None) -> ModelReport:
    """Return the report on one target. `options` choose its parts; `say` shows progress."""
    host = machine.resolve_device(options.device)
    say(f"building {target}")
    prepared = prepare(
        target, options.inputs, torch.device("meta") if options.meta else host, dtype=options.dtype
    )
    check_variations(prepared, options)
    say("counting")
    inference, training, notes = _accounts(prepared, options)
    cost = _cost(inference, training, options)
    predicted = training.memory if options.training and training else inference.memory
    runs, missing = can_run(prepared, options, predicted, host)
    step = make_step(prepared, options) if runs else None
    say("timing")
    latency = time_step(prepared, step, host, options) if step and options.timed else None
    say("reading this machine's ceilings")
    device, placement = _placed(cost, host, latency, options)
    report = ModelReport(
        target=target,
        model=type(prepared.model).__name__,
        inputs=tuple(prepared.inputs_text.split(", ")),
        samples=base_size(prepared.args, prepared.kwargs, "batch"),
        mode=options.mode,
        device=device,
        parameters=inference.parameters,
        cost=cost,
        inference_memory=inference.memory,
        training_memory=training.memory if training else None,
        measured_peak=peak_of_step(prepared, step, host, options, say),
        latency=latency,
        latency_missing="" if latency else _why_untimed(options, missing),
        placement=placement,
        notes=(*prepared.notes, *notes, *(latency.warnings if latency else ())),
        disturbances=machine.conditions(str(host)) if latency else (),
        sweep=sweep_model(prepared, options, host, say) if options.sweep else None,
        fit=fit_batch(prepared, options, say) if options.fit_bytes else None,
        generation=time_tokens(prepared, options, host, missing, say) if options.generate else None,
    )
    if options.training and options.fit_bytes:
        report = replace(report, planned=plan_memory(prepared, options, host, report, say))
    return report


def _accounts(
    prepared: Prepared, options: Options
) -> tuple[Account, Account | None, tuple[str, ...]]:
    """Count inference, and training too unless the model cannot be trained."""
    if not any(p.requires_grad for p in prepared.model.parameters()):
        if options.training:
            raise UsageError(
                f"{prepared.subject.target} has no parameter that requires a gradient",
                "leave --train out",
            )
        return prepared.account(training=False), None, ("nothing in this model can be trained",)
    inference = prepared.account(training=False)
    try:
        training = prepared.account(training=True, optimizer=options.optimizer)
    except RidgelineError as error:
        if options.training:
            raise
        return inference, None, (f"training could not be counted: {error.message}",)
    if options.training and not training.cost.phases["backward"].calls:
        raise TargetError(
            f"no output of {prepared.subject.target} needs a gradient: there is no backward",
            "leave --train out, or return what the loss is made of",
        )
    return inference, training, ()


def _why_untimed(options: Options, missing: str) -> str:
    return missing if missing and (options.timed or options.meta) else "not asked for"


def _cost(inference: Account, training: Account | None, options: Options) -> Cost:
    if training is None:
        return inference.cost
    return training.cost if options.training else join(inference.cost, training.cost)


def _placed(
    cost: Cost, host: torch.device, latency: Latency | None, options: Options
) -> tuple[Device, Placement]:
    """Return the device and the placement of the model by the stored ceilings. A ceiling that the
    model itself exceeds was measured while the machine was disturbed, and is measured again now."""
    tf32 = host.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    dtypes = sorted({ceiling_dtype(cost.dtype, tf32), "float32"} & set(DTYPES))
    phases: tuple[Phase, ...] = PHASES if options.training else ("forward",)
    device = machine.ceilings(str(host), dtypes)
    placement = place(cost, phases, device, latency, tf32=tf32)
    if (
        placement.ceiling_state == "exceeded"
        or (placement.percent_of_ceiling or 0) > MAX_PERCENT_OF_CEILING
    ):
        device = machine.measure(str(host), dtypes, budget_s=4.0)
        placement = place(cost, phases, device, latency, tf32=tf32)
    return device, placement
