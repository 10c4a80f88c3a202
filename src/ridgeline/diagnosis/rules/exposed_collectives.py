"""The step waits for bytes to travel between ranks: no compute hides it."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._machine import own_calls, place_of_call
from ridgeline.diagnosis.rules._ranks import (
    asked_at,
    at_most,
    exposed,
    mostly_waits,
    runs_buckets,
    sending,
    sharded_change,
    small_sites,
    untraced_s,
    wrapped_at,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall, assigned_name, with_argument

LEAST = 0.03
"""Of the step. The last bucket of a backward is never hidden: with ten buckets and a backward of
two thirds of the step that alone is some 2 %."""

OWN_CALL = 3.0
"""Times what bytes take on a slow link: an all_gather of gloo copies its parts once more on each
side, and the thread that waits has to be woken."""

WRAPPED = 0.5
"""Of what a wrapper exchanges on a CPU: hiding it there takes the cores that compute, and the bytes
stay, so that half of it at most is counted."""
MOSTLY = 0.95
"""Of the time in them: from here on all of it is the exchange."""
_ASKED = {
    "all_reduce": "all_reduce(tensor",
    "all_gather": "all_gather_into_tensor(gathered, part",
    "reduce_scatter": "reduce_scatter_tensor(part, whole",
    "all_to_all": "all_to_all_single(received, sent",
    "broadcast": "broadcast(tensor, src=0",
    "reduce": "reduce(tensor, dst=0",
}
"""How each is asked for, up to the last argument."""

RULE = Rule(id="exposed-collectives", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    small = small_sites(case)
    rest = [site for site in case.exchange.sites if site not in small and site.exposed_ns > 0]
    for sites in _by_place(rest):
        call = asked_at(case, sites[0])
        if call is None:  # late-rank tells of those
            sites = [site for site in sites if not mostly_waits(case, site)]
        if not sites:
            continue
        part = _removable(case, sites, call)
        share = exposed(case, *sites) * part
        if not case.on_gpu and call is None and sites[0].phase == "backward":
            share *= WRAPPED
        if share >= LEAST:
            yield _finding(case, sites, call, share, part)


def _removable(case: Case, sites: Sequence[CollectiveSite], call: SourceCall | None) -> float:
    """Of the time in them: gone with them. Waiting for a late rank is not: it waits elsewhere. A
    call of the program's own also copies and wakes threads, which a wrapper does beside compute."""
    return at_most(case, *sites, slack=OWN_CALL) if call is not None else sending(case, *sites)


def _by_place(sites: Sequence[CollectiveSite]) -> list[list[CollectiveSite]]:
    groups: dict[tuple[str, str, str, bool], list[CollectiveSite]] = {}
    for site in sites:
        where = (site.place.file, site.place.function) if site.place is not None else ("", "")
        groups.setdefault((site.name, *where, site.phase == "backward"), []).append(site)
    return list(groups.values())


def _finding(
    case: Case, sites: Sequence[CollectiveSite], call: SourceCall | None, share: float, part: float
) -> Finding:
    """`part`: of the time in them, what is the exchange itself and in the share."""
    site = sites[0]
    calls, taken = sum(one.calls for one in sites), sum(one.ns for one in sites) / 1e9
    open_s = sum(one.exposed_ns for one in sites) / 1e9
    sizes = [one.bytes * one.calls for one in sites if one.bytes is not None]
    about = "about " if any(one.estimated for one in sites) else ""
    said = [
        Evidence(
            what=f"in {site.name}",
            text=f"{units.seconds(taken)} a traced step, {units.seconds(open_s)} of it with no "
            "compute beside it",
            value=open_s,
        ),
        Evidence(what="calls a step", text=f"{calls:.3g}", value=calls),
    ]
    if sizes and taken:
        rate = units.bandwidth(sum(sizes) / taken)
        text = f"{about}{units.bytes_(sum(sizes))} a step, at {rate}"
        said.append(Evidence(what="bytes", text=text, value=sum(sizes), source="derived"))
    hidden = sum(one.ns for one in sites) / 1e9 - open_s
    if not case.on_gpu and hidden > 0.05 * taken:
        text = f"{units.seconds(hidden)}, on cores that compute would use: in the share too"
        said.append(Evidence(what="beside compute", text=text, value=hidden))
    if part < MOSTLY:
        text = f"{units.percent(1 - part)} of the time in them, not in the share"
        said.append(Evidence(what="waiting for other ranks", text=text, value=1 - part))
    backward = site.phase == "backward" and call is None
    wrapped = wrapped_at(case, site) if call is None else None
    size = f" for {about}{units.bytes_(sum(sizes))}" if sizes else ""
    where = "gradients' " if backward else ""
    waited = units.seconds(untraced_s(case, *sites))
    return make_finding(
        RULE,
        claim=f"the step waits {waited} in {where}{site.name}{size}: nothing is computed "
        f"meanwhile{_waits(part)}",
        share=share,
        confidence=_level(case, call),
        place=place_of_call(wrapped) if wrapped is not None else site.place,
        line=call.line if call is not None else None,
        evidence=said,
        change=_change(case, site, call, wrapped),
        doubt="" if case.across is not None else "part of it may be waiting for a late rank",
    )


def _level(case: Case, call: SourceCall | None) -> Confidence:
    if call is not None:
        return "high"
    told = case.across.trust.confidence if case.across is not None else "unreliable"
    return "medium" if told == "good" else "low"


def _waits(part: float) -> str:
    return (
        f"; {units.percent(1 - part)} of that is waiting for other ranks" if part < MOSTLY else ""
    )


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
    """The wrapper's line. Gloo refuses the hook that halves the bytes ("required CUDA 11+ and NCCL
    2.10+"): there, fewer and larger exchanges."""
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
    asked = [call.text for call in own_calls(case, ("init_process_group",))]
    return any("gloo" in text and "nccl" not in text for text in asked)
