"""What the rules about copies to the device share: copies by the line that asks, what they hold up,
and whether they are the same each step."""

import re
from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import MAX_SHARE
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._sync import LARGE_BYTES, library_of, lost, through_library
from ridgeline.records.finding import Evidence
from ridgeline.records.run import LoaderSeen
from ridgeline.records.sites import CopySite, SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.transfers import copy_on_line, unchanged
from ridgeline.source.waiting import Line, calls

MOSTLY = 0.5
_INDEXED = re.compile(r"index", re.IGNORECASE)
LEAST = 0.01
"""Of the step: copies that hold it up for less are not worth a line of a report."""
GAP_NS = 100_000
"""From the end of a copy that was waited for to the next kernel: 30 to 80 µs on an H200."""
LINK_BYTES_S = 64e9
"""PCIe 5.0 with 16 lanes, one way: pinned copies are never faster but over NVLink-C2C."""
_CHIP_TO_CHIP = re.compile(r"GH200|GB200|GB300|MI300A")
CHIP_TO_CHIP_BYTES_S = 450e9
COPIES = frozenset({"to", "cuda", "copy_", "tensor", "as_tensor"})
_NO_COPY = re.compile(
    r"\.to\((dtype=)?(torch\.)?(float|bfloat|half|int|long|double|bool|uint)\w*\)"
)


class Sent(Struct, frozen=True, kw_only=True):
    """Copies to the device that one line asks for."""

    place: Place | None
    line: Line | None
    sites: tuple[CopySite, ...]
    held_ns: float = 0.0
    """The host waited in them."""
    lost: float = 0.0
    """Share of the step in which the device idles for that."""

    @property
    def bytes(self) -> float:
        return sum(site.bytes for site in self.sites)

    @property
    def copies(self) -> float:
        return sum(site.copies for site in self.sites)

    @property
    def device_ns(self) -> float:
        return sum(site.device_ns for site in self.sites)

    @property
    def exposed_ns(self) -> float:
        """While no kernel ran."""
        return sum(site.exposed_ns for site in self.sites)

    @property
    def small(self) -> bool:
        """Too few bytes for the copying to count: what counts is that it is waited for."""
        return self.bytes < LARGE_BYTES * self.copies

    @property
    def of_index(self) -> bool:
        """Asked for by indexing a tensor on the device with one on the host."""
        return all(_INDEXED.search(site.op) for site in self.sites)

    @property
    def pageable(self) -> bool:
        most = max(self.sites, key=lambda site: site.device_ns)
        return most.pageable is True


def sent(case: Case) -> tuple[Sent, ...]:
    """The costliest first."""
    groups: dict[tuple[object, ...], list[CopySite]] = defaultdict(list)
    for site in case.sites.copies:
        if site.direction == "to device":
            groups[site.place, site.op, site.via].append(site)
    found = [part for sites in groups.values() for part in _by_line(case, sites)]
    return tuple(sorted(found, key=lambda one: -(one.exposed_ns + one.held_ns)))


def repeated(case: Case, one: Sent) -> bool:
    """The source shows that what is copied is the same each time."""
    source = case.sources.get(one.place.file) if one.place is not None else None
    if source is None or one.line is None:
        return False
    call = copy_on_line(source, one.line.number, COPIES)
    return call is not None and unchanged(source, call)


def holds_up(case: Case, one: Sent) -> float:
    """Share of the step that would be gone without them: the device idle but for the copy, and
    idle because the host was held. Both can be gained only up to the time the host was held."""
    copying = sum(_waited_for(case, one, site) for site in one.sites)
    whole = case.device_share(copying) + one.lost
    most = max(one.held_ns, copying + GAP_NS * one.copies)
    return min(whole, case.device_share(most))


def _waited_for(case: Case, one: Sent, site: CopySite) -> float:
    """Of the copying, what something waits for: that no kernel runs beside it may also be because
    the host has not launched one."""
    in_turn = not site.beside and (one.held_ns > 0 or (case.busy or 0.0) >= SATURATED)
    return site.exposed_ns if in_turn else min(site.exposed_ns, site.path_ns)


def beside(case: Case) -> float:
    """Share of the step in which the device computes: what copies could be hidden behind."""
    copying = sum(site.exposed_ns for site in case.sites.copies)
    return max((case.busy or 0.0) - case.device_share(copying), 0.0)


def pinned_share(case: Case, size: float) -> float:
    """What copying so many bytes takes at least from pinned memory, as a share of the step."""
    name = case.device.name if case.device is not None else ""
    rate = CHIP_TO_CHIP_BYTES_S if _CHIP_TO_CHIP.search(name) else LINK_BYTES_S
    return case.device_share(size / rate * 1e9)


