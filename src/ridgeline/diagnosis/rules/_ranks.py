"""What the rules about communication share: which collectives are small, their exposed share of the
step, how much of it is waiting, and where the source asks for them."""

import ast
from collections.abc import Iterable, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import ranks_here
from ridgeline.diagnosis.rules._user_code import user_calls
from ridgeline.diagnosis.shares import exchange_room
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall, calls_at, with_argument

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
