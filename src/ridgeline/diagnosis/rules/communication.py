"""Collectives between ranks: small ones, exposed ones, those sent in vain, and late ranks.

The rules share which collectives are small, their exposed share of the step, how much of it is
waiting, and where the source asks for them.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import ranks_here
from ridgeline.diagnosis.rank_delays import lateness, seen_line, under_rank_condition
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located_call, place_at, user_calls
from ridgeline.diagnosis.shares import exchange_room
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import CollectiveSite, LateRank
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, assigned_name, calls_at, with_argument

SMALL_BYTES = 512 * 1024
"""Below it starting takes longer than sending: 5 µs at 100 GB/s against some 20 µs to start; half a
millisecond at gloo's 1 GB/s against a fifth of that for each of its rounds."""
SHORT_CALL_NS = 100_000
"""A call this short is small if no size was recorded."""
SLOWEST_NETWORK_BYTES_S = 1e8
SLOWEST_MACHINE_BYTES_S = 1e9
"""An Ethernet of 1 Gb/s, and memory shared inside a machine or a GPU's link. What a collective
takes beyond that is no sending."""
MAX_START_NS, MAX_START_GPU_NS = 500_000, 100_000
"""The most a collective takes to start: some hundreds of microseconds with gloo, tens with NCCL."""
MIN_SENDING_SHARE = 0.5
"""Share of the time in a collective that its bytes need on a slow link. With less, it waits for a
rank that comes late (late-rank) and not for bytes (exposed-collectives)."""
MIN_SMALL_CALLS = 8
"""Calls a step. DistributedDataParallel needs as many buckets for 200 MB of gradients."""

