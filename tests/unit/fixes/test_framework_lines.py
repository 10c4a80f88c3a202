"""Where a framework's own settings stand in the source, found by text alone; the programs that run
are in tests/integration/test_optimize_frameworks.py."""

from pathlib import Path

import pytest

from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.framework import of_framework
from ridgeline.records.edit import Edit, Insert, Keyword, Within
from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.reason_codes import ByHand, Done
from ridgeline.source.editing.patching import patched
from ridgeline.source.program import ProgramTexts
from tests.unit.fixes.seams_here import applied, option

Fixed = tuple[str, *tuple[Reason, ...]]
UNDER_AUTOCAST = because(Done.AUTOCAST, model="Net", device="cuda", dtype="bfloat16")
CAST: Fixed = ("autocast", UNDER_AUTOCAST)
WORKERS: Fixed = ("loader-workers", option("DataLoader", "num_workers", 4))
HF = "from transformers import Trainer, TrainingArguments\n"
TASK = """\
import lightning as L
class Task(L.LightningModule):
    def training_step(self, batch, batch_idx):
        return self(batch).sum()
"""


def found(home: Path, text: str, line: int, what: Fixed = CAST) -> tuple[Edit, ...] | None:
    script = home / "train.py"
    script.write_text(text)
    fixed = applied(what[0], *what[1:], places=[f"{script}:{line}"])
    return of_framework(fixed, ProgramTexts(script))


def by_hand(home: Path, text: str, line: int, what: Fixed = CAST) -> Reason:
    with pytest.raises(EditByHand) as raised:
        found(home, text, line, what)
    return raised.value.reason


def rewritten(home: Path, text: str, line: int, *fixes: Fixed) -> str:
    """Return the text with the edits of all fixes."""
    edits = [edit for fix in fixes or (CAST,) for edit in found(home, text, line, fix) or ()]
    done = patched("train.py", text.encode(), edits)
    assert not done.refused
    return done.text


def compiled(model: str) -> Fixed:
    return "compile", because(Done.COMPILED, model=model, arguments="", mode="")


def only(edits: tuple[Edit, ...] | None, kind: type[Edit]) -> Edit:
    assert edits is not None
    (one,) = (edit for edit in edits if isinstance(edit, kind))
    return one


def test_a_loop_of_the_program_s_own_is_not_a_framework_s(tmp_path: Path) -> None:
    own = (
        "from transformers import AutoTokenizer\n"
        "class Trainer:\n    def train(self):\n        self.model(x).sum().backward()\n"
        "Trainer().train()\n"
    )
    assert found(tmp_path, own, 4) is None
    assert found(tmp_path, "import torch\nmodel.train()\n", 2) is None
    assert found(tmp_path, HF + "model.train()\n", 2) is None


def test_each_trainer_s_own_arguments_are_told_apart(tmp_path: Path) -> None:
    text = HF + (
        "first, second = TrainingArguments('a'), None\n"
        "one = TrainingArguments('a')\ntwo = TrainingArguments('b')\n"
        "Trainer(m, one).train()\nt = Trainer(model=m, args=two)\nt.train()\n"
    )
    for line, where in ((5, 3), (7, 4)):
        edit = only(found(tmp_path, text, line, WORKERS), Keyword)
        assert isinstance(edit, Keyword)
        assert (edit.line, edit.name, edit.value) == (where, "dataloader_num_workers", "4")


def test_arguments_of_a_class_of_the_program_s_own_are_arguments(tmp_path: Path) -> None:
    text = (
        "import transformers\nclass Mine(transformers.TrainingArguments): pass\n"
        "class Own(transformers.Seq2SeqTrainer): pass\n"
        "t = Own(m, Mine(output_dir='out'))\nt.train()\n"
    )
    edit = only(found(tmp_path, text, 5), Keyword)
    assert isinstance(edit, Keyword)
    assert (edit.call, edit.line, edit.name) == ("Mine", 4, "bf16")


def test_a_value_that_is_read_from_elsewhere_is_written_in_its_place(tmp_path: Path) -> None:
    text = HF + "args = TrainingArguments('a', bf16=config.bf16)\nt = Trainer(m, args)\nt.train()\n"
    assert "args = TrainingArguments('a', bf16=True)  #" in rewritten(tmp_path, text, 4)


def test_a_value_that_is_worked_out_is_set_before_the_trainer_gets_it(tmp_path: Path) -> None:
    text = HF + "args = TrainingArguments('a', bf16=choose())\nt = Trainer(m, args)\nt.train()\n"
    edit = only(found(tmp_path, text, 4), Insert)
    assert isinstance(edit, Insert)
    assert (edit.line, edit.text) == (3, "args = dataclasses.replace(args, bf16=True)")


