"""What other tools that promise faster training claim, and what of it `ridgeline compare` confirms.

    python benchmarks/rivals.py --save rivals.json --out docs/results/rivals.md       about an hour
    python benchmarks/rivals.py --only gpt2 --tools slowai ridgeline --budget 1m
    python benchmarks/rivals.py --page rivals.json --out docs/results/rivals.md

Each tool gets the same small training programs, on a CPU, and is used as its README says. What it
claims is the gain that it prints. What it made is a second program: `ridgeline compare` times a
step of both in interleaved rounds, with an interval, and compares their losses. Programs of
Hugging Face's Trainer are compared as whole scripts, in alternating processes. Where a tool changes
the precision on purpose, losses may be 2 % apart. "confirmed" is a gain that is
proven and reaches nine tenths of the claim; "smaller" is a proven gain below that; "false" is a
claim of more than 2 % where the programs are as fast as each other, slower, or where the results
differ. Options of Hugging Face's Trainer claim no number; of them the gain alone is given.

The tools must be installed beside torch (`pip install --no-deps pytorch-autotune slowai`); one that
is not installed, or that refuses, is listed with its own last words.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct

import ridgeline
from ridgeline.machine import processor

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS = 50
"""Steps of each program: enough for `compare`, which needs 10 steady ones, and for `optimize`."""
LIMIT_S = 600
"""A tool that has not ended by then is stopped. pytorch-autotune's limit is 2 minutes with the
budget that it is given here."""
LOWER_PRECISION_TOLERANCE = 0.02
"""How far losses may lie apart where a tool lowers the precision, as a share."""
MIN_CLAIM = 1.02
"""A smaller claim is no claim of a gain, and is not compared."""
MAX_SHOWN_END = 100.0
"""An interval that ends above this is of one or two rounds, and tells nothing."""
CONFIRMED_SHARE = 0.9
"""A proven gain of at least this share of the claim confirms the claim."""
PACKAGES = {
    "ridgeline optimize": "ridgeline",
    "pytorch-autotune": "pytorch-autotune",
    "slowai fix": "slowai",
    "Trainer": "transformers",
}

SOURCE = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{imports}

def loss_of(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def prepare():
    torch.manual_seed(0)
    data = {data}
    loader = DataLoader(data, batch_size={batch})
    model = {model}
    optimizer = {optimizer}
    return model, optimizer, loader


def train_step(model, optimizer, inputs, targets):
    loss = loss_of(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    model, optimizer, loader = prepare()
    for inputs, targets in loader:
        loss = train_step(model, optimizer, inputs, targets)
    print(f"loss {{loss.item():.4f}}")


def again_and_again(loader):
    while True:
        yield from loader


def workload():
    model, optimizer, loader = prepare()
    batches = again_and_again(loader)
    return lambda: train_step(model, optimizer, *next(batches))


if __name__ == "__main__":
    main()
"""
AUTOTUNED = """from plain import again_and_again, loss_of, prepare
from pytorch_autotune import autotune


def workload():
    model, _, loader = prepare()
    result = autotune(
        model, next(iter(loader)), loss_fn=loss_of, optimizer="{kind}", lr={lr}, device="cpu",
        budget="fast",
    )
    batches = again_and_again(loader)
    trained = (result.model, result.optimizer)  # seen by `compare`, which looks at what a step uses
    return lambda: trained and result.step(*next(batches)).detach()


if __name__ == "__main__":
    workload()
"""
CONFIGURED = """import plain
import slowai_config


def workload():
    slowai_config.apply()
    return plain.workload()
"""
TRAINER = """import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Text(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 512, ({steps} * 8, 64), generator=draw)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {{"input_ids": self.tokens[index], "labels": self.tokens[index]}}


def main():
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=4)
    shape.resid_pdrop = shape.embd_pdrop = shape.attn_pdrop = 0.0
    arguments = TrainingArguments(
        output_dir="trained", max_steps={steps}, per_device_train_batch_size=8, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, {option}
    )
    Trainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=Text()).train()


if __name__ == "__main__":
    main()
"""


