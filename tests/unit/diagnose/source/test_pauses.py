from ridgeline.diagnose.source.pauses import PauseCall, pause_calls
from ridgeline.diagnose.source.sources import Sources


def kinds(text: str) -> list[tuple[str, int]]:
    sources = Sources(texts={"a.py": text})
    return [(one.kind, one.call.line) for one in pause_calls(sources, ["a.py"])]


def test_a_save_in_a_loop() -> None:
    assert kinds("for e in range(3):\n    torch.save(model, 'a')\n    loss.backward()\n") == [
        ("checkpoint", 2)
    ]


def test_a_save_in_a_function_that_a_loop_calls() -> None:
    text = (
        "def keep():\n    torch.save(1, 'a')\ndef after():\n    keep()\n"
        "for e in x:\n    loss.backward()\n    after()\n"
    )
    assert kinds(text) == [("checkpoint", 2)]


def test_a_save_after_training_pauses_nothing() -> None:
    assert kinds("for e in range(3):\n    train()\ntorch.save(model, 'a')\n") == []


def test_another_objects_save_is_no_checkpoint() -> None:
    assert kinds("for i in range(3):\n    image.save('a.png')\n") == []


def test_an_evaluation_comes_after_a_checkpoint() -> None:
    text = "for e in range(3):\n    evaluate(model)\n    torch.save(model, 'a')\n    opt.step()\n"
    assert kinds(text) == [("checkpoint", 3), ("evaluation", 2)]


def test_files_that_cannot_be_read_say_nothing() -> None:
    assert pause_calls(Sources(), ["gone.py"]) == ()


def test_a_loop_before_training_pauses_nothing() -> None:
    text = (
        "for i in range(9):\n    np.save(f'{i}', data[i])\n"
        "def prepare():\n    for i in x:\n        torch.save(i, 'a')\nprepare()\n"
        "for x in loader:\n    loss.backward()\n"
    )
    assert kinds(text) == []


def test_the_loop_around_a_function_that_trains() -> None:
    text = (
        "def epoch():\n    for x in loader:\n        update(x)\n"
        "def update(x):\n    model(x).backward()\n"
        "for e in range(3):\n    epoch()\n    torch.save(model, 'a')\n"
    )
    assert kinds(text) == [("checkpoint", 8)]


def test_without_training_the_loop_around_the_model() -> None:
    text = "for x in loader:\n    y = model(x)\n    np.save('a', y)\n"
    assert kinds(text) == [("checkpoint", 3)]


def test_a_function_that_turns_the_model_over_evaluates() -> None:
    text = (
        "def score(model):\n    model.eval()\n    return model(x)\n"
        "for x in loader:\n    loss.backward()\n    score(model)\n"
    )
    assert kinds(text)[0] == ("evaluation", 6)


def test_followed_into_the_files_it_imports() -> None:
    texts = {
        "job/train.py": "from tools.keep import Keeper\nk = Keeper()\n"
        "for x in loader:\n    loss.backward()\n    k.maybe(model)\n",
        "job/tools/keep.py": "from . import files\nclass Keeper:\n    def maybe(self, m):\n"
        "        files.write(m)\n    def never(self, m):\n        torch.save(m, 'b')\n",
        "job/tools/files.py": "def write(m):\n    torch.save(m, 'a')\n",
    }
    found = pause_calls(Sources(texts=texts), ["job/train.py"])
    assert [(one.call.file, one.call.line) for one in found] == [("job/tools/files.py", 2)]


def first(text: str) -> PauseCall:
    return pause_calls(Sources(texts={"a.py": text}), ["a.py"])[0]


def test_what_is_done_beside_a_save_and_where_the_loop_calls_it() -> None:
    text = (
        "def keep():\n    a = x.tolist()\n    torch.save(a.cpu(), 'a')\n"
        "def after():\n    keep()\n"
        "for e in x:\n    loss.backward()\n    print(loss.tolist())\n    after()\n"
    )
    one = first(text)
    assert [(call.name, call.line) for call in one.beside] == [("tolist", 2)]  # not its argument
    assert one.around is not None
    assert (one.around.name, one.around.line) == ("after", 9)


def test_in_the_loop_only_what_the_same_branch_does_is_beside() -> None:
    text = (
        "for e in x:\n    loss.backward()\n    log.write(loss.tolist())\n"
        "    if e % 9 == 0:\n        b = copy.deepcopy(model)\n        torch.save(b, 'a')\n"
    )
    one = first(text)
    assert [(call.name, call.line) for call in one.beside] == [("deepcopy", 5)]
    assert one.around is None


def test_steps_of_an_inner_loop_are_not_beside_an_epochs_save() -> None:
    text = (
        "for e in range(3):\n    for x in loader:\n        model(x).backward()\n"
        "        seen.append(x.tolist())\n    torch.save(model, 'a')\n"
    )
    assert first(text).beside == ()
