"""What a row of the proof found."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What was asked of the whole proof."""

    jobs: int = 2
    only: str = ""
    seed: int = 0
    group: str = ""
    """Programs of files whose name begins so."""
    plain: bool = False
    """Plain against plain: whether the programs themselves always do the same."""
    all: bool = False
    """Every program in every arm: the large run, for the night."""
    keep: bool = False
    """Leave the folders of failed cases behind."""
    one_in: int = 1
    """A part of the cases, another with each seed."""

    @property
    def part(self) -> bool:
        return bool(self.only or self.group) or self.one_in > 1

    def takes(self, name: str) -> bool:
        return self.only in name and crc32(f"{self.seed} {name}".encode()) % self.one_in == 0


@dataclass
class Row:
    number: int
    promise: str
    least: int
    """Fewer cases than this is a failure."""
    done: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self, asked: Asked) -> str:
        short = self.done < self.least and not asked.part
        state = "FAILED" if self.failures or short else "ok"
        few = f", promised {self.least}" if short else ""
        return (
            f"row {self.number:>2}  {state:6}  {self.promise}: {self.done} cases{few}, "
            f"{len(self.failures)} differ · {self.seconds:.0f} s"
        )

    def good(self, asked: Asked) -> bool:
        return not self.failures and (self.done >= self.least or asked.part)


def each(
    row: Row,
    items: Iterable[T],
    do: Callable[[T], list[str]],
    asked: Asked,
    name: Callable[[T], str],
) -> None:
    """Does all items, `asked.jobs` at a time; a failure is printed as soon as it is known."""
    chosen = [item for item in items if asked.takes(name(item))]
    began = time.monotonic()

    def one(item: T) -> None:
        try:
            found = do(item)
        except Exception as error:
            found = [f"the proof itself failed: {type(error).__name__}: {error}"]
        row.done += 1
        for sentence in found:
            row.failures.append(f"{name(item)}: {sentence}")
            print(f"  row {row.number}  {name(item)}: {sentence}", flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(one, chosen))
    row.seconds += time.monotonic() - began
