"""What was kept, written into a copy of the source."""

import shutil
import subprocess
from pathlib import Path

import pytest
from fake_bench import FakeBench

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.launcher import named_file
from ridgeline.optimization.patching import patches, write, write_diff
from ridgeline.records.facts import Place, Ratio, Reason, because
from ridgeline.records.optimized import Optimized, Total, Written
from ridgeline.records.parity import Parity
from ridgeline.records.reason_codes import ByHand, Done, Obstacle
from ridgeline.records.run import Target
from ridgeline.records.trial import Applied, Asked, FixTarget

SCRIPT = """\
import torch
from torch import nn

model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
TF32 = Applied(
    fix="tf32",
    targets=(
        FixTarget(
            done=because(Done.SETTING, statement='torch.set_float32_matmul_precision("high")')
        ),
    ),
)


def test_changes_of_a_call_and_of_the_whole_program_are_written(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = patches(
        script,
        [
            TF32,
            one("fused-optimizer", FUSED, f"{script}:5"),
        ],
    )
    (file,) = found.files
    assert not found.by_hand
    assert "lr=1e-3, fused=True)" in file.text
    assert file.text.index("import torch\n") < file.text.index("set_float32_matmul_precision")
    assert script.read_text() == SCRIPT


def test_an_edit_that_is_not_safe_is_described_to_be_made_by_hand(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("lr=1e-3", "*options"))
    found = patches(script, [one("fused-optimizer", FUSED, f"{script}:5")])
    assert not found.files
    (reason,) = found.by_hand
    cause = because(Obstacle.MAY_BE_IN_STARS, name="fused", stars="*")
    facts = {"file": str(script), "line": 5, "call": "AdamW", "name": "fused", "value": "True"}
    assert reason == because(ByHand.GIVE_KEYWORD, cause=cause, **facts)


def option(call: str, name: str, value: int | bool) -> Reason:
    return because(Done.OPTION, call=call, option=name, value=value)


def compiled(model: str) -> Reason:
    return because(Done.COMPILED, model=model, arguments="", mode="")


def under_autocast(model: str, device: str) -> Reason:
    return because(Done.AUTOCAST, model=model, device=device, dtype="bfloat16")


FUSED = option("AdamW", "fused", True)


def one(fix: str, done: Reason, *places: str) -> Applied:
    found = tuple(FixTarget(done=done, place=Place.parse(place)) for place in places)
    return Applied(fix=fix, targets=found)


def test_a_change_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Half of it would call the model twice. Its import of torch is refused."""
    script = tmp_path / "train.py"
    loop = "for x in data:\n    loss = f(model(x))\n    loss.backward()\n"
    script.write_text(f"torch = None\nmodel = Net()\n{loop}")
    found = patches(script, [one("autocast", under_autocast("Net", "cpu"), f"{script}:4")])
    assert not found.files
    assert found.missing == ("autocast",)
    put = {reason.code: reason for reason in found.by_hand}
    assert "with torch.autocast" in str(put[ByHand.PUT_BESIDE].facts["text"])
    assert put[ByHand.PUT_IMPORT].cause == because(Obstacle.BOUND_TO_OTHER, name="torch", line=1)


def test_a_model_handed_to_another_file_is_changed_where_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(
        "def train(model, data):\n    for x in data:\n        model(x).sum().backward()\n"
    )
    script = tmp_path / "train.py"
    script.write_text("from engine import train\nnet = Net()\ntrain(net, data)\n")
    place = f"{tmp_path / 'engine.py'}:3"
    (file,) = patches(script, [one("compile", compiled("Net"), place)]).files
    assert (
        "net = Net()\n# ridgeline: fuses operators and leaves Python out\nnet.compile()"
        in file.text
    )


def test_optimizers_of_several_kinds_each_get_their_keyword(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from torch.optim import SGD, Adam\na = SGD(p, lr=1.0)\nb = Adam(q)\n")
    first = one("fused-optimizer", option("SGD", "fused", True), f"{script}:2")
    second = one("fused-optimizer", option("Adam", "fused", True), f"{script}:3")
    both = Applied(fix="fused-optimizer", targets=first.targets + second.targets)
    found = patches(script, [both])
    assert not found.by_hand
    assert "a = SGD(p, lr=1.0, fused=True)" in found.files[0].text
    assert "b = Adam(q, fused=True)" in found.files[0].text


LAID_OUT = because(Done.CHANNELS_LAST, model="Conv2d", memory_format="channels_last", images=True)


def test_a_file_that_does_not_name_torch_imports_it_for_what_needs_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loop = "for x in data:\n    net(x).sum().backward()\n"
    script.write_text(f"from torch import nn\nnet = nn.Conv2d(3, 8, 3)\n{loop}")
    applied = one("channels-last", LAID_OUT, f"{script}:4")
    (file,) = patches(script, [applied]).files
    assert "\nimport torch\n" in file.text


HF = """\
from transformers import Trainer, TrainingArguments
args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
)
trainer = Trainer(model=model, args=args)
trainer.train()
"""


def test_a_framework_s_loop_is_changed_by_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HF)
    at = f"{script}:7"
    found = patches(
        script,
        [
            one("autocast", under_autocast("Bert", "cuda"), at),
            one("loader-workers", option("DataLoader", "num_workers", 4), at),
            one("compile", compiled("Bert"), at),
            one("fused-optimizer", FUSED, at),
        ],
    )
    (file,) = found.files
    assert not found.by_hand
    for pair in (
        "bf16=True", "dataloader_num_workers=4", "torch_compile=True", 'optim="adamw_torch_fused"',
    ):  # fmt: skip
        assert f"    {pair}," in file.text