_SPELLED: dict[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce", "all_reduce_coalesced", "reduce_mean", "average_parameters"),
    "all_gather": ("all_gather", "all_gather_into_tensor", "all_gather_object", "gather"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all", "all_to_all_single"),
    "broadcast": ("broadcast", "broadcast_object_list"),
    "reduce": ("reduce",),
    "gather": ("gather", "gather_object"),
    "scatter": ("scatter",),
    "barrier": ("barrier",),
}


def is_small(site: CollectiveSite) -> bool:
    if site.bytes is not None:
        return site.bytes < SMALL_BYTES
    return bool(site.calls) and site.ns / site.calls < SHORT_CALL_NS


def small_groups(case: Case) -> list[list[CollectiveSite]]:
    """Return the small collectives, by the place that asks for many of them."""
    small = by_place(site for site in case.exchange.sites if is_small(site))
    return [sites for sites in small if sum(site.calls for site in sites) >= MIN_SMALL_CALLS]


def by_place(sites: Iterable[CollectiveSite], *, named: bool = False) -> list[list[CollectiveSite]]:
    """Return the collectives of each function and phase; with `named`, of each name too."""
    groups: dict[tuple[str, str, str, bool], list[CollectiveSite]] = {}
    for site in sites:
        where = (site.place.file, site.place.function) if site.place is not None else ("", "")
        key = (site.name if named else "", *where, site.phase == "backward")
        groups.setdefault(key, []).append(site)
    return list(groups.values())


def exposed(case: Case, *sites: CollectiveSite) -> float:
    """Return the share of the step in which nothing but these collectives ran. On a CPU the
    exchange takes the cores that compute, so that hidden time is not free there and counts too.
    Tracing slows operators, not the exchange, so the share is of the untraced step. But on a CPU it
    slows the ranks that are waited for: the share is no more than the model's own phases leave, if
    the traced step does not show more."""
    if not case.on_gpu:
        held = sum(site.held_ns for site in sites if site.phase != "backward")
        ns = max(sum(site.ns for site in sites) * _beside(case), held)
        whole = sum(site.ns for site in case.exchange.sites)
        mine = sum(site.ns for site in sites) / whole if whole else 1.0
        room = max(exchange_room(case.times) * mine, case.host_share(ns))
        return min(case.device_share(ns), room)
    return case.device_share(sum(site.exposed_ns for site in sites))


def untraced_s(case: Case, *sites: CollectiveSite) -> float:
    """Return the seconds of an untraced step in which nothing else computed: what the trace shows,
    and on a CPU no longer than their share of the step."""
    open_s = sum(site.exposed_ns for site in sites) / 1e9
    if case.on_gpu or not case.times.mean_ms:
        return open_s
    return min(open_s, exposed(case, *sites) * case.step_ms / 1e3)


def _beside(case: Case) -> float:
    """Return the part of the summed time of collectives that remains if those beside each other
    count once."""
    whole = sum(site.ns for site in case.exchange.sites)
    return min(case.exchange.ns / whole, 1.0) if whole else 0.0


def sending(case: Case, *sites: CollectiveSite) -> float:
    """Return the share of the time in these collectives that is not spent waiting for a late rank:
    by the other ranks' traces if they can be compared, else by the shortest calls."""
    whole = sum(site.ns for site in sites)
    if not whole:
        return 1.0
    most = at_most(case, *sites)
    ranks = case.across.ranks if case.across is not None else ()
    mine = next((r for r in ranks if r.wait_ns is not None and r.transfer_ns), None)
    if mine is not None and mine.wait_ns is not None and mine.transfer_ns:
        return min(mine.transfer_ns / (mine.wait_ns + mine.transfer_ns), most)
    return min(sum(site.least_ns * site.calls for site in sites) / whole, most)


def mostly_waits(case: Case, site: CollectiveSite) -> bool:
    """Return whether one GPU rank's trace shows a collective far longer than its bytes take."""
    known = case.on_gpu and case.across is None and site.bytes is not None
    return known and at_most(case, site) < MIN_SENDING_SHARE


def at_most(case: Case, *sites: CollectiveSite, slack: float = 1.0) -> float:
    """Return the share of the time in these collectives that their bytes take on a slow link, times
    `slack`; at most 1."""
    whole = sum(site.ns for site in sites)
    if not whole or any(site.bytes is None for site in sites):
        return 1.0
    inside = case.on_gpu or (case.run is not None and ranks_here(case) >= case.ranks)
    link = SLOWEST_MACHINE_BYTES_S if inside else SLOWEST_NETWORK_BYTES_S
    start = MAX_START_GPU_NS if case.on_gpu else MAX_START_NS
    slowest = (s.calls * (start + 1e9 * (s.bytes or 0) / link) for s in sites)
    return min(slack * sum(slowest) / whole, 1.0)


def asked_at(case: Case, site: CollectiveSite) -> SourceCall | None:
    """Return the source call that asked for this collective. Return None if a wrapper asked for it,
    or if the function has several such calls and some of them may not run."""
    if site.phase == "backward" or site.sharding:  # a wrapper asked, not the function's own calls
        return None
    names = _SPELLED.get(site.name, (site.name,))
    return _sure(case, calls_at(case.sources, site.place, names))


def wrapped_at(case: Case, site: CollectiveSite) -> SourceCall | None:
    """Return the call that wraps the model in DDP, FSDP or `fully_shard`, whichever asked for this
    collective. Return None if the program did not run that wrapper, or if several lines of the
    source could be the one."""
    if site.sharding == "fsdp2":
        calls = user_calls(case, ("fully_shard",))
        # Programs call it in a loop for each block, then once for the whole model. The collectives
        # of the blocks are meant.
        return _sure(case, [call for call in calls if call.loops] or calls)
    if site.sharding == "fsdp1":
        return _sure(case, user_calls(case, ("FullyShardedDataParallel", "FSDP")))
    if site.phase != "backward" or not runs_buckets(case):
        return None
    return _sure(case, user_calls(case, ("DistributedDataParallel", "DDP")))


def runs_buckets(case: Case) -> bool:
    """Return whether DistributedDataParallel was seen at work."""
    modules = case.capture.modules if case.capture is not None else ()
    return case.exchange.forwards > 0 or any(
        "DistributedDataParallel" in module.wrappers for module in modules
    )


def sharded_change(site: CollectiveSite, wrapped: SourceCall | None) -> str:
    """Return the code that shortens the exchange of a sharded model, which has no `bucket_cap_mb`
    or similar options."""
    if site.sharding == "fsdp1":
        return (
            "# larger units in auto_wrap_policy, and FullyShardedDataParallel(…, "
            "forward_prefetch=True);\n# where memory allows, "
            "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP gathers once a step"
        )
    call = wrapped.text if wrapped is not None else "fully_shard(block)"
    if "reshard_after_forward" not in call and call.endswith(")"):
        call = with_argument(call, "reshard_after_forward=False")
    if site.name == "all_gather":
        return (
            f"{call}   # parameters stay gathered for the backward: more memory\n"
            "# or shard fewer, larger modules, or gather the next block's parameters early:\n"
            "# block.set_modules_to_forward_prefetch([next_block])"
        )
    return (
        "# shard fewer, larger modules: one fully_shard for several blocks is one exchange;\n"
        "# where a step has several backwards, before all but the last: "
        "model.set_requires_gradient_sync(False)"
    )


def _sure(case: Case, calls: Sequence[SourceCall]) -> SourceCall | None:
    """Return the only call, or the first of several that is under no condition; else None."""
    if len(calls) == 1:
        return calls[0]
    return next((call for call in calls if not _conditional(case, call)), None)


def _conditional(case: Case, call: SourceCall) -> bool:
    source = case.sources.get(call.file)
    if source is None:
        return False
    return any(
        isinstance(node, ast.If | ast.IfExp | ast.Try | ast.Match)
        and node.lineno <= call.line <= (node.end_lineno or node.lineno)
        and not _guards_main(node)
        for node in ast.walk(source.module)
    )


def _guards_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


MIN_SMALL_SHARE = 0.02

SMALL_COLLECTIVES = Rule(id="small-collectives", family="communication", budget="communication")


def small_collectives(case: Case) -> Iterator[Finding]:
    """Many small exchanges between ranks, each of which pays for its own start."""
    for sites in small_groups(case):
        calls = sum(site.calls for site in sites)
        share = exposed(case, *sites) * (1 - 1 / calls)
        if share >= MIN_SMALL_SHARE:
            yield _small_finding(case, sites, calls, share)


def _small_finding(
    case: Case, sites: Sequence[CollectiveSite], calls: float, share: float
) -> Finding:
    site = max(sites, key=lambda s: s.calls)
    call = asked_at(case, site)
    wrapped = wrapped_at(case, site) if call is None else None
    total = sum(s.bytes * s.calls for s in sites if s.bytes is not None)
    sized = any(s.bytes is not None for s in sites)
    each = sum(s.ns for s in sites) / calls / 1e9
    about = "about " if any(s.estimated for s in sites) else ""
    size = f" of {about}{units.bytes_(total / calls)} each" if sized else ""
    facts = [
        measured("collectives a step", f"{calls:.0f}{size}, {site.name}", calls),
        measured("a call takes", units.seconds(each), each),
    ]
    if sized:
        facts.append(measured("all of them together", f"{about}{units.bytes_(total)} a step"))
    level: Confidence = "high" if call is not None else "medium" if sized else "low"
    return make_finding(
        SMALL_COLLECTIVES,
        claim=f"{calls:.0f} small {site.name}s a step{size}, where one would do",
        share=share,
        confidence=level,
        place=located_call(case, wrapped) or site.place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_small_change(site, call, wrapped),
        doubt="" if call is not None else "the calls may depend on each other",
    )


def _small_change(site: CollectiveSite, call: SourceCall | None, wrapped: SourceCall | None) -> str:
    if site.sharding:
        return sharded_change(site, wrapped)
    if wrapped is not None:
        return "DistributedDataParallel(model, bucket_cap_mb=25)   # the default, or more"
    name = site.name
    first = f"# instead of {call.text}, tensor by tensor:\n" if call is not None else ""
    if name not in ("all_reduce", "collective"):
        return (
            f"{first}flat = torch.cat([t.reshape(-1) for t in tensors])\n"
            f"…   # one {name} of flat, then flat.split([t.numel() for t in tensors])"
        )
    return (
        f"{first}flat = torch.cat([t.reshape(-1) for t in tensors])\n"
        "dist.all_reduce(flat)\n"
        "for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):\n"
        "    t.copy_(part.view_as(t))"
    )


MIN_EXPOSED_SHARE = 0.03
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

EXPOSED_COLLECTIVES = Rule(id="exposed-collectives", family="communication", budget="communication")


def exposed_collectives(case: Case) -> Iterator[Finding]:
    """The step waits for bytes to travel between ranks: no compute hides it."""
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
        if share >= MIN_EXPOSED_SHARE:
            yield _exposed_finding(case, sites, call, share, part)


def _exposed_finding(
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
        EXPOSED_COLLECTIVES,
        claim=f"the step waits {waited} in {where}{site.name}{size}: nothing is computed "
        f"meanwhile{waits}",
        share=share,
        confidence=_exposed_level(case, call),
        place=located_call(case, wrapped) or site.place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_exposed_change(case, site, call, wrapped),
        doubt="" if case.across is not None else "part of it may be waiting for a late rank",
    )


def _exposed_level(case: Case, call: SourceCall | None) -> Confidence:
    if call is not None:
        return "high"
    trust = case.across.trust.confidence if case.across is not None else "unreliable"
    return "medium" if trust == "good" else "low"


def _exposed_change(
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


MIN_ALONE_SHARE = 0.05
"""Share of the step from which one rank's trace alone is reported."""

MAIN_SHARE = 0.5
"""Share of the time the rank was late from which what it did says something."""

LATE_RANK = Rule(id="late-rank", family="communication", budget="communication")


def late_rank(case: Case) -> Iterator[Finding]:
    """One rank comes late to the collectives, and all others wait for it."""
    if case.across is None and not case.steps_compared:
        yield from _alone(case)
    elif (late := lateness(case)) is not None and not _told_as_pauses(case, late):
        yield _late_finding(case, late)
        if late.beside is not None:
            yield _late_finding(case, late.beside)


def _told_as_pauses(case: Case, late: LateRank) -> bool:
    """Return whether the late rank is the recorded one, and its lateness is mostly pauses between
    steps. Those pauses have findings of their own."""
    own = case.capture is not None and case.capture.rank == late.rank
    return own and case.times.pause_share >= MAIN_SHARE * late.share


def _alone(case: Case) -> Iterator[Finding]:
    """Yield a finding by one rank's trace alone, for collectives that take far longer than their
    bytes on a slow link."""
    sites = [site for site in case.exchange.sites if mostly_waits(case, site)]
    if not sites:
        return
    share = exposed(case, *sites) * (1 - sending(case, *sites))
    if share < MIN_ALONE_SHARE:
        return
    taken, size = sum(site.ns for site in sites) / 1e9, sum((s.bytes or 0) * s.calls for s in sites)
    yield make_finding(
        LATE_RANK,
        claim=f"collectives take {units.seconds(taken)} a step for {units.bytes_(size)}: this rank "
        "waits for another that comes late",
        share=share,
        confidence="low",
        place=sites[0].place,
        evidence=[
            measured("in collectives", f"{units.seconds(taken)} a step", taken),
            derived("bytes", f"{units.bytes_(size)}, at {units.bandwidth(size / taken)}", size),
        ],
        change="ridgeline trace trace-rank*.json.gz   # all ranks: who comes late, and with what",
        doubt="one rank's trace does not show the others; a very slow link looks the same",
    )


def _late_finding(case: Case, late: LateRank) -> Finding:
    place, line, call = seen_line(case.sources, late.cause)
    name = place.function if place is not None else ""
    if late.cause is not None and late.cause.encloses_steps:  # the loop itself is no cause
        place, name = place if line is not None else None, ""
    if place is None:
        place = place_at(late.place)
        line = place.line if place is not None else None
    behind = units.seconds(late.late_ns / 1e9)
    when = "in each step" if case.sites.steps != 1 else "in the one step recorded"
    if late.steps:
        when = "in the average step"
    return make_finding(
        LATE_RANK,
        claim=f"rank {late.rank} comes {behind} late {when}{_origin(late, name)}: the other ranks "
        "wait for it",
        share=late.share,
        bound=gain_without(late.waiting_share),
        confidence=_late_level(late, place),
        place=place,
        line=line,
        evidence=_evidence(late, place),
        change=_late_change(case, late, call, name),
        doubt="" if place is not None or late.basis == "steps" else _doubt(case.sites.stacks),
    )


def _origin(late: LateRank, name: str) -> str:
    if name:
        return f", because of {name}"
    return f", because of its {late.phase}" if late.phase and late.phase != "other" else ""


def _late_level(late: LateRank, place: Place | None) -> Confidence:
    if late.basis == "steps":
        return "high"
    if late.cause is None:
        return "low"
    return "high" if place is not None else "medium"


def _evidence(late: LateRank, place: Place | None) -> list[Evidence]:
    rank, facts = late.rank, []
    step = units.seconds(late.step_ns / 1e9)
    if late.steps:
        text = f"in {late.late_steps} of {units.plural(late.steps, 'step')}"
        facts.append(measured(f"rank {rank} was the slowest", text, late.late_steps))
        text = f"{units.seconds(late.phase_ns / 1e9)} longer than on the others in a step of {step}"
        facts.append(measured(f"its {late.phase}", text, late.phase_ns / 1e9))
    if late.collectives:
        text = f"to {late.late_collectives} of {units.plural(late.collectives, 'collective')}"
        part = late.late_collectives / late.collectives
        facts.append(measured(f"rank {rank} came last", text, part))
    waited = f"{units.seconds(late.late_ns / 1e9)} in a step of {step}"
    facts.append(measured("each other rank waits", waited, late.late_ns / 1e9))
    cause = late.cause
    if cause is None:
        return facts + _meanwhile(late)
    if place is not None:
        text = f"{units.seconds(cause.ns / 1e9)} a traced step on rank {rank}, "
        text += f"{units.seconds(cause.others_ns / 1e9)} on the others"
        facts.append(measured(f"in {place.function or 'that function'}", text, cause.ns / 1e9))
    return facts


def _meanwhile(late: LateRank) -> list[Evidence]:
    """Return where the rank was for most of the time that the others waited. This need not be the
    cause: the others may be there as long."""
    whole = sum(activity.ns for activity in late.doing)
    main = max(late.doing, key=lambda activity: activity.ns, default=None)
    if main is None or main.side == "before the trace" or main.ns < MAIN_SHARE * whole or not whole:
        return []
    text = f"{main.described}, {units.percent(main.ns / whole)} of that time"
    return [measured("meanwhile it was in", text, main.ns / 1e9)]


def _doubt(stacks: bool) -> str:
    chance = "by chance it may have been late in these few steps"
    if stacks:
        return f"{chance}; no function was found in which it spends more time than the others"
    return f"{chance}; without Python stacks no function can be compared between ranks"


def _late_change(case: Case, late: LateRank, call: SourceCall | None, name: str) -> str:
    if call is not None and call.name == name and under_rank_condition(case.sources, call):
        return f"if rank == {late.rank} and step % 100 == 0:   # not in every step\n    {call.text}"
    if name:
        return f"# {name}: the same work on every rank, or none of it inside the step"
    if late.phase == "input":
        return "# the same data, decoding and number of workers on every rank"
    if late.phase in ("forward", "backward"):
        return "# batches of the same size on every rank; else compare the ranks' processors"
    if case.sites.stacks:
        return f"ridgeline hardware   # on the machine of rank {late.rank}, and on another's"
    return "profile(…, with_stack=True)   # on every rank: tells the function that is longer on one"


MIN_ACCUMULATION_SHARE = 0.02
MIN_EXCHANGES = 1.5
"""Bytes exchanged a step, as a multiple of the parameters' own: gradients that travel once a step
are 1."""

SYNC_IN_ACCUMULATION = Rule(
    id="sync-in-accumulation", family="communication", budget="communication"
)


def sync_in_accumulation(case: Case) -> Iterator[Finding]:
    """Gradients are accumulated over several backwards, and exchanged after each."""
    backwards = _backwards(case)
    sites = [
        site
        for site in case.exchange.sites
        if site.phase == "backward" and site.name in ("all_reduce", "reduce_scatter", "collective")
    ]
    if backwards < 2 or not sites:
        return
    times = _times(case, sites, backwards)
    if times is None or times < MIN_EXCHANGES:
        return
    share = exposed(case, *sites) * (1 - 1 / times)
    if share < MIN_ACCUMULATION_SHARE:
        return
    modules = case.capture.modules if case.capture is not None else ()
    called = (place for m in modules if (place := place_at(m.place)) is not None)
    place = sites[0].place or next(called, None)
    call = next(iter(calls_at(case.sources, place, ("backward",))), None)
    calls = sum(site.calls for site in sites)
    size = sum((site.bytes or 0) * site.calls for site in sites)
    number = f"{calls:.0f} a step" + (f", {units.bytes_(size)}" if size else "")
    facts = [
        measured("backwards a step", f"{backwards:.3g}", backwards),
        measured("collectives in them", number, calls),
        derived("gradients exchanged", f"{times:.3g} times a step", times),
    ]
    yield make_finding(
        SYNC_IN_ACCUMULATION,
        claim=f"gradients are exchanged {times:.2g} times a step: after each of "
        f"{backwards:.2g} accumulated backwards, where the last would do",
        share=share,
        confidence="high" if _parameter_bytes(case) and size else "medium",
        place=place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_accumulation_change(sites[0], call),
    )


def _backwards(case: Case) -> float:
    counted = [s.backwards / max(s.optimizer_steps, 1) for s in case.steps if s.detailed]
    return median(counted) if counted else case.exchange.backwards


def _times(case: Case, sites: list[CollectiveSite], backwards: float) -> float | None:
    """Return how often each gradient travels in a step; None if nothing tells."""
    own = _parameter_bytes(case)
    if own and all(site.bytes is not None for site in sites):
        return min(sum((site.bytes or 0) * site.calls for site in sites) / own, backwards)
    # Every bucket travels in every backward: as often as there are backwards, or a multiple of it.
    even = all(abs(site.calls / backwards - round(site.calls / backwards)) < 0.05 for site in sites)
    many = all(site.calls >= backwards for site in sites)
    return backwards if even and many else None


def _parameter_bytes(case: Case) -> int:
    modules = case.capture.modules if case.capture is not None else ()
    return sum(m.parameter_bytes for m in modules if not m.loss and m.calls > m.evaluation_calls)


def _accumulation_change(site: CollectiveSite, call: SourceCall | None) -> str:
    line = call.text if call is not None else "loss.backward()"
    if site.sharding == "fsdp2":
        return (
            "model.set_requires_gradient_sync(last)   # last: True for the last part of a step\n"
            "…   # the forward\n"
            f"{line}"
        )
    return (
        "with nullcontext() if last else model.no_sync():   # last: the last part of a step\n"
        "    …   # the forward\n"
        f"    {line}"
    )