def test_arguments_from_a_mapping_get_more_of_them_in_the_call(tmp_path: Path) -> None:
    text = (
        HF + "def main():\n    args = TrainingArguments(**config)\n    Trainer(m, args).train()\n"
    )
    new = rewritten(tmp_path, text, 4, CAST, WORKERS)
    assert '(**{**config, "bf16": True, "dataloader_num_workers": 4})' in new


def test_a_name_of_the_module_is_made_anew_there_and_an_attribute_before_the_trainer(
    tmp_path: Path,
) -> None:
    text = HF + "args = parsed()\ndef main():\n    t = Trainer(m, args)\n    t.train()\n"
    edit = only(found(tmp_path, text, 5), Insert)
    assert isinstance(edit, Insert)
    assert (edit.line, edit.where) == (2, "after")
    text = HF + "def main(cfg):\n    t = Trainer(m, args=cfg.args)\n    t.train()\n"
    edit = only(found(tmp_path, text, 4), Insert)
    assert isinstance(edit, Insert)
    assert (edit.line, edit.where) == (3, "before")
    assert edit.text == "cfg.args = dataclasses.replace(cfg.args, bf16=True)"


def test_a_program_that_parses_its_arguments_out_of_reach_is_given_a_flag(tmp_path: Path) -> None:
    text = (
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "def parsed(): return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "t = Trainer(m, parsed()[0])\nt.train()\n"
    )
    assert by_hand(tmp_path, text, 4) == because(ByHand.GIVE_FLAG, flag="--bf16 True")
    fused: Fixed = ("fused-optimizer", option("AdamW", "fused", True))
    flag = "--optim adamw_torch_fused"
    assert by_hand(tmp_path, text, 4, fused) == because(ByHand.GIVE_FLAG, flag=flag)


def test_a_name_from_outside_the_function_is_not_hidden(tmp_path: Path) -> None:
    text = (
        HF + "for args in each():\n    pass\ndef main():\n    t = Trainer(m, args)\n    t.train()\n"
    )
    assert by_hand(tmp_path, text, 6) == because(
        ByHand.GIVE_TRAINER_ARGS, trainer="Trainer", argument="bf16=True", place="train.py, line 5"
    )


def test_an_optimizer_of_the_program_s_own_is_changed_where_it_is_made(tmp_path: Path) -> None:
    text = HF + "Trainer(m, TrainingArguments('a'), optimizers=(AdamW(p), None)).train()\n"
    assert found(tmp_path, text, 2, ("fused-optimizer", option("AdamW", "fused", True))) is None
    assert only(found(tmp_path, text, 2, WORKERS), Keyword)


@pytest.mark.parametrize("kinds", [("SGD",), ("AdamW", "SGD")])
def test_an_optimizer_is_never_made_another_one(kinds: tuple[str, ...], tmp_path: Path) -> None:
    text = HF + "t = Trainer(m, TrainingArguments('a', optim='sgd'))\nt.train()\n"
    fused = [option(kind, "fused", True) for kind in kinds]
    reason = by_hand(tmp_path, text, 3, ("fused-optimizer", *fused))
    assert reason.code == ByHand.OPTIMIZER_CLASS


def test_the_mode_that_was_tried_is_the_one_that_is_written(tmp_path: Path) -> None:
    text = HF + "t = Trainer(m, TrainingArguments('a'))\nt.train()\n"
    facts: dict[str, Fact] = {"model": "Net", "arguments": "…", "mode": "max-autotune"}
    what: Fixed = ("compile-max-autotune", Reason(Done.COMPILED, facts))
    edit = only(found(tmp_path, text, 3, what), Keyword)
    assert isinstance(edit, Keyword)
    assert (edit.name, edit.value) == ("torch_compile_mode", '"max-autotune"')


def test_a_batch_size_is_written_only_where_it_is_the_one_that_grew(tmp_path: Path) -> None:
    grown = because(Done.LARGER_BATCH, batch_size=32, factor=4, before=8)
    what: Fixed = ("larger-batch", grown)
    text = HF + "t = Trainer(m, TrainingArguments('a'{}))\nt.train()\n"
    edit = only(found(tmp_path, text.format(""), 3, what), Keyword)
    assert isinstance(edit, Keyword)
    assert edit.value == "32"
    of_two = text.format(", per_device_train_batch_size=4")  # two GPUs in one process
    argument = "per_device_train_batch_size"
    reason = because(ByHand.ARGUMENT_BATCH_SIZE, argument=argument, factor=4)
    assert by_hand(tmp_path, of_two, 3, what) == reason