class Program(Struct, frozen=True, kw_only=True):
    """A training program, as the parts of its source that differ between programs."""

    name: str
    about: str
    model: str
    data: str
    batch: int
    kind: str
    """The optimizer, as pytorch-autotune names it."""
    lr: float
    imports: str = ""

    @property
    def source(self) -> str:
        options = f"lr={self.lr}" + (", momentum=0.9" if self.kind == "sgd" else "")
        name = "SGD" if self.kind == "sgd" else "AdamW"
        return SOURCE.format(
            imports=self.imports,
            data=self.data,
            batch=self.batch,
            model=self.model,
            optimizer=f"torch.optim.{name}(model.parameters(), {options})",
        )


PROGRAMS = (
    Program(
        name="gpt2", about="GPT-2 of two layers, 64 tokens, written-out attention, AdamW",
        imports="from gpt2 import GPT2\nfrom train_gpt2 import SMALL\n", model="GPT2(SMALL)",
        data=f"TensorDataset(*torch.randint(0, 512, (2, {STEPS} * 8, 64)))", batch=8,
        kind="adamw", lr=1e-3,
    ),
    Program(
        name="resnet18", about="ResNet-18, 32 pixels, batch 32, SGD with momentum",
        imports="from resnet import resnet18\n", model="resnet18(10)", batch=32,
        data=f"TensorDataset(torch.randn({STEPS} * 32, 3, 32, 32), "
        f"torch.randint(0, 10, ({STEPS} * 32,)))",
        kind="sgd", lr=0.01,
    ),
    Program(
        name="deep_mlp", about="16 Linear layers of width 128, batch 128, AdamW",
        model="nn.Sequential(*[part for _ in range(16) for part in (nn.Linear(128, 128), "
        "nn.ReLU())], nn.Linear(128, 16))",
        data=f"TensorDataset(torch.randn({STEPS} * 128, 128), "
        f"torch.randint(0, 16, ({STEPS} * 128,)))",
        batch=128, kind="adamw", lr=1e-4,
    ),
    Program(
        name="slow_loader", about="a small MLP whose samples take 2 ms each to arrive, AdamW",
        imports="from train_slow_loader import SlowStore\n", batch=8,
        model="nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))",
        data=f"SlowStore({STEPS} * 8, 2e-3)", kind="adamw", lr=1e-3,
    ),
)  # fmt: skip
TRAINER_CHECK = "8m"
"""Time limit of a comparison of whole scripts, whose every run imports transformers first."""
TRAINER_OPTIONS = ("torch_compile=True", "bf16=True", "auto_find_batch_size=True")


NOT_COMPARED = {
    "profine 0.5.1": "reads, edits and benchmarks a script with a language model, on rented GPUs: "
    "it asks for an API key (`export OPENAI_API_KEY=sk-...`) and a GPU's name",
    "codeflash 0.20.6": "optimises single functions with a language model and needs an API key",
    "speedster 0.4.0": "optimises a model for inference, not a training script; it brings numpy "
    "1.23.5, which Ridgeline does not run with",
    "agnitra 0.2.4": "optimises the inference of decoder-only language models",
    "autodistiller 1.2.0": "chooses how to deploy a language model for inference",
    "composer 0.32.1": "does not install beside torch 2.13.0: pip ends with ResolutionImpossible",
}
"""Other packages that promise speed, and why they have no row."""


class Made(Struct, frozen=True, kw_only=True):
    """What a tool answered for a program."""

    choice: str
    claim: float | None = None
    """How many times as fast the tool says that its program is; None if it says no number."""
    candidate: str = ""
    """The program that it made, a file beside the plain one; empty if it made none."""
    lowers_precision: bool = False
    refused: str = ""
    """The tool's own last words, where it gave no answer."""


