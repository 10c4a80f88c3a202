from ridgeline.diagnose.source.pauses import pause_calls
from ridgeline.diagnose.source.sources import Sources


def kinds(text: str) -> list[tuple[str, int]]:
    sources = Sources(texts={"a.py": text})
    return [(one.kind, one.call.line) for one in pause_calls(sources, ["a.py"])]


def test_a_save_in_a_loop() -> None:
    assert kinds("for e in range(3):\n    torch.save(model, 'a')\n") == [("checkpoint", 2)]


def test_a_save_in_a_function_that_a_loop_calls() -> None:
    text = (
        "def keep():\n    torch.save(1, 'a')\ndef after():\n    keep()\nfor e in x:\n    after()\n"
    )
    assert kinds(text) == [("checkpoint", 2)]


def test_a_save_after_training_pauses_nothing() -> None:
    assert kinds("for e in range(3):\n    train()\ntorch.save(model, 'a')\n") == []


def test_another_objects_save_is_no_checkpoint() -> None:
    assert kinds("for i in range(3):\n    image.save('a.png')\n") == []


def test_an_evaluation_comes_after_a_checkpoint() -> None:
    text = "for e in range(3):\n    evaluate(model)\n    torch.save(model, 'a')\n"
    assert kinds(text) == [("checkpoint", 3), ("evaluation", 2)]


def test_files_that_cannot_be_read_say_nothing() -> None:
    assert pause_calls(Sources(), ["gone.py"]) == ()
