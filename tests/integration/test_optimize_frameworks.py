"""Programs whose loop is Hugging Face's or Lightning's: what a trial did from outside, written into
their source where the framework wants it, and the copy run by itself.

Each program runs three times: as it is, in a trial, and as the copy with nothing put on. The copy
must compute what the trial did, and be seen to use what was written.
"""

import os
from pathlib import Path

import pytest
from msgspec import Struct

from ridgeline.equality.trials.parity import compare
from ridgeline.fixes.fix import find_fix
from ridgeline.harness.trials.trial_process import run
from ridgeline.optimization.candidates import alters, precision
from ridgeline.optimization.patching import patches
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import ByHand
from ridgeline.records.run import Capture, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Asked, Plan, Trial
from ridgeline.source.editing import copies, write_copy

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

STEPS = 8
OPTIONS = {"loader-workers": {"workers": "2"}}
QUIET = 'use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True'

ARGUMENTS = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
texts = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (256, 6))]
sizes = dict(n_positions=8, n_embd=16, n_layer=2, n_head=2)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, **sizes))
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    optim="adamw_torch",
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=texts, eval_dataset=texts[:8])
trainer.evaluate()
trainer.train()
"""
PARSED = """\
import sys
from dataclasses import dataclass

import torch
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    width: int = 16


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x, labels=None):
        return {"logits": self.body(x)}


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        weights = torch.tensor([1.0, 2.0, 3.0])
        loss = nn.functional.cross_entropy(outputs["logits"], inputs["labels"], weight=weights)
        return (loss, outputs) if return_outputs else loss


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, training_args = parser.parse_json_file(sys.argv[1])
    else:
        model_args, training_args = parser.parse_args_into_dataclasses()
    torch.manual_seed(training_args.seed)
    rows = [{"x": torch.randn(8), "labels": torch.tensor(i % 3)} for i in range(400)]
    net = Net(model_args.width)
    trainer = Weighted(model=net, args=training_args, train_dataset=rows)
    trainer.train()


if __name__ == "__main__":
    main()
"""
TYPED = [
    "--output_dir=out", "--use_cpu=True", "--report_to=none", "--save_strategy=no",
    "--disable_tqdm=True", "--per_device_train_batch_size=4", "--optim=adamw_torch",
    "--dataloader_num_workers=0",
]  # fmt: skip
MAPPED = """\
import torch
import transformers
from settings import QUIET, arguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x, labels):
        logits = self.head(x)
        return torch.nn.functional.cross_entropy(logits, labels), logits


class Mine(transformers.Trainer):
    def get_train_dataloader(self):
        return super().get_train_dataloader()


torch.manual_seed(0)
rows = [{"x": torch.randn(8), "labels": i % 3} for i in range(400)]
Mine(Net(), arguments(**QUIET), train_dataset=rows).train()
"""
SETTINGS = f"""\
from transformers import TrainingArguments as Arguments

QUIET = dict({QUIET})


def arguments(**more):
    return Arguments("out", per_device_train_batch_size=4, optim="sgd", **more)
"""
TASK = """\
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Task(L.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

    def shared(self, batch):
        x, y = batch
        logits = self(x)
        return nn.functional.cross_entropy(logits, y)

    def training_step(self, batch, batch_idx):
        loss = self.shared(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("validation", self.shared(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Data(L.LightningDataModule):
    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(256, 8, generator=generator)
        self.rows = TensorDataset(x, torch.randint(4, (256,), generator=generator))

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=16)
"""
FITS = """\
import lightning as L
from task import Data, Task

L.seed_everything(0, verbose=False)
trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Task(width=32), datamodule=Data())
"""
CLIPS = """\
import lightning as L
from task import Data, Task


def main():
    L.seed_everything(0, verbose=False)
    options = dict(max_epochs=1, accelerator="cpu", logger=False, gradient_clip_val=0.5)
    for name in ("checkpointing", "progress_bar", "model_summary"):
        options[f"enable_{name}"] = False
    trainer = L.Trainer(**options)
    trainer.fit(Task(width=32), datamodule=Data())


if __name__ == "__main__":
    main()
"""


IMAGES = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(128, 3)

    def forward(self, x, labels=None):
        logits = self.head(self.features(x).flatten(1))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
rows = [{"x": torch.randn(3, 8, 8), "labels": i % 3} for i in range(160)]
"""
PREPARES = """\
import argparse

import torch
from accelerate import Accelerator
from images import Net, rows
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default="no")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, mixed_precision=args.mixed_precision)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(rows, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for epoch in range(2):
        for batch in loader:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""
SETS_UP = """\
import lightning as L
import torch
from images import Net, rows
from torch.utils.data import DataLoader

fabric = L.Fabric(accelerator="cpu", devices=1)
fabric.seed_everything(0, verbose=False)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(rows, batch_size=4, shuffle=True))
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
"""
INLINE = f"""\
from images import Net, rows
from transformers import Trainer, TrainingArguments

SETTINGS = dict(output_dir="out", per_device_train_batch_size=4, optim="adamw_torch")
QUIET = dict({QUIET})


def main():
    training_args = TrainingArguments(**SETTINGS, **QUIET)
    trainer = Trainer(model=Net(), args=training_args, train_dataset=rows)
    trainer.train()


main()
"""
TYPES_PRECISION = """\
import argparse

import lightning as L
from task import Data, Task

parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="32-true")
options = parser.parse_args()
L.seed_everything(0, verbose=False)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", precision=options.precision, **quiet)
trainer.fit(Task(width=32), datamodule=Data())
"""
PARALLEL = """\
import torch
from images import Net, rows
from torch import nn
from torch.utils.data import DataLoader