class Row(Struct, frozen=True, kw_only=True):
    tool: str
    program: str
    made: Made
    spent_s: float = 0.0
    verdict: str = ""
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    why: str = ""

    @property
    def agrees(self) -> str:
        """Whether the claim holds, in a word."""
        made, gains = self.made, self.verdict == "FASTER"
        if made.refused:
            return "no answer"
        if self.verdict in ("UNDECIDED", "FAILED"):
            return self.verdict.lower()
        if made.claim is None or made.claim < MIN_CLAIM:
            return "no claim"
        if not gains or self.ratio is None:
            return "false"
        reach = max(self.ratio, self.ci[1] if self.ci is not None else self.ratio)
        return "confirmed" if reach >= CONFIRMED_SHARE * made.claim else "smaller"


class Part(Struct, frozen=True, kw_only=True):
    device: str
    about: str
    versions: dict[str, str]
    rows: tuple[Row, ...] = ()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of every tool: its caches are in `folder`, so that no earlier answer
    is given again, and the models of examples/ can be imported."""
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(EXAMPLES))),
        "PYTORCH_AUTOTUNE_CACHE": str(folder / "autotune.json"),
    }  # fmt: skip


def ended(command: Sequence[str], folder: Path) -> tuple[str, str]:
    """Run a command with this Python. Return its output, and its last words if it failed."""
    running = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder, env=environment(folder), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = running.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # compilers run in processes of their own
        running.communicate()
        return "", f"stopped after {LIMIT_S} s"
    lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
    return output, lines[-1][:200] if running.returncode and lines else ""


def by_ridgeline(program: Program, folder: Path, budget: str) -> Made:
    words = ["-m", "ridgeline", "optimize", "--json", "-q", "--budget", budget, "plain.py"]
    output, failed = ended(words, folder)
    if failed:
        return Made(choice="", refused=failed)
    found = json.loads(output)
    total, kept = found["total"]["like_for_like"], [r for r in found["ladder"] if r["kept"]]
    copy = folder / "optimized_plain.py"
    if total is None or not copy.exists():
        return Made(choice=f"nothing kept: {found['summary']}")
    return Made(
        choice=" + ".join(row["title"] for row in kept), claim=total["ratio"], candidate=copy.name,
        lowers_precision=any("bfloat16" in row["title"] for row in kept),
    )  # fmt: skip


def by_autotune(program: Program, folder: Path, budget: str) -> Made:
    """Its README's use: the search at the program's start, then `result.step`. The answer is kept
    in its own cache, so that the program that is compared starts with it at once."""
    script = folder / "autotuned.py"
    script.write_text(AUTOTUNED.format(kind=program.kind, lr=program.lr))
    output, failed = ended([script.name], folder)
    if failed:
        return Made(choice="", refused=failed)
    picked = re.search(r"autotune picked \[(.*?)\].*?([\d.]+)x vs", output)
    if picked is None:
        return Made(choice="", refused=output.strip().splitlines()[-1][:200])
    choice = picked[1]
    return Made(
        choice=choice, claim=float(picked[2]), candidate=script.name,
        lowers_precision="amp" in choice,
    )  # fmt: skip


def by_slowai(program: Program, folder: Path, budget: str) -> Made:
    """Its README's use: `slowai fix … --export`, and `slowai_config.apply()` in the program."""
    words = ["-m", "slowai", "fix", "plain.py", "--json", "--export", "slowai_config.py"]
    output, failed = ended(words, folder)
    if not output.strip():
        return Made(choice="", refused=failed or "no output")
    begin = output.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(output[begin:])
    except ValueError:
        return Made(choice="", refused=(failed or output.strip().splitlines()[-1])[:200])
    best = max(found["remedies"], key=lambda one: one["speedup"], default=None)
    if best is None or best["speedup"] <= 1:
        return Made(choice="nothing is faster")
    if not (folder / "slowai_config.py").exists():
        return Made(choice=best["name"], claim=best["speedup"], refused="nothing was exported")
    (folder / "configured.py").write_text(CONFIGURED)
    return Made(
        choice=best["name"], claim=best["speedup"], candidate="configured.py",
        lowers_precision=any(word in best["name"] for word in ("bf16", "fp16", "int8")),
    )  # fmt: skip


