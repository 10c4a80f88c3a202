"""Works out what the traced device can do at most: measured on this machine if it is one of that
name and was measured (`ridgeline hardware --measure`), else by the datasheet, else nothing."""

import re
from collections.abc import Iterator
from importlib import metadata

import msgspec

from ridgeline.machine import datasheet, processor
from ridgeline.machine.cache_folder import folder
from ridgeline.machine.ceiling_cache import Entry
from ridgeline.machine.datasheet import DTYPES, TABLE, Datasheet, match
from ridgeline.records.machine import Device
from ridgeline.trace.trace import DeviceProperties


def device_of(properties: DeviceProperties) -> Device | None:
    """Return the traced device with its ceilings: the measured ones, and those of the datasheet for
    what was not measured."""
    listed = known_device(properties)
    name = properties.name
    measured = next((e for e, _ in _stored_entries() if e.key.name == name and name), None)
    if measured is None:
        return listed
    held = {(c.quantity, c.dtype) for c in measured.marked() if c.state == "usable"}
    rest = listed.ceilings if listed is not None else ()
    return Device(
        kind="cuda",
        index=properties.id,
        name=properties.name,
        memory_bytes=properties.memory_bytes,
        cores=properties.cores,
        ceilings=(*measured.marked(), *(c for c in rest if (c.quantity, c.dtype) not in held)),
    )


def _stored_entries() -> Iterator[tuple[Entry, float]]:
    """Yield the measurements that can be read, with the time at which they were written."""
    try:
        files = sorted((folder() / "ceilings").glob("*.json"))
    except OSError:
        return
    for file in files:
        try:
            yield msgspec.json.decode(file.read_bytes(), type=Entry), file.stat().st_mtime
        except (OSError, ValueError):
            continue


_MEMORY_GIB: dict[str, tuple[float, ...]] = {
    "V100 SXM2": (16, 32), "V100 PCIe": (16, 32), "V100S PCIe": (32,), "T4": (15,), "A10": (22.5,),
    "A10G": (22.5,), "A100 40GB": (39.5,), "A100 80GB PCIe": (79.5,), "A100 80GB SXM": (79.5,),
    "L4": (22.5,), "L40S": (45,), "RTX 3090": (24,), "RTX 4090": (24,), "RTX 5090": (32,),
    "H100 PCIe": (79.5,), "H100 SXM": (79.5,), "H100 NVL": (94,), "H200 SXM": (140,),
    "H200 NVL": (140,), "B200": (180,), "MI210": (64,), "MI250X": (64,), "MI300X": (192,),
    "MI325X": (256,),
}  # fmt: skip
"""The memory that the runtime reports, less than the box says where ECC or firmware take a part."""
_MAX_MEMORY_DIFFERENCE_SHARE = 0.03
"""An H100 reports 79.18 GiB, an A100 of 40 GB 39.39, a V100 31.74: within 1 % of the list."""

_SAME_CHIPS = (
    (re.compile(r"V100-(?:DGXS|SXM3)-(?:16|32)GB.*", re.IGNORECASE), "V100 SXM2"),
    (re.compile(r"A100-SXM-80GB", re.IGNORECASE), "A100 80GB SXM"),
    (re.compile(r"A100-SXM-40GB", re.IGNORECASE), "A100 40GB"),
    (re.compile(r"H100 SXM5?(?: 80GB)?", re.IGNORECASE), "H100 SXM"),
)
"""Boards that carry another's chip at its clocks."""
_BRAND = re.compile(r"^(?:NVIDIA|AMD)?\s*(?:Tesla|GeForce|Instinct)?\s*", re.IGNORECASE)
_NAMELESS = re.compile(r"(?:Radeon )?Graphics|Device [0-9a-f]+|gfx\w+|", re.IGNORECASE)