def train(loader, model, criterion, optimizer):
    model.train()
    for batch in loader:
        images, target = batch["x"], batch["labels"]
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    model = Net()
    model = torch.nn.DataParallel(model).to("cpu")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = DataLoader(rows, batch_size=4, shuffle=True)
    for epoch in range(2):
        train(loader, model, criterion, optimizer)


main()
"""


class Ran(Struct, frozen=True):
    plain: Trial
    tried: Trial
    copy: Trial
    seen: Capture
    """By the watcher of the copy's process."""
    texts: dict[str, str]
    """Of the copies, by the name of the file each was made of."""
    by_hand: tuple[Reason, ...]

    def losses(self, trial: Trial) -> list[float | None]:
        return [step.loss for step in trial.watched]


def _trial(home: Path, script: Path, arguments: list[str], *fixes: str) -> Trial:
    asked = tuple(Asked(fix=name, options=OPTIONS.get(name, {})) for name in fixes)
    plan = Plan(fixes=asked, steps=STEPS, watch=STEPS - 2)
    target = Target(kind="script", name=str(script), arguments=tuple(arguments))
    found = run(target, plan, home, timeout_s=150)
    assert found.trial is not None, (found.failure, found.last_lines)
    assert not found.trial.problems
    return found.trial


def _ran(home: Path, *fixes: str, arguments: list[str] | None = None, **files: str) -> Ran:
    """The first of `files` is the program."""
    for name, text in files.items():
        (home / f"{name}.py").write_text(text)
    script, given = home / f"{next(iter(files))}.py", arguments or []
    before = Path.cwd()
    os.chdir(home)
    try:
        plain = _trial(home / "plain", script, given)
        tried = _trial(home / "tried", script, given, *fixes)
        assert {one.fix for one in tried.applied} == set(fixes), tried.not_applied
        made = patches(script, tried.applied)
        laid = copies(script, made.edits())
        for one in laid.made:
            write_copy(one.patched, one.to, overwrite=True)
        copy = _trial(home / "tried", laid.made[0].to, given)
    finally:
        os.chdir(before)
    (seen,) = RunDirectory(home / "tried" / "trial").captures()
    texts = {Path(one.patched.file).name: one.to.read_text() for one in laid.made}
    return Ran(plain, tried, copy, seen, texts, made.by_hand)


def _computes_what_was_tried(ran: Ran) -> None:
    fixes = [find_fix(one.fix).fix for one in ran.tried.applied]
    known = compare([ran.tried], ran.copy, alters(fixes), precision(fixes))
    assert known.equality == "equal", known.why
    assert ran.losses(ran.copy) == pytest.approx(ran.losses(ran.tried), rel=1e-5)


def _in_sixteen_bits(ran: Ran) -> None:
    """Not the unchanged program: its losses differ in bfloat16's digits."""
    assert ran.losses(ran.copy) != pytest.approx(ran.losses(ran.plain), rel=1e-6)


def test_training_arguments_get_what_hugging_faces_trainer_calls_it(tmp_path: Path) -> None:
    fixes = ("loader-workers", "persistent-workers", "prefetch", "fused-optimizer", "autocast")
    ran = _ran(tmp_path, *fixes, train=ARGUMENTS)
    assert ran.by_hand == ()
    text = ran.texts["train.py"]
    for said in (
        "dataloader_num_workers=2", "dataloader_persistent_workers=True",
        "dataloader_prefetch_factor=4", 'optim="adamw_torch_fused"', "bf16=True",
    ):  # fmt: skip
        assert f"    {said}," in text
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert {one.workers for one in ran.seen.loaders} == {2}
    assert [one.options.get("fused") for one in ran.seen.optimizers] == ["True"]


@pytest.mark.compiles
def test_arguments_of_a_parser_are_made_anew_before_the_trainer_gets_them(tmp_path: Path) -> None:
    """What was typed (--optim, --dataloader_num_workers) does not undo it."""
    fixes = ("loader-workers", "fused-optimizer", "autocast", "compile")
    ran = _ran(tmp_path, *fixes, arguments=TYPED, train=PARSED)
    assert ran.by_hand == ()
    text = ran.texts["train.py"]
    for said in ("dataloader_num_workers=2", "torch_compile=True", "bf16=True"):
        assert f"    training_args = dataclasses.replace(training_args, {said})\n" in text
    assert text.index("bf16=True") < text.index("trainer = Weighted(")
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert ran.copy.compile_s > 0
    assert ran.plain.compile_s == 0
    assert {one.workers for one in ran.seen.loaders} == {2}
    assert [one.options.get("fused") for one in ran.seen.optimizers] == ["True"]