def test_blocks_that_were_chosen_are_no_setting(tmp_path: Path) -> None:
    text = HF + "t = Trainer(m, TrainingArguments('a'))\nt.train()\n"
    facts: dict[str, Fact] = {"model": "Bert", "block": "B", "blocks": 4, "all_blocks": 4}
    blocks = Reason(Done.CHECKPOINT_BLOCKS, facts)
    reason = by_hand(tmp_path, text, 3, ("checkpointing", blocks))
    assert reason.code == ByHand.CHECKPOINT_CALLS
    method = because(Done.CHECKPOINT_METHOD, model="Bert", path="")
    own: Fixed = ("checkpointing", method)
    assert isinstance(only(found(tmp_path, text, 3, own), Keyword), Keyword)


def test_lightning_s_trainer_is_told_wherever_the_model_is_called(tmp_path: Path) -> None:
    text = TASK + "t = L.Trainer(max_epochs=1)\nt.fit(Task())\n"
    edit = only(found(tmp_path, text, 4), Keyword)
    assert isinstance(edit, Keyword)
    assert (edit.line, edit.name, edit.value) == (5, "precision", '"bf16-mixed"')


def test_lightning_that_clips_has_its_step_in_autocast(tmp_path: Path) -> None:
    text = TASK + "t = L.Trainer(gradient_clip_val=1.0)\nt.fit(Task())\n"
    edit = only(found(tmp_path, text, 4), Within)
    assert isinstance(edit, Within)
    assert (edit.first, edit.last) == (4, 4)
    cast = because(Done.AUTOCAST, model="Task", device="cuda", dtype="float16")
    reason = by_hand(tmp_path, text, 4, ("autocast-fp16", cast))
    assert reason.code == ByHand.GIVE_LIGHTNING_TRAINER
    assert reason.facts["clips"] is True


@pytest.mark.parametrize(
    "step",
    [
        "def training_step(self, batch, batch_idx): return self(batch).sum()",
        "def training_step(\n        self, batch, batch_idx\n    ): return self(batch).sum()",
    ],
)
def test_a_step_that_stands_on_its_header_s_line_is_left(step: str, tmp_path: Path) -> None:
    task = f"import lightning as L\nclass Task(L.LightningModule):\n    {step}\n"
    clips = "t = L.Trainer(gradient_clip_val=1.0)\nt.fit(Task())\n"
    line = task.count("\n")
    assert by_hand(tmp_path, task + clips, line).facts["clips"] is True


def test_what_lightning_cannot_be_told_is_said_with_its_place(tmp_path: Path) -> None:
    text = TASK + "t = L.Trainer(precision=choose())\nt.fit(Task())\n"
    assert by_hand(tmp_path, text, 4) == because(
        ByHand.GIVE_LIGHTNING_TRAINER, argument='precision="bf16-mixed"', place="train.py, line 5",
        clips=False,
    )  # fmt: skip
    line = TASK + "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Task)\n"
    flag = "--trainer.precision=bf16-mixed"
    assert by_hand(tmp_path, line, 4) == because(ByHand.GIVE_FLAG, flag=flag)


def test_a_precision_that_is_a_variable_is_written_as_lightning_names_it(tmp_path: Path) -> None:
    text = (
        TASK
        + "def main(config):\n    t = L.Trainer(precision=config.precision)\n    t.fit(Task())\n"
    )
    assert 'L.Trainer(precision="bf16-mixed")' in rewritten(tmp_path, text, 4)
    text = TASK + "options = dict(precision=32)\nt = L.Trainer(**options)\nt.fit(Task())\n"
    assert 'L.Trainer(**{**options, "precision": "bf16-mixed"})' in rewritten(tmp_path, text, 4)


def test_a_lightning_model_that_calls_itself_is_compiled_before_it_is_fitted(
    tmp_path: Path,
) -> None:
    compiles = compiled("Task")
    text = TASK + "t = L.Trainer()\nmodel = Task()\nt.fit(model)\n"
    edit = only(found(tmp_path, text, 4, compiles), Insert)
    assert isinstance(edit, Insert)
    assert (edit.line, edit.text) == (7, "model.compile()")
    inline = TASK + "t = L.Trainer()\nt.fit(\n    Task(),\n    datamodule=Data(),\n)\n"
    new = rewritten(tmp_path, inline, 4, compiles)
    assert "model = Task()\nmodel.compile()\n" in new
    assert "t.fit(\n    model,  #" in new
    for text in ("t = L.Trainer()\nt.fit({})\n", "model = 1\nt = L.Trainer()\nt.fit({})\n"):
        taken = text.startswith("model")
        whole = TASK + text.format("Task()" if taken else "datamodule=Data(), model=Task()")
        reason = by_hand(tmp_path, whole, 4, compiles)
        place = f"train.py, line {7 if taken else 6}"
        assert reason == because(
            ByHand.NAME_MODEL, call="fit", place=place, statement="model.compile()"
        )


SETS_UP = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator({})
model, optimizer, loader = accelerator.prepare(Net(), optimizer, loader)
for x in loader:
    loss = model(x).sum()
    {}