TOOLS: dict[str, Callable[[Program, Path, str], Made]] = {
    "ridgeline optimize": by_ridgeline,
    "pytorch-autotune": by_autotune,
    "slowai fix": by_slowai,
}


def compared(row: Row, folder: Path, name: str, budget: str) -> Row:
    """Return the row with what `ridgeline compare` finds of the tool's program. `name` is that of
    the function to compare in both, or "" for whole scripts."""
    words = ["-m", "ridgeline", "compare", "--json", "-q", "--budget", budget]
    if row.made.lowers_precision:
        words += ["--tolerance", f"{LOWER_PRECISION_TOLERANCE:g}"]
    targets = [f"{file}{f':{name}' if name else ''}" for file in ("plain.py", row.made.candidate)]
    output, failed = ended([*words, *targets], folder)
    try:
        found: Any = json.loads(output)
    except ValueError:
        return msgspec.structs.replace(row, verdict="FAILED", why=failed)
    if "verdict" not in found:
        why = json.dumps(found.get("broken", found))[:200]
        return msgspec.structs.replace(row, verdict="FAILED", why=why)
    ratio, low, high = (found[name] for name in ("ratio", "ci_low", "ci_high"))
    return msgspec.structs.replace(
        row, verdict=found["verdict"], ratio=ratio, why=found["why"],
        ci=None if low is None or high is None else (low, high),
    )  # fmt: skip


def rows_of(asked: argparse.Namespace) -> Iterator[Row]:
    for program in PROGRAMS:
        if asked.only and program.name not in asked.only:
            continue
        for tool, make in TOOLS.items():
            if not asked.tools or any(tool.startswith(name) for name in asked.tools):
                with tempfile.TemporaryDirectory(prefix="rivals-") as home:
                    folder = Path(home)
                    (folder / "plain.py").write_text(program.source)
                    begun = os.times().elapsed
                    made = make(program, folder, asked.budget)
                    spent_s = os.times().elapsed - begun
                    row = Row(tool=tool, program=program.name, made=made, spent_s=spent_s)
                    claims = made.claim is not None and made.claim >= MIN_CLAIM
                    ready = made.candidate and not made.refused and claims
                    yield compared(row, folder, "workload", asked.check) if ready else row
    if not asked.tools or "Trainer" in asked.tools:
        yield from trainer_rows(asked)


def trainer_rows(asked: argparse.Namespace) -> Iterator[Row]:
    """The options that Hugging Face's Trainer has, on a GPT-2 of two layers."""
    if asked.only and "trainer_gpt2" not in asked.only:
        return
    for option in TRAINER_OPTIONS:
        with tempfile.TemporaryDirectory(prefix="rivals-") as home:
            folder = Path(home)
            (folder / "plain.py").write_text(TRAINER.format(steps=STEPS, option=""))
            (folder / "with_option.py").write_text(TRAINER.format(steps=STEPS, option=option))
            _, failed = ended(["with_option.py"], folder)
            made = Made(
                choice=option, candidate="with_option.py", refused=failed,
                lowers_precision="bf16" in option,
            )  # fmt: skip
            row = Row(tool="Trainer", program="trainer_gpt2", made=made)
            yield row if failed else compared(row, folder, "", TRAINER_CHECK)


def cells(row: Row) -> str:
    made = row.made
    claim = "—" if made.claim is None else f"{made.claim:.2f} ×"
    if made.refused:
        return (
            f"| {row.program} | {row.tool} | {made.choice or '—'} | {claim} | — | "
            f"{made.refused} | no answer |"
        )
    found = "—" if row.ratio is None else f"{row.ratio:.2f} ×"
    if row.ci is not None:
        wide = row.ci[1] > MAX_SHOWN_END
        found += " [no interval]" if wide else f" [{row.ci[0]:.2f}, {row.ci[1]:.2f}]"
    verdict = row.verdict or "—"
    why = f"{verdict}: {row.why}" if row.why and row.verdict not in ("FASTER", "") else verdict
    spent = f"{row.spent_s:.0f} s" if row.spent_s else "—"
    return (
        f"| {row.program} | {row.tool} | {made.choice} ({spent}) | {claim} | {found} | "
        f"{why} | {row.agrees} |"
    )