def pinned_bound(case: Case, size: float, share: float) -> float | None:
    """Where copies are most of the step, all of its waiting goes with them: no step is shorter than
    its pinned copies or its kernels. 8.3 × was gained where the wait for copies alone said 6.9."""
    if share < MOSTLY:
        return bound_ahead(case, share)
    return 1 / max(pinned_share(case, size), beside(case), 1 - MAX_SHARE)


def evidence(case: Case, one: Sent, share: float) -> Iterator[Evidence]:
    seconds = one.device_ns / 1e9
    rate = f" at {units.bandwidth(one.bytes / seconds)}" if seconds else ""
    yield Evidence(
        what="copied to the device",
        text=f"{units.bytes_(one.bytes)} a step in {_copies(one.copies)}{rate}",
        value=one.bytes,
    )
    yield Evidence(
        what="no kernel ran meanwhile",
        text=f"{units.seconds(one.exposed_ns / 1e9)} a step",
        value=one.exposed_ns / 1e6,
    )
    yield Evidence(
        what="held up",
        text=f"{units.seconds(share * case.step_ms / 1e3)}, {units.percent(share)} of the step",
        value=share,
        source="derived",
    )


def named(one: Sent) -> str:
    """`images.to(device)`, or what is known of it."""
    if one.line is not None and len(one.line.expression) <= 50:
        return f"`{one.line.expression}`"
    return "A copy to the GPU"


def only_the_loader(one: Sent, loader: LoaderSeen | None) -> bool:
    """The line does not wait, and the loader's pin_memory is all that lacks."""
    does_not_wait = one.line is not None and "non_blocking=True" in one.line.text
    return does_not_wait and loader is not None and not loader.pin_memory


def unblocked(expression: str) -> str:
    """x.to(device, non_blocking=True)."""
    if "non_blocking" in expression:
        return re.sub(r"non_blocking\s*=\s*\w+", "non_blocking=True", expression)
    if not expression.endswith(")"):
        return expression
    empty = expression.endswith("()")
    return f"{expression[:-1]}{'' if empty else ', '}non_blocking=True)"


def _by_line(case: Case, sites: list[CopySite]) -> Iterator[Sent]:
    """Copies of one function shared out to its lines: in their order, where there are as many."""
    first = sites[0]
    waits = [wait for wait in case.sites.waits if _same(wait, first)]
    lines = _lines(case, first)
    ordered = sorted(sites, key=lambda site: site.offset_ns)
    numbers = sorted({line.number for line in lines})
    if len(numbers) > 1 and len(lines) == len(ordered):
        by_number = sorted(lines, key=lambda line: line.number)
        parts: dict[int, list[CopySite]] = defaultdict(list)
        for line, site in zip(by_number, ordered, strict=True):
            parts[line.number].append(site)
        told = {line.number: line for line in reversed(by_number)}
        for number, members in parts.items():
            yield _sent(case, told[number], members, sites, waits)
        return
    yield _sent(case, lines[0] if lines else None, sites, sites, waits)


def _sent(
    case: Case,
    line: Line | None,
    sites: list[CopySite],
    every: list[CopySite],
    waits: list[SyncSite],
) -> Sent:
    total = sum(site.host_ns for site in every)
    part = sum(site.host_ns for site in sites) / total if total else len(sites) / len(every)
    return Sent(
        place=sites[0].place,
        line=line,
        sites=tuple(sites),
        held_ns=part * sum(wait.host_ns for wait in waits),
        lost=part * lost(case, waits),
    )


def _same(wait: SyncSite, site: CopySite) -> bool:
    op = wait.ops[0] if wait.ops else ""
    same = (wait.place, op, wait.via) == (site.place, site.op, site.via)
    return same and wait.direction != "to host"


def _lines(case: Case, site: CopySite) -> tuple[Line, ...]:
    """Calls that copy to the device; of those equally deep in loops all, in likeliest order."""
    if library_of(site.via):
        return through_library(case, site.place, site.via)[:1]
    if _INDEXED.search(site.op):
        return ()  # brackets ask for it, and no line that copies
    method = site.via[-1] if site.via else ""
    names = {method} if method in COPIES else COPIES - {"copy_"}
    found = [
        line
        for line in calls(case.sources, site.place, names)
        if "cpu" not in line.expression and not _NO_COPY.search(line.expression)
    ]
    if not method:  # torch.tensor(x) makes one on the host, unless it is told where
        found = [at for at in found if "tensor(" not in at.text or "device" in at.expression]
    return tuple(line for line in found if line.loops == found[0].loops)


def _copies(count: float) -> str:
    number = units.significant(count) if count % 1 else f"{count:.0f}"
    return f"{number} {'copy' if number == '1' else 'copies'}"
