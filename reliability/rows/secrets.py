"""Row 16: secrets stay out of every file of a run and of everything that is printed."""

import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path

from reliability.arms import ridgeline
from reliability.case import HERE
from reliability.outcome import Outcome, start, surroundings
from reliability.row import Asked, Row

WORDS = ("API_KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "AUTH")
OWNERS = ("AWS", "HF", "WANDB", "GITHUB", "OPENAI", "MYSQL", "SLACK", "AZURE", "NPM", "PIP")
OTHERS = (
    "DATABASE_URL", "HTTPS_PROXY", "PIP_INDEX_URL", "LD_PRELOAD_NOT", "TORCH_SECRET",
    "CUDA_TOKEN", "NCCL_KEY", "RIDGELINE_TOKEN", "PYTORCH_API_KEY", "OMP_PASSWORD",
)  # fmt: skip
CANARY = "cAnArY"
ARGUMENTS = (
    "--api-key", "{}", "--password={}", "--hf-token", "hf_{}0123456789abcdefghijklmnopqr",
    "--wandb_key={}", "token={}", "https://user:{}@example.org/data", "--auth", "Bearer {}",
    "--client-secret", "{}", "AWS_SECRET_ACCESS_KEY={}", "ghp_{}0123456789abcdefghijklmnopqrst",
    "sk-{}0123456789abcdefghijklmnopqrstuvwxyz", "--db", "postgres://me:{}@db/x",
)  # fmt: skip


def run(asked: Asked) -> list[Row]:
    row = Row(16, "secrets stay out", least=75)
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    canaries = Canaries()
    folder = base / "project"
    folder.mkdir()
    shutil.copy(HERE / "fault_target.py", folder / "train.py")
    env = environment(base, canaries)
    arguments = [canaries.put(word) if "{}" in word else word for word in ARGUMENTS]
    repository(folder, canaries)
    texts: list[tuple[str, bytes]] = []
    commands = {
        "run": ["run", "--steps", "4", "-o", "out.json", "train.py", *arguments],
        "run --python": ["run", "--python", "-o", "out.md", "train.py", *arguments],
        "run -c": ["run", "-c", f"api_key = '{canaries.new()}'; print(1)", *arguments],
        "runs": ["runs"],
        "runs --json": ["runs", "--json"],
        "runs show": ["runs", "show", "latest"],
    }
    for name, words in commands.items():
        done: Outcome = start([*ridgeline(), *words], folder, env)
        texts += [(f"{name}: stdout", done.out), (f"{name}: stderr", done.err)]
        if done.code not in (0, 3):
            row.failures.append(f"`{name}` ended {done.code}: {done.err[-300:]!r}")
    texts += list(written(folder))
    row.done = len(canaries.all)
    for name, text in texts:
        row.failures += [f"{one} in {name}" for one in canaries.all if one.encode() in text]
    row.notes.append(f"{len(canaries.all)} canaries, {len(texts)} texts and files searched")
    if not any("trace-rank0" in name for name, _ in texts):
        row.failures.append("there was no trace to search")
    shutil.rmtree(base, ignore_errors=True)
    return [row]


class Canaries:
    def __init__(self) -> None:
        self.all: list[str] = []

    def new(self) -> str:
        self.all.append(f"{CANARY}{len(self.all):03d}")
        return self.all[-1]

    def put(self, text: str) -> str:
        return text.replace("{}", self.new())


def environment(base: Path, canaries: Canaries) -> dict[str, str]:
    """Sixty names and more, and a home that is one itself."""
    names = [f"{owner}_{word}" for owner in OWNERS for word in WORDS] + list(OTHERS)
    secret = {name: canaries.new() for name in names}
    home = base / canaries.new()
    home.mkdir()
    (home / ".netrc").write_text(f"machine x login y password {canaries.new()}\n")
    return surroundings(secret | {"HOME": str(home)})


def repository(folder: Path, canaries: Canaries) -> None:
    url = f"https://oauth2:{canaries.new()}@example.org/me/project.git"
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (
        ("init", "-q"),
        ("remote", "add", "origin", url),
        ("add", "train.py"),
        (*who, "commit", "-qm", "one"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)


def written(folder: Path) -> list[tuple[str, bytes]]:
    """Every file the runs left, unpacked; the user's own left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(".git/") and name != "train.py":
            data = path.read_bytes()
            found.append((name, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))
            found.append((f"the name of {name}", name.encode()))
    return found