def page(part: Part, remark: str = "") -> str:
    said = "\n\n".join(__doc__.split("\n\n")[2:3]).replace("\n", " ")
    shown = {row.program for row in part.rows}
    versions = ", ".join(f"{name} {version}" for name, version in part.versions.items())
    head = "| program | tool | what it chose (its search) | claimed | measured | verdict | claim |"
    parts = [
        *("# Other tools that promise faster training", "", said, ""),
        *(f"{part.device}. {part.about}. Tools: {versions}.", ""),
        *(f"- `{one.name}`: {one.about}." for one in PROGRAMS if one.name in shown),
        "- `trainer_gpt2`: a GPT-2 of two layers from transformers, trained by its Trainer.",
        *("", head, "| --- | --- | --- | ---: | ---: | --- | --- |", *map(cells, part.rows), ""),
        *(counted(part), "", *([remark, ""] if remark else []), "Not compared:", ""),
        *(f"- {name} {why}." for name, why in NOT_COMPARED.items()),
        "",
    ]
    return "\n".join(parts)


def counted(part: Part) -> str:
    """Return a line a tool: how many of its claims hold."""
    made = []
    for tool in TOOLS:
        mine = [row.agrees for row in part.rows if row.tool == tool]
        told = ", ".join(f"{mine.count(word)} {word}" for word in dict.fromkeys(mine))
        if mine:
            made.append(f"- {tool}: {told}.")
    return "\n".join(made)


def joined(parts: Sequence[Part]) -> Part:
    """Return the rows of several runs, program by program. A later run of a program and a tool
    replaces an earlier one."""
    latest = {
        (row.program, row.tool, row.made.choice if row.tool == "Trainer" else ""): row
        for part in parts
        for row in part.rows
    }
    names = [*(program.name for program in PROGRAMS), "trainer_gpt2"]
    order = {name: number for number, name in enumerate(names)}
    tools = {name: number for number, name in enumerate((*TOOLS, "Trainer"))}
    rows = sorted(latest.values(), key=lambda row: (order[row.program], tools[row.tool]))
    return msgspec.structs.replace(parts[0], rows=tuple(rows))


def measured(asked: argparse.Namespace) -> Part:
    about = f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}; made "
    about += f"by `python benchmarks/rivals.py --budget {asked.budget} --check {asked.check}`, with"
    load = os.getloadavg()[0]
    about += f" other work on the machine (load {load:.1f} on {os.cpu_count()} processors)"
    versions = {"ridgeline": ridgeline.__version__}
    for name in PACKAGES.values():
        try:
            versions.setdefault(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    part = Part(device=processor.name(), about=about, versions=versions)
    for row in rows_of(asked):
        print(cells(row), file=sys.stderr, flush=True)
        part = msgspec.structs.replace(part, rows=(*part.rows, row))
        if asked.save:  # after each, so that what was measured is never lost
            asked.save.write_bytes(msgspec.json.encode(part))
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    parser.add_argument("--tools", nargs="*", default=[], help="how names of tools begin")
    parser.add_argument("--budget", default="5m", help="for `ridgeline optimize`")
    parser.add_argument("--check", default="90s", help="for each comparison")
    parser.add_argument("--save", type=Path, help="the results as JSON")
    parser.add_argument("--page", type=Path, nargs="*", help="make the page of saved results")
    parser.add_argument("--remark", default="", help="what the figures say, for the page")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    if asked.page:
        parts = [msgspec.json.decode(path.read_bytes(), type=Part) for path in asked.page]
        part = joined(parts)
    else:
        part = measured(asked)
    text = page(part, asked.remark)
    print(text)
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
