"""What the rules about communication share: which collectives are small, their exposed share of the
step, how much of it is waiting, and where the source asks for them."""

import ast
from collections.abc import Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._machine import own_calls, ranks_here
from ridgeline.diagnosis.shares import exchange_room
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall, calls_at, with_argument

SMALL_BYTES = 512 * 1024
"""Below it starting takes longer than sending: 5 µs at 100 GB/s against some 20 µs to start; half a
millisecond at gloo's 1 GB/s against a fifth of that for each of its rounds."""
SHORT_NS = 100_000
"""A call this short is small, where no size is recorded."""
SLOWEST_NETWORK = 1e8
SLOWEST_MACHINE = 1e9
"""Bytes/s: an Ethernet of 1 Gb/s, and memory shared inside a machine, or a GPU's link. What a
collective takes beyond that is no sending."""
START_NS, START_GPU_NS = 500_000, 100_000
"""The most a collective takes to start: with gloo some hundreds of microseconds, with NCCL tens."""
WAITS = 0.5
"""Of the time in a collective: where its bytes need less than this on a slow link, it waits for a
rank that comes late (late-rank), and not for bytes (exposed-collectives)."""
MANY = 8
"""Calls a step: DistributedDataParallel needs as many buckets for 200 MB of gradients."""

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
    return bool(site.calls) and site.ns / site.calls < SHORT_NS


def small_sites(case: Case) -> tuple[CollectiveSite, ...]:
    """Those of places that ask for many small ones."""
    small = [site for site in case.exchange.sites if is_small(site)]
    by_place: dict[tuple[str, str, bool], list[CollectiveSite]] = {}
    for site in small:
        key = (*_key(site), site.phase == "backward")
        by_place.setdefault(key, []).append(site)
    return tuple(
        site
        for sites in by_place.values()
        if sum(one.calls for one in sites) >= MANY
        for site in sites
    )


def _key(site: CollectiveSite) -> tuple[str, str]:
    return (site.place.file, site.place.function) if site.place is not None else ("", "")


def exposed(case: Case, *sites: CollectiveSite) -> float:
    """Share of the step: time of these during which nothing else computed. On a CPU the exchange
    takes the cores that compute, so that hidden time is not free there: it counts too. Tracing
    slows operators, not the exchange: all is of the untraced step. But on a CPU it slows the ranks
    that are waited for: no more than the model's own phases leave, if the traced step does not
    show more."""
    if not case.on_gpu:
        held = sum(site.held_ns for site in sites if site.phase != "backward")
        ns = max(sum(site.ns for site in sites) * _beside(case), held)
        whole = sum(site.ns for site in case.exchange.sites)
        mine = sum(site.ns for site in sites) / whole if whole else 1.0
        room = max(exchange_room(case.times) * mine, case.host_share(ns))
        return min(case.device_share(ns), room)
    return case.device_share(sum(site.exposed_ns for site in sites))


def untraced_s(case: Case, *sites: CollectiveSite) -> float:
    """Seconds of an untraced step in which nothing else computed: what the trace shows, and on a
    CPU no longer than their share of the step."""
    open_s = sum(site.exposed_ns for site in sites) / 1e9
    if case.on_gpu or not case.times.mean_ms:
        return open_s
    return min(open_s, exposed(case, *sites) * case.step_ms / 1e3)


def _beside(case: Case) -> float:
    """Of the summed time of collectives: what they take, those beside each other counted once."""
    whole = sum(site.ns for site in case.exchange.sites)
    return min(case.exchange.ns / whole, 1.0) if whole else 0.0


def sending(case: Case, *sites: CollectiveSite) -> float:
    """Of the time in these collectives: not spent waiting for a rank that comes late. By the other
    ranks' traces where they can be compared, else by the shortest calls."""
    whole = sum(site.ns for site in sites)
    if not whole:
        return 1.0
    most = at_most(case, *sites)
    told = case.across.ranks if case.across is not None else ()
    mine = next((r for r in told if r.wait_ns is not None and r.transfer_ns), None)
    if mine is not None and mine.wait_ns is not None and mine.transfer_ns:
        return min(mine.transfer_ns / (mine.wait_ns + mine.transfer_ns), most)
    return min(sum(site.least_ns * site.calls for site in sites) / whole, most)


def mostly_waits(case: Case, site: CollectiveSite) -> bool:
    """By one GPU rank's trace alone: it takes far longer than its bytes."""
    told = case.on_gpu and case.across is None and site.bytes is not None
    return told and at_most(case, site) < WAITS


def at_most(case: Case, *sites: CollectiveSite, slack: float = 1.0) -> float:
    """Of the time in these collectives: what their bytes take on a slow link, `slack` times."""
    whole = sum(site.ns for site in sites)
    if not whole or any(site.bytes is None for site in sites):
        return 1.0
    inside = case.on_gpu or (case.run is not None and ranks_here(case) >= case.ranks)
    link = SLOWEST_MACHINE if inside else SLOWEST_NETWORK
    start = START_GPU_NS if case.on_gpu else START_NS
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
        calls = [*own_calls(case, ("fully_shard",))]
        # Programs call it in a loop for each block, then once for the whole model. The collectives
        # of the blocks are meant.
        return _sure(case, [call for call in calls if call.loops] or calls)
    if site.sharding == "fsdp1":
        return _sure(case, [*own_calls(case, ("FullyShardedDataParallel", "FSDP"))])
    if site.phase != "backward" or not runs_buckets(case):
        return None
    return _sure(case, [*own_calls(case, ("DistributedDataParallel", "DDP"))])


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
