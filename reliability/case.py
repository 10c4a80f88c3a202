"""A program of the proof: its source and how it is started. Read from `programs/*.txt`.

A file holds sections; a section begins with `=== name | key: value | …` and goes on with the
source. Keys: `args`, `stdin` (Python escapes), `how` (script, module, code, folder, zip, symlink,
absolute, elsewhere), `file` (the script's name), `flags` (the interpreter's), `env` (K=V …),
`begin` (a file of `programs/` put before the source), `send` (a signal, once "ready" is on stdout),
`streams` (merged, no-stdin, no-stdout, no-stderr, closed-pipe, full), `proves` (results: row 2),
`why` (a difference that has to be: said, not counted), `torchrun` (a number of ranks).
A line `--- name` begins another file that lies beside the script.
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent / "programs"
KEYS = {
    "args",
    "stdin",
    "how",
    "file",
    "flags",
    "env",
    "begin",
    "send",
    "streams",
    "proves",
    "why",
    "torchrun",
}


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    group: str
    args: tuple[str, ...] = ()
    stdin: bytes = b""
    how: str = "script"
    file: str = "program.py"
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    send: str = ""
    streams: str = ""
    proves_results: bool = False
    why: str = ""
    ranks: int = 0
    also: dict[str, str] = field(default_factory=dict)
    """Files beside the script: name to source."""

    @property
    def torch(self) -> bool:
        return self.group.startswith("torch")


def read_all(groups: str = "") -> list[Case]:
    cases = [case for path in sorted(HERE.glob(f"{groups}*.txt")) for case in read_file(path)]
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two programs have the same name: {sorted(twice)}"
    return cases


def read_file(path: Path) -> list[Case]:
    sections = path.read_text().split("\n=== ")
    return [parse(section, path.stem) for section in sections[1:]]


def parse(section: str, group: str) -> Case:
    head, _, source = section.partition("\n")
    name, *pairs = head.split(" | ")
    keys = dict(pair.strip().split(": ", 1) for pair in pairs)
    assert not set(keys) - KEYS, f"{group}/{name}: unknown {set(keys) - KEYS}"
    beside = source.split("\n--- ")
    begin = keys.get("begin")
    text = beside[0] + "\n"
    if begin:
        text = (HERE / f"{begin}.begin").read_text() + text
    return Case(
        name=name.strip(),
        source=text,
        group=group,
        args=tuple(shlex.split(keys.get("args", ""))),
        stdin=keys.get("stdin", "").encode().decode("unicode_escape").encode("latin-1"),
        how=keys.get("how", "script"),
        file=keys.get("file", "program.py"),
        flags=tuple(keys.get("flags", "").split()),
        env=dict(pair.split("=", 1) for pair in shlex.split(keys.get("env", ""))),
        send=keys.get("send", ""),
        streams=keys.get("streams", ""),
        proves_results=keys.get("proves") == "results",
        why=keys.get("why", ""),
        ranks=int(keys.get("torchrun", "0")),
        also={one.split("\n", 1)[0].strip(): one.split("\n", 1)[1] for one in beside[1:]},
    )