def test_arguments_of_another_file_get_it_in_their_mapping(tmp_path: Path) -> None:
    """And SGD, which TrainingArguments fuses under no name, is left, with what to write."""
    fixes = ("loader-workers", "fused-optimizer", "autocast")
    ran = _ran(tmp_path, *fixes, train=MAPPED, settings=SETTINGS)
    whole = '**{**more, "dataloader_num_workers": 2, "bf16": True})'
    assert whole in ran.texts["settings.py"]
    assert 'optim="sgd"' in ran.texts["settings.py"]
    fused = because(ByHand.OPTIMIZER_CLASS, optimizer="SGD", option="fused", value=True)
    assert ran.by_hand == (fused,)
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert {one.workers for one in ran.seen.loaders} == {2}


def test_lightning_is_told_its_precision_and_the_rest_at_the_programs_own_lines(
    tmp_path: Path,
) -> None:
    fixes = ("loader-workers", "fused-optimizer", "autocast")
    ran = _ran(tmp_path, *fixes, train=FITS, task=TASK)
    assert ran.by_hand == ()
    assert 'enable_model_summary=False, precision="bf16-mixed",\n' in ran.texts["train.py"]
    assert "shuffle=True, num_workers=2)" in ran.texts["task.py"]
    assert "AdamW(self.parameters(), lr=1e-2, fused=True)" in ran.texts["task.py"]
    assert "autocast" not in ran.texts["task.py"]
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert {one.workers for one in ran.seen.loaders} == {2}


def test_lightning_that_clips_gets_its_step_in_autocast_for_the_fused_update_s_sake(
    tmp_path: Path,
) -> None:
    """Its Trainer refuses `precision` beside clipping and a fused optimizer."""
    ran = _ran(tmp_path, "fused-optimizer", "autocast", train=CLIPS, task=TASK)
    assert ran.by_hand == ()
    assert '        with torch.autocast("cpu", dtype=torch.bfloat16):\n' in ran.texts["task.py"]
    assert "precision" not in ran.texts["train.py"]
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert [one.options.get("fused") for one in ran.seen.optimizers] == ["True"]


def test_an_accelerator_is_told_its_precision_and_the_rest_stands_at_the_programs_own_lines(
    tmp_path: Path,
) -> None:
    fixes = ("loader-workers", "fused-optimizer", "channels-last", "autocast")
    ran = _ran(tmp_path, *fixes, train=PREPARES, images=IMAGES)
    assert ran.by_hand == ()
    text = ran.texts["train.py"]
    assert 'Accelerator(cpu=True, mixed_precision="bf16")' in text
    assert "shuffle=True, num_workers=2)" in text
    assert "lr=1e-3, fused=True)" in text
    assert "torch.autocast" not in text
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)
    assert {one.workers for one in ran.seen.loaders} == {2}
    assert [one.options.get("fused") for one in ran.seen.optimizers] == ["True"]


def test_fabric_is_told_its_precision(tmp_path: Path) -> None:
    ran = _ran(tmp_path, "channels-last", "autocast", train=SETS_UP, images=IMAGES)
    assert ran.by_hand == ()
    assert 'devices=1, precision="bf16-mixed")' in ran.texts["train.py"]
    assert "torch.autocast" not in ran.texts["train.py"]
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)


def test_a_model_that_is_made_in_the_trainers_call_gets_a_name_before_it(tmp_path: Path) -> None:
    """And arguments from two mappings are made anew."""
    ran = _ran(tmp_path, "channels-last", "autocast", train=INLINE, images=IMAGES)
    assert ran.by_hand == ()
    text = ran.texts["train.py"]
    assert "    model = Net()\n    model.to(memory_format=torch.channels_last)\n" in text
    assert "dataclasses.replace(training_args, bf16=True)" in text
    assert "Trainer(model=model, args=training_args" in text
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)


def test_a_precision_that_is_typed_is_written_in_its_place(tmp_path: Path) -> None:
    ran = _ran(tmp_path, "autocast", train=TYPES_PRECISION, task=TASK)
    assert ran.by_hand == ()
    assert 'precision="bf16-mixed", **quiet)' in ran.texts["train.py"]
    _computes_what_was_tried(ran)
    _in_sixteen_bits(ran)


@pytest.mark.compiles
def test_a_model_in_data_parallel_is_compiled_and_laid_out_inside_it(tmp_path: Path) -> None:
    ran = _ran(tmp_path, "channels-last", "compile", train=PARALLEL, images=IMAGES)
    assert ran.by_hand == ()
    assert "    model.module.to(memory_format=torch.channels_last)\n" in ran.texts["train.py"]
    assert "    model.module.compile()\n" in ran.texts["train.py"]
    _computes_what_was_tried(ran)
    assert ran.copy.compile_s > 0
    assert ran.plain.compile_s == 0
