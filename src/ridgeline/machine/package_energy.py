"""The processor's own energy counter (RAPL), where it may be read: since Linux 5.10 by root alone.

Only the packages are counted: cores and memory controllers are inside them, the platform's zone
(psys) is around them, and intel-rapl-mmio shows the same package twice.
"""

import re
from pathlib import Path

_ZONES = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's too: the driver kept the name


class PackageEnergy:
    """Over all packages, as they count themselves: two who read it get the same, until it wraps."""

    def __init__(self, zones: Path = _ZONES) -> None:
        self._packages = [zone for zone in _folders(zones) if _is_package(zone)]
        self._last = {zone: _number(zone / "energy_uj") for zone in self._packages}
        # One of two sockets would pass for the whole.
        self._readable = bool(self._packages) and None not in self._last.values()
        self._micro_joules = sum(value or 0 for value in self._last.values())

    def joules(self) -> float | None:
        if not self._readable:
            return None
        for zone in self._packages:
            now, before = _number(zone / "energy_uj"), self._last[zone]
            if now is None or before is None:
                self._readable = False
                return None
            # The counter starts again after some minutes of full load: 262 kJ on many packages.
            span = _number(zone / "max_energy_range_uj") or 0 if now < before else 0
            self._micro_joules += max(now - before + span, 0)
            self._last[zone] = now
        return self._micro_joules / 1e6


def _folders(zones: Path) -> list[Path]:
    try:
        return sorted(zones.iterdir())
    except OSError:
        return []


def _is_package(zone: Path) -> bool:
    try:
        return bool(_PACKAGE.fullmatch(zone.name)) and (
            (zone / "name").read_text().startswith("package")
        )
    except OSError:
        return False


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