def test_arguments_made_elsewhere_are_named_in_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from transformers import Trainer\nTrainer(m, parsed()).train()\nt.train()\n")
    found = patches(script, [one("autocast", under_autocast("B", "cuda"), f"{script}:3")])
    assert found.by_hand == (
        because(ByHand.GIVE_ARGUMENT, call="TrainingArguments", argument="bf16=True", place=""),
    )


def test_precision_is_written_as_an_argument_of_lightnings_trainer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import lightning as L\nt = L.Trainer(max_epochs=1)\nt.fit(model, loader)\n")
    found = patches(script, [one("autocast", under_autocast("N", "cuda"), f"{script}:3")])
    assert 'L.Trainer(max_epochs=1, precision="bf16-mixed")' in found.files[0].text


class ByItself(FakeBench):
    """Runs the copy: what it holds decides how fast it is."""

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        text = Path(script).read_text()
        return self.trial((Asked(fix="fused-optimizer"),) if "fused=True" in text else ())


def total(*applied: Applied) -> Optimized:
    ratio = Ratio(value=2.0, ci_low=1.9, ci_high=2.1, pairs=5)
    parity = Parity(equality="equal", why="")
    return Optimized(
        command="",
        total=Total(ratio=ratio, before_ms=100.0, after_ms=50.0, parity=parity, applied=applied),
    )


def bench(*moves: str) -> ByItself:
    made = ByItself(lambda names: 2.0 if "fused-optimizer" in names else 1.0)
    made.moves |= set(moves)
    return made


def wrote(script: Path, runs: ByItself, *more: Applied) -> Written:
    trial = FakeBench(lambda names: 2.0).trial((Asked(fix="fused-optimizer"),)).trial
    baseline = FakeBench(lambda names: 1.0).trial(()).trial
    assert trial is not None
    assert baseline is not None
    fused = one("fused-optimizer", FUSED, f"{script}:5")
    target = Target(kind="script", name=str(script))
    return write(target, total(fused, *more), runs, [baseline], trial)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def test_the_copy_is_run_and_reported_as_fast_and_equal(script: Path) -> None:
    found = wrote(script, bench())
    assert found.agrees
    assert found.checked.startswith("by itself: ")
    assert "losses equal to the" in found.checked
    assert [Path(one).name for one in found.files] == ["optimized_train.py"]
    assert Path(found.diff_file).name == "optimized_train.diff"
    assert "\n--- train.py\n+++ train.py\n" in Path(found.diff_file).read_text()


def test_a_copy_with_other_losses_does_not_agree(script: Path) -> None:
    found = wrote(script, bench("fused-optimizer"))
    assert found.agrees is False
    assert "losses differ" in found.checked


def test_a_copy_that_is_not_faster_is_not_what_was_tried(script: Path) -> None:
    found = wrote(script, ByItself(lambda names: 1.0))
    assert found.agrees is False
    assert "the copy is not what was tried" in found.checked


class SlowOnce(ByItself):
    """The machine is busy with something else while the copy first runs."""

    def __init__(self, *speeds: float) -> None:
        super().__init__(lambda names: speeds[min(self.taken, len(speeds) - 1)])
        self.taken = 0

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        found = super().by_itself(script, like)
        self.taken += 1
        return found


def test_a_copy_that_is_slower_than_the_trials_is_run_again(script: Path) -> None:
    runs = SlowOnce(1.1, 2.0)
    found = wrote(script, runs)
    assert runs.taken == 2
    assert found.agrees
    assert found.checked.startswith("by itself: 1.09 ×, 91.7 ms a step, run again 2.00 ×, 50 ms")
    assert "reached" not in found.checked


def test_a_copy_that_is_slower_each_time_is_reported_beside_the_trials(script: Path) -> None:
    runs = SlowOnce(1.5)
    found = wrote(script, runs)
    assert runs.taken == 2
    assert "the trials reached 2.00 ×, 50 ms" in found.checked


def test_a_copy_as_fast_as_the_trials_runs_once(script: Path) -> None:
    runs = SlowOnce(1.8)
    assert wrote(script, runs).agrees
    assert runs.taken == 1


def test_a_copy_that_fails_is_reported(script: Path) -> None:
    runs = bench()
    runs.fails["fused-optimizer"] = "RuntimeError: no"
    found = wrote(script, runs)
    assert found.agrees is False
    assert "RuntimeError: no" in found.checked


def test_what_is_left_to_be_written_by_hand_is_named_beside_what_the_copy_reaches(
    script: Path,
) -> None:
    found = wrote(script, bench(), one("compile", compiled("Net"), f"{script}:5"))
    assert found.agrees is False
    assert "by hand (torch.compile): 2.00 × with it" in found.checked
    assert "by itself: " in found.checked


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch here")
def test_a_diff_is_taken_by_patch(script: Path) -> None:
    found = wrote(script, bench())
    with open(found.diff_file) as diff:
        ran = subprocess.run(["patch", "-p0"], stdin=diff, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "fused=True" in script.read_text()


def test_of_a_package_there_is_a_diff_and_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    module = Path("app", "__main__.py")
    module.write_text("import torch\n")
    total = Total(
        ratio=Ratio(value=2, ci_low=1.9, ci_high=2.1, pairs=2), applied=(TF32,),
        before_ms=2, after_ms=1, parity=Parity(equality="equal", why=""),
    )  # fmt: skip
    named = named_file(Target(kind="module", name="app"))
    written = write_diff(module, named, Optimized(command="-m app", total=total))
    assert written.files == ()
    assert written.diff_file == str(Path("app", "optimized_app.diff"))
    assert "+torch.set_float32_matmul_precision" in Path(written.diff_file).read_text()
    assert "patch -p0" in written.checked
    assert module.read_text() == "import torch\n"
