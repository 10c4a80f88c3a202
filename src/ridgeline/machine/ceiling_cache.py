"""Measured ceilings, stored between runs in one JSON file per device, driver and torch version.

A file that cannot be read counts as missing. If a file cannot be written, its content is kept for
this process only. So a damaged file or a read-only home costs a measurement, and is no error.
"""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ridgeline.machine.cache_folder import folder
from ridgeline.records.facts import Reason
from ridgeline.records.machine import Ceiling, Quantity


class Key(Struct, frozen=True, kw_only=True):
    """The facts that must be the same for a stored measurement to be valid."""

    kind: str
    name: str
    driver: str
    torch: str
    architecture: str = ""
    uuid: str = ""
    """GPUs only: two cards of one model differ in cooling and silicon."""
    cores: int = 0
    threads: int = 0
    """CPUs only: a product on 2 threads says nothing about one on 64."""


class Refusal(Struct, frozen=True):
    """A dtype that a device cannot compute, and why."""

    dtype: str
    reason: str


class Entry(Struct, frozen=True, kw_only=True):
    """The stored ceilings of one device."""

    key: Key
    ceilings: tuple[Ceiling, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """The dtypes that were tried and that the device cannot compute."""
    conditions: tuple[Reason, ...] = ()
    """What disturbed the newest measurement."""
    disturbed: tuple[tuple[Quantity, str], ...] = ()
    """The ceilings (quantity, dtype) measured while others used the device: they may be low."""
    exceeded: tuple[tuple[Quantity, str], ...] = ()
    """The ceilings (quantity, dtype) that a program was faster than, so that they are too low."""
    schema: int = 1

    @property
    def doubtful(self) -> frozenset[tuple[Quantity, str]]:
        """Return the ceilings that may not be used until they are measured again."""
        return frozenset(self.disturbed) | frozenset(self.exceeded)

    def marked(self) -> tuple[Ceiling, ...]:
        """Return the ceilings, each marked as disturbed or exceeded where it is."""
        return tuple(
            msgspec.structs.replace(
                c,
                disturbed=(c.quantity, c.dtype) in self.disturbed,
                exceeded=(c.quantity, c.dtype) in self.exceeded,
            )
            for c in self.ceilings
        )

    def merged(self, newer: "Entry") -> "Entry":
        """Return this entry updated by `newer`. Ceilings that were not measured again stay.

        A ceiling is an upper bound, so a disturbed measurement replaces only a lower ceiling.
        """
        refused = {r.dtype for r in newer.refusals}
        held = {(c.quantity, c.dtype): c for c in self.ceilings if c.dtype not in refused}
        disturbed = {place for place in self.disturbed if place in held}
        exceeded = {place for place in self.exceeded if place in held}
        for ceiling in newer.ceilings:
            place = (ceiling.quantity, ceiling.dtype)
            old = held.get(place)
            if place in newer.disturbed and old is not None and _is_better(old, ceiling):
                continue
            held[place] = ceiling
            disturbed.discard(place)
            exceeded.discard(place)
            if place in newer.disturbed:
                disturbed.add(place)
        tried = {c.dtype for c in newer.ceilings} | refused
        return Entry(
            key=newer.key,
            ceilings=tuple(held.values()),
            refusals=tuple(r for r in self.refusals if r.dtype not in tried) + newer.refusals,
            conditions=newer.conditions,
            disturbed=tuple(sorted(disturbed)),
            exceeded=tuple(sorted(exceeded)),
        )


def _is_better(first: Ceiling, second: Ceiling) -> bool:
    return first.value < second.value if first.unit == "s" else first.value > second.value


# Used if nothing can be written: a process with a read-only home measures once, not at each call.
_in_process: dict[Key, Entry] = {}


def load(key: Key) -> Entry | None:
    """Return what is stored for a device; None if there is nothing."""
    try:
        entry = msgspec.json.decode(_path(key).read_bytes(), type=Entry)
    except (OSError, ValueError):  # missing or damaged; msgspec's errors are ValueErrors
        return _in_process.get(key)
    # The file's name holds only a short hash of the key, so the key inside is compared.
    return entry if entry.key == key and entry.schema == 1 else _in_process.get(key)


def store(entry: Entry) -> Entry:
    """Merge `entry` into the stored one, and return the result."""
    stored = load(entry.key)
    return _write_entry(stored.merged(entry) if stored is not None else entry)


def mark_exceeded(key: Key, quantity: Quantity, dtype: str) -> None:
    """Remember that a program was faster than a stored ceiling, until that is measured again."""
    entry = load(key)
    if entry is not None and (quantity, dtype) not in entry.exceeded:
        _write_entry(msgspec.structs.replace(entry, exceeded=(*entry.exceeded, (quantity, dtype))))


def _write_entry(entry: Entry) -> Entry:
    _in_process[entry.key] = entry
    with contextlib.suppress(OSError):
        _write(_path(entry.key), msgspec.json.format(msgspec.json.encode(entry)))
    return entry


def _path(key: Key) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", key.name.lower()).strip("-")[:48]
    return folder() / "ceilings" / f"{slug}-{digest}.json"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


MEASURE_LIMIT_S = 30.0
"""Time limit for `measure_in_child_process`, which takes 3 to 5 s, most of it to import torch."""


def measure_in_child_process(dtypes: Sequence[str]) -> bool:
    """Measure and store the CPU's ceilings for `dtypes` in another process, so that this one need
    not import torch. Return whether that succeeded."""
    code = (
        "import sys; from ridgeline.machine.survey import ceilings; ceilings('cpu', sys.argv[1:])"
    )
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), home]))
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [sys.executable, "-c", code, *dtypes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            timeout=MEASURE_LIMIT_S,
            check=False,
        )
        return done.returncode == 0
    return False