"""


def set_up(by: str, fix: str = "autocast") -> Fixed:
    facts: dict[str, Fact] = {"model": "Net", "device": "cuda", "dtype": "…", "set_up_by": by}
    return fix, Reason(Done.AUTOCAST, facts)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("", 'mixed_precision="bf16"'),
        ("cpu=args.cpu, mixed_precision=args.half", 'cpu=args.cpu, mixed_precision="bf16"'),
        ("**options", '**{**options, "mixed_precision": "bf16"}'),
        ("True, False, args.half", 'True, False, "bf16"'),
    ],
)
def test_an_accelerator_is_told_its_precision(given: str, written: str, tmp_path: Path) -> None:
    text = SETS_UP.format(given, "accelerator.backward(loss)")
    new = rewritten(tmp_path, text, 6, set_up("Accelerator"))
    assert f"Accelerator({written})" in new
    assert "autocast" not in new


def test_an_accelerator_scales_only_what_it_runs_itself(tmp_path: Path) -> None:
    half = set_up("Accelerator", "autocast-fp16")
    own = SETS_UP.format("", "accelerator.backward(loss)")
    assert 'mixed_precision="fp16"' in rewritten(tmp_path, own, 6, half)
    clips = own + "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    for text in (SETS_UP.format("", "loss.backward()"), clips):
        assert found(tmp_path, text, 6, half) is None


def test_two_accelerators_are_told_nothing(tmp_path: Path) -> None:
    text = SETS_UP.format("", "loss.backward()") + "other = Accelerator()\n"
    assert found(tmp_path, text, 6, set_up("Accelerator")) is None


def test_fabric_is_told_its_precision(tmp_path: Path) -> None:
    text = "import lightning as L\nfabric = L.Fabric(devices=1)\n"
    text += "model = fabric.setup(Net())\nmodel(x)\n"
    new = rewritten(tmp_path, text, 4, set_up("Fabric"))
    assert 'L.Fabric(devices=1, precision="bf16-mixed")' in new


def test_tf32_is_an_argument_of_hugging_face_s_and_torch_s_own_elsewhere(tmp_path: Path) -> None:
    on: Fixed = ("tf32", because(Done.SETTING, statement="…"))
    text = HF + "args = TrainingArguments('a')\nt = Trainer(m, args)\nt.train()\n"
    script = tmp_path / "train.py"
    script.write_text(text)
    edit = only(of_framework(applied(*on), ProgramTexts(script)), Keyword)
    assert isinstance(edit, Keyword)
    assert (edit.line, edit.name, edit.value) == (2, "tf32", "True")
    script.write_text(TASK + "L.Trainer().fit(Task())\n")
    assert of_framework(applied(*on), ProgramTexts(script)) is None


def test_tf32_that_was_off_stays_so_beside_torch_compile(tmp_path: Path) -> None:
    """Hugging Face's Trainer turns TF32 on where it compiles."""
    facts: dict[str, Fact] = {"model": "Net", "arguments": "", "mode": "", "tf32": False}
    what: Fixed = ("compile", Reason(Done.COMPILED, facts))
    direct = HF + "t = Trainer(m, TrainingArguments('a'{}))\nt.train()\n"
    off = "TrainingArguments('a', torch_compile=True, tf32=False)"
    assert off in rewritten(tmp_path, direct.format(""), 3, what)
    kept = "TrainingArguments('a', tf32=True, torch_compile=True)"
    assert kept in rewritten(tmp_path, direct.format(", tf32=True"), 3, what)
    parsed = HF + "args = parsed()\nt = Trainer(m, args)\nt.train()\n"
    anew = "dataclasses.replace(args, torch_compile=True, tf32=bool(args.tf32))"
    assert anew in rewritten(tmp_path, parsed, 4, what)


def test_blocks_of_a_model_that_a_trainer_calls_are_compiled_before_it_gets_it(
    tmp_path: Path,
) -> None:
    blocks = because(Done.COMPILED_BLOCKS, model="Bert", block="BertLayer", blocks=4)
    what: Fixed = ("compile-regional", blocks)
    text = HF + "bert = load()\nt = Trainer(bert, TrainingArguments('a'))\nt.train()\n"
    edit = only(found(tmp_path, text, 4, what), Insert)
    assert isinstance(edit, Insert)
    assert (edit.line, edit.where) == (3, "before")
    assert edit.text.startswith("for block in bert.modules():\n")


def test_a_model_that_is_not_the_one_handed_over_is_left(tmp_path: Path) -> None:
    text = TASK.replace("self(batch)", "self.parts[0](batch)")
    text += "model = Task()\nt = L.Trainer()\nt.fit(model)\n"
    reason = by_hand(tmp_path, text, 4, compiled("Part"))
    assert reason.code == ByHand.AFTER_MODEL_MADE
    assert reason.facts == {"statement": "model.compile()"}
