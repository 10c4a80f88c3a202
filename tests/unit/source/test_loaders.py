"""Which line made the loader that was seen, and how it is written anew."""

from ridgeline.records.run import LoaderSeen
from ridgeline.source.file import SourceFiles
from ridgeline.source.loaders import LoaderCall, loader_call

TEXT = """\
def loaders(args):
    val_loader = DataLoader(val, 64, num_workers=2)
    train_loader = torch.utils.data.DataLoader(
        train,
        batch_size=args.batch,
        num_workers=2,
    )
    return train_loader, val_loader
"""


def called(text: str, seen: LoaderSeen | None = None) -> LoaderCall | None:
    return loader_call(SourceFiles(texts={"a.py": text}), ["a.py", "gone.py"], seen)


def test_a_loader_for_training_is_preferred_and_rewritten() -> None:
    found = called(TEXT, LoaderSeen(workers=2))
    assert found is not None
    assert (found.place.line, found.place.function) == (3, "loaders")
    assert found.with_options(num_workers="8", pin_memory="True") == (
        "train_loader = torch.utils.data.DataLoader(train, batch_size=args.batch, num_workers=8, "
        "pin_memory=True)"
    )


def test_a_call_on_one_line_stays_as_it_was_written() -> None:
    for text, new in (
        ("a = DataLoader(x, timeout=1e-3, f='é')",
         "a = DataLoader(x, timeout=1e-3, f='é', num_workers=8)"),
        ("a = DataLoader((x))", "a = DataLoader((x), num_workers=8)"),
        ("a = DataLoader(x, )", "a = DataLoader(x, num_workers=8)"),
        ("a = DataLoader()", "a = DataLoader(num_workers=8)"),
        ("a = f(DataLoader(x, num_workers=n + 1, shuffle=True))",
         "a = f(DataLoader(x, num_workers=8, shuffle=True))"),
    ):  # fmt: skip
        found = called(f"{text}\n")
        assert found is not None
        assert found.with_options(num_workers="8") == new


def test_the_number_of_workers_tells_two_apart() -> None:
    text = "a = DataLoader(x)\nb = DataLoader(x, num_workers=4)\n"
    for workers, line in ((0, 1), (4, 2)):
        found = called(text, LoaderSeen(workers=workers))
        assert found is not None
        assert found.place.line == line


def test_a_call_inside_a_statement_is_rewritten_alone() -> None:
    found = called("for x in DataLoader(data, 4):\n    pass\n")
    assert found is not None
    assert found.with_options(num_workers="2") == "DataLoader(data, 4, num_workers=2)"


def test_no_source_or_no_loader_is_none() -> None:
    assert called("x = 1\n") is None
    assert loader_call(SourceFiles(texts={}), [], None) is None


TRAINER = """\
args = TrainingArguments(output_dir="out", num_train_epochs=9)
trainer = Trainer(model=model, args=args, train_dataset=Reviews())
trainer.train()
"""


def test_a_trainers_loader_is_made_from_its_arguments() -> None:
    found = called(TRAINER, LoaderSeen(place="a.py:3"))
    assert found is not None
    assert found.trainers
    assert found.place.line == 1
    assert found.with_options(num_workers="2", pin_memory="True") == (
        'args = TrainingArguments(output_dir="out", num_train_epochs=9, dataloader_num_workers=2, '
        "dataloader_pin_memory=True)"
    )


def test_a_loader_of_the_programs_own_beside_a_trainer() -> None:
    both = f"{TRAINER}test = DataLoader(rest, 8)\nfor batch in test:\n    pass\n"
    found = called(both, LoaderSeen(place="a.py:5"))
    assert found is not None
    assert found.text == "test = DataLoader(rest, 8)"
    assert found.dataset == "rest"
    inside = called(both, LoaderSeen(place="a.py:3"))
    assert inside is not None
    assert inside.trainers


def test_lightning_takes_the_programs_own_loader() -> None:
    text = "trainer = L.Trainer()\nloader = DataLoader(data, 8)\ntrainer.fit(model, loader)\n"
    found = called(text, LoaderSeen(place="a.py:3"))
    assert found is not None
    assert found.place.line == 2


TWO = """\
class Trainer:
    def __init__(self, data, **settings):
        self.loader = DataLoader(data, **settings)


def check(data):
    loader = DataLoader(
        data, batch_size=100,
        num_workers=0,
    )
"""


def test_the_line_at_which_the_loader_was_made_is_named() -> None:
    """The number of workers alone would fit the other call."""
    seen = LoaderSeen(workers=0, made=("a.py:3:Trainer.__init__", "a.py:20:<module>"))
    found = called(TWO, seen)
    assert found is not None
    assert found.place.line == 3
    inside = called(TWO, LoaderSeen(workers=2, made=("a.py:8:check",)))
    assert inside is not None
    assert inside.place.line == 7


def test_a_loader_that_was_never_made_is_not_named() -> None:
    """A library made the loader from another one. Only calls that were seen may be named."""
    seen = LoaderSeen(workers=0, made=("a.py:30:main",))
    sources = SourceFiles(texts={"a.py": TWO})
    found = loader_call(sources, ["a.py"], seen, ["a.py:3:Trainer.__init__", "a.py:30:main"])
    assert found is not None
    assert found.place.line == 3
    assert loader_call(sources, ["a.py"], seen, ["a.py:30:main"]) is None


def test_code_that_is_shown_runs_where_options_are_given_as_a_dictionary() -> None:
    for text in (
        "a = DataLoader([1, 2], **given)",
        "a = DataLoader([1, 2], shuffle=False, **dict(given))",
        "a = DataLoader([1, 2],\n    **given, **{})",
        "a = DataLoader([1, 2], pin_memory=False, **given)",
    ):
        found = called(text)
        assert found is not None
        names: dict[str, object] = {"given": {"num_workers": 1}, "DataLoader": dict_of}
        exec(found.with_options(num_workers="8", pin_memory="True"), names)
        options = names["a"]
        assert isinstance(options, dict)
        assert (options["num_workers"], options["pin_memory"]) == (8, True)


def dict_of(data: object, **options: object) -> dict[str, object]:
    return options


def test_an_option_that_may_be_given_by_position_is_not_written() -> None:
    for text in ("a = DataLoader(x, 8, True, None, None, 4)", "a = DataLoader(*given)"):
        found = called(text)
        assert found is not None
        assert found.with_options(num_workers="8") == ""