def known_device(properties: DeviceProperties) -> Device | None:
    """Return the device with its datasheet ceilings; None where the product is not certain."""
    row, how = _row(properties)
    if row is None:
        return None
    ceilings = tuple(
        msgspec.structs.replace(c, note=f"{c.note}; {how}" if how else c.note)
        for c in row.ceilings()
    )
    architecture = ""
    if properties.warp == 32 and properties.major:
        architecture = f"sm_{properties.major}{properties.minor}"
    return Device(
        kind="cuda",
        index=max(properties.id, 0),
        name=properties.name or row.product,
        memory_bytes=properties.memory_bytes,
        architecture=architecture,
        cores=properties.cores,
        ceilings=ceilings,
    )


def _row(properties: DeviceProperties) -> tuple[Datasheet | None, str]:
    """Return the product, and how it was recognised where its name is not the one of the
    datasheet."""
    name = properties.name.strip()
    named = match(name, properties.cores)
    if named is not None:
        return named, ""
    bare = _BRAND.sub("", name)
    for pattern, product in _SAME_CHIPS:
        row = next(r for r in TABLE if r.product == product)
        if pattern.fullmatch(bare) and not 0 < properties.cores < row.cores:
            return row, f"the chip of {bare}"
    if not properties.cores or not properties.memory_bytes:
        return None, ""
    candidates = [row for row in TABLE if _fits(row, properties)]
    if not _NAMELESS.fullmatch(bare):
        family = re.match(r"(?:RTX )?[A-Z]*\d+[A-Z]*", bare, re.IGNORECASE)
        wanted = family[0].upper() if family else bare.upper()
        candidates = [row for row in candidates if _family(row) == wanted]
    if len(candidates) != 1:
        return None, ""
    return candidates[0], "told by its multiprocessors and memory"


def _fits(row: Datasheet, properties: DeviceProperties) -> bool:
    amd = row.product.startswith("MI")
    if properties.warp and amd != (properties.warp == 64):
        return False
    gib = properties.memory_bytes / 2**30
    apart = min(abs(gib / size - 1) for size in _MEMORY_GIB[row.product])
    return apart <= _MAX_MEMORY_DIFFERENCE_SHARE and properties.cores == row.cores


def _family(row: Datasheet) -> str:
    product = row.product.upper()
    return " ".join(product.split()[:2]) if product.startswith("RTX") else product.split()[0]


def host_device(threads: int = 0, torch: str = "") -> Device | None:
    """Return the CPU with its stored ceilings; None if nothing was measured on a CPU like it."""
    entry = host_entry(threads, torch)
    return None if entry is None else _device(entry)


def host_entry(threads: int = 0, torch: str = "") -> Entry | None:
    """Return what was measured on a CPU like this one, or None.

    `threads`: torch's, where known: measurements with as many are preferred, else those with the
    most. `torch`: its version, likewise; by default the installed one's.
    """
    name, cores = processor.name(), processor.usable_cores()
    candidates = [
        (entry, written)
        for entry, written in _stored_entries()
        if entry.ceilings and entry.schema == 1
        if entry.key.kind == "cpu" and entry.key.name == name and entry.key.cores == cores
    ]
    if not candidates:
        return None
    version = torch or _installed()

    def fit(candidate: tuple[Entry, float]) -> tuple[bool, bool, int, float]:
        key = candidate[0].key
        same = bool(version) and key.torch.partition("+")[0] == version.partition("+")[0]
        return threads > 0 and key.threads == threads, same, key.threads, candidate[1]

    return max(candidates, key=fit)[0]


def _device(entry: Entry) -> Device:
    flags = processor.flags()
    supports = {dtype: datasheet.on_cpu(dtype, flags) for dtype in DTYPES}
    return Device(
        kind="cpu",
        index=0,
        name=processor.name(),
        memory_bytes=processor.memory_bytes(),
        architecture=processor.widest_extension(flags),
        cores=processor.usable_cores(),
        cache_bytes=processor.cache_bytes(),
        ceilings=datasheet.with_ratios(entry.marked(), supports),
    )


def _installed() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def emulated_here() -> tuple[str, ...]:
    """Return the 16-bit dtypes that this CPU emulates; () where it does not tell its
    instructions."""
    flags = processor.flags()
    return tuple(d for d in ("bfloat16", "float16") if not datasheet.on_cpu(d, flags).native)
