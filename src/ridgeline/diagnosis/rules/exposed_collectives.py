"""The step waits for bytes to travel between ranks: no compute hides it."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._ranks import (
    asked_at,
    at_most,
    by_place,
    exposed,
    mostly_waits,
    runs_buckets,
    sending,
    sharded_change,
    small_groups,
    untraced_s,
    wrapped_at,
)
from ridgeline.diagnosis.rules._user_code import located_call, user_calls
from ridgeline.records.finding import Confidence, Finding
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall, assigned_name, with_argument

MIN_SHARE = 0.03
"""Share of the step. The last bucket of a backward is never hidden: with ten buckets and a backward
of two thirds of the step that alone is some 2 %."""

OWN_CALL_FACTOR = 3.0
"""How many times as long as its bytes on a slow link a call of the program's own may take: an
all_gather of gloo copies its parts once more on each side, and the thread that waits has to be
woken."""

HIDDEN_ON_CPU_SHARE = 0.5
"""Share that is counted of what a wrapper exchanges on a CPU: hiding it there takes the cores that
compute, and the bytes stay."""
ALL_SENDING_SHARE = 0.95
"""Share of the time in collectives from which all of it is the exchange."""
_ASKED = {
    "all_reduce": "all_reduce(tensor",
    "all_gather": "all_gather_into_tensor(gathered, part",
    "reduce_scatter": "reduce_scatter_tensor(part, whole",
    "all_to_all": "all_to_all_single(received, sent",
    "broadcast": "broadcast(tensor, src=0",
    "reduce": "reduce(tensor, dst=0",
}
"""How the program asks for each, up to the last argument."""

RULE = Rule(id="exposed-collectives", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    small = [id(site) for group in small_groups(case) for site in group]
    rest = [s for s in case.exchange.sites if id(s) not in small and s.exposed_ns > 0]
    for sites in by_place(rest, named=True):
        call = asked_at(case, sites[0])
        if call is None:  # late-rank reports collectives that mostly wait
            sites = [site for site in sites if not mostly_waits(case, site)]
        if not sites:
            continue
        # Waiting for a late rank does not go: the rank would wait elsewhere. A call of the
        # program's own also copies and wakes threads, which a wrapper does beside compute.
        if call is not None:
            part = at_most(case, *sites, slack=OWN_CALL_FACTOR)
        else:
            part = sending(case, *sites)
        share = exposed(case, *sites) * part
        if not case.on_gpu and call is None and sites[0].phase == "backward":
            share *= HIDDEN_ON_CPU_SHARE
        if share >= MIN_SHARE:
            yield _finding(case, sites, call, share, part)


def _finding(
    case: Case, sites: Sequence[CollectiveSite], call: SourceCall | None, share: float, part: float
) -> Finding:
    """Return the finding. `part` is the share of the time in the collectives that is the exchange
    itself and counts."""
    site = sites[0]
    calls, taken = sum(s.calls for s in sites), sum(s.ns for s in sites) / 1e9
    open_s = sum(s.exposed_ns for s in sites) / 1e9
    sizes = [s.bytes * s.calls for s in sites if s.bytes is not None]
    about = "about " if any(s.estimated for s in sites) else ""
    text = f"{units.seconds(taken)} a traced step, {units.seconds(open_s)} of it with no "
    facts = [
        measured(f"in {site.name}", f"{text}compute beside it", open_s),
        measured("calls a step", f"{calls:.3g}", calls),
    ]
    if sizes and taken:
        rate = units.bandwidth(sum(sizes) / taken)
        text = f"{about}{units.bytes_(sum(sizes))} a step, at {rate}"
        facts.append(derived("bytes", text, sum(sizes)))
    hidden = taken - open_s
    if not case.on_gpu and hidden > 0.05 * taken:
        text = f"{units.seconds(hidden)}, on cores that compute would use: in the share too"
        facts.append(measured("beside compute", text, hidden))
    waits = ""
    if part < ALL_SENDING_SHARE:
        text = f"{units.percent(1 - part)} of the time in them, not in the share"
        facts.append(measured("waiting for other ranks", text, 1 - part))
        waits = f"; {units.percent(1 - part)} of that is waiting for other ranks"
    wrapped = wrapped_at(case, site) if call is None else None
    size = f" for {about}{units.bytes_(sum(sizes))}" if sizes else ""
    where = "gradients' " if site.phase == "backward" and call is None else ""
    waited = units.seconds(untraced_s(case, *sites))
    return make_finding(
        RULE,
        claim=f"the step waits {waited} in {where}{site.name}{size}: nothing is computed "
        f"meanwhile{waits}",
        share=share,
        confidence=_level(case, call),
        place=located_call(case, wrapped) or site.place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_change(case, site, call, wrapped),
        doubt="" if case.across is not None else "part of it may be waiting for a late rank",
    )


def _level(case: Case, call: SourceCall | None) -> Confidence:
    if call is not None:
        return "high"
    trust = case.across.trust.confidence if case.across is not None else "unreliable"
    return "medium" if trust == "good" else "low"


def _change(
    case: Case, site: CollectiveSite, call: SourceCall | None, wrapped: SourceCall | None
) -> str:
    if site.sharding:
        return sharded_change(site, wrapped)
    if call is not None:
        inside = call.text.rstrip()
        asked = f"{inside[:-1]}, async_op=True)" if inside.endswith(")") else inside
        return f"work = {asked}\n…   # compute that does not need it\nwork.wait()"
    gradients = site.phase == "backward" and site.name == "all_reduce"
    if wrapped is not None or (gradients and (case.capture is None or runs_buckets(case))):
        return _wrapped(case, wrapped)
    if site.name == "barrier":
        return "# leave out dist.barrier(): the collectives themselves keep ranks together"
    asked = f"dist.{_ASKED.get(site.name, f'{site.name}(…')}, async_op=True)"
    return f"work = {asked}\n…   # compute that does not need it\nwork.wait()"


def _wrapped(case: Case, wrapped: SourceCall | None) -> str:
    """Return the wrapper's line. Gloo refuses the hook that halves the bytes ("required CUDA 11+
    and NCCL 2.10+"): there, the line makes fewer and larger exchanges."""
    text = wrapped.text.rstrip() if wrapped is not None else "DistributedDataParallel(model)"
    model = assigned_name(case.sources, wrapped) if wrapped is not None else ""
    written = wrapped.keywords if wrapped is not None else ()
    gloo = not case.on_gpu or _asks_gloo(case)
    options = {"gradient_as_bucket_view": "True", **({"bucket_cap_mb": "100"} if gloo else {})}
    for name, value in options.items():
        if text.endswith(")") and name not in written:
            text = with_argument(text, f"{name}={value}")
    model = model or "ddp_model"
    if gloo:
        return (
            f"{model} = {text}   # fewer, larger exchanges\n"
            f"# where a step has several backwards, all but the last: with {model}.no_sync():"
        )
    return (
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        f"{model} = {text}\n"
        f"{model}.register_comm_hook(None, default_hooks.bf16_compress_hook)   # half the bytes"
    )


def _asks_gloo(case: Case) -> bool:
    asked = [call.text for call in user_calls(case, ("init_process_group",))]
    return any("gloo" in text and "nccl" not in text for text in asked)
