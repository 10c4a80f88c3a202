"""A keyword of a call: added in the call's own layout, changed where it is a literal, refused
where it may be there unseen."""

import pytest

from ridgeline.records.edit import Keyword, Patched
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import causes, obstacles


def ask(text: str, line: int = 1, **fields: object) -> Patched:
    asked = {"call": "DataLoader", "name": "pin_memory", "value": "True", "why": "w", **fields}
    return patched("train.py", text.encode(), [Keyword(file="train.py", line=line, **asked)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(d)\n", "DataLoader(d, pin_memory=True)  # ridgeline: w\n"),
        ("DataLoader()\n", "DataLoader(pin_memory=True)  # ridgeline: w\n"),
        ("DataLoader(d,)\n", "DataLoader(d, pin_memory=True,)  # ridgeline: w\n"),
        ("x = [DataLoader(d )]\n", "x = [DataLoader(d, pin_memory=True )]  # ridgeline: w\n"),
        ("if DataLoader(d): 0\n", "if DataLoader(d, pin_memory=True): 0  # ridgeline: w\n"),
        ("DataLoader(i for i in d)", "DataLoader((i for i in d), pin_memory=True)  # ridgeline: w"),
        ("DataLoader(d)  # mine\n", "# ridgeline: w\nDataLoader(d, pin_memory=True)  # mine\n"),
        ("DataLoader(\n  d,\n)\n", "DataLoader(\n  d,\n  pin_memory=True,  # ridgeline: w\n)\n"),
        (
            "DataLoader(\n    d,\n    a=1  # one\n)\n",
            "DataLoader(\n    d,\n    a=1,  # one\n    pin_memory=True  # ridgeline: w\n)\n",
        ),
        (
            "DataLoader(d,\n           a=1)\n",
            "DataLoader(d,\n           a=1,\n           pin_memory=True)  # ridgeline: w\n",
        ),
        (
            "DataLoader(\n    d, a=1\n)\n",
            "DataLoader(\n    d, a=1, pin_memory=True  # ridgeline: w\n)\n",
        ),
        (
            "x = DataLoader(d) + \\\n    1\n",
            "# ridgeline: w\nx = DataLoader(d, pin_memory=True) + \\\n    1\n",
        ),
        (
            'f(DataLoader(d), """\n""")\n',
            '# ridgeline: w\nf(DataLoader(d, pin_memory=True), """\n""")\n',
        ),
    ],
)  # fmt: skip
def test_the_keyword_is_added_in_the_layout_of_the_call(before: str, after: str) -> None:
    result = ask(before)
    assert result.text == after
    assert len(result.done) == 1


def test_several_keywords_of_one_call_are_added_together() -> None:
    edits = [
        Keyword(file="f", line=1, call="DataLoader", name=name, value="2", why=name)
        for name in ("num_workers", "prefetch_factor")
    ]
    result = patched("f", b"DataLoader(d)\n", edits)
    expected = "# ridgeline: num_workers\n# ridgeline: prefetch_factor\n"
    assert result.text == expected + "DataLoader(d, num_workers=2, prefetch_factor=2)\n"


def test_calls_of_a_chain_are_told_apart() -> None:
    edits = [
        Keyword(file="f", line=1, call=call, name=name, value="1", why="w", positional=("*",))
        for call, name in (("one", "a"), ("two", "b"))
    ]
    result = patched("f", b"one(x).two(y)\n", edits)
    assert result.text == "one(x, a=1).two(y, b=1)  # ridgeline: w\n"


def test_any_line_of_the_call_names_it() -> None:
    for line in (1, 2, 3):
        assert ask("x = DataLoader(\n    d\n)\n", line).done


def test_a_literal_is_changed_and_the_old_one_named() -> None:
    result = ask("DataLoader(d, pin_memory = False)\n")
    assert result.text == "DataLoader(d, pin_memory = True)  # ridgeline: w (was False)\n"


@pytest.mark.parametrize(
    "value", ["args.pin", "cfg['pin']", "int(os.environ.get('PIN', 0)) > 0", "a or not b", "PIN"]
)
def test_a_value_that_is_only_read_is_changed_and_named(value: str) -> None:
    result = ask(f"DataLoader(d, pin_memory={value})\n")
    assert result.text.endswith(f"DataLoader(d, pin_memory=True)  # ridgeline: w (was {value})\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DataLoader(d, **o)", 'DataLoader(d, **{**o, "pin_memory": True})'),
        ("DataLoader(**o, shuffle=s)", 'DataLoader(**{**o, "pin_memory": True}, shuffle=s)'),
        ("DataLoader(d, **o or {})", 'DataLoader(d, **{**(o or {}), "pin_memory": True})'),
        ("DataLoader(d, **(o or {}))", 'DataLoader(d, **({**(o or {}), "pin_memory": True}))'),
        ("DataLoader(d, ** a.b[0] )", 'DataLoader(d, ** {**a.b[0], "pin_memory": True} )'),
        ('DataLoader(d, **{**o, "pin_memory": 0})', 'DataLoader(d, **{**o, "pin_memory": True})'),
        ('DataLoader(**{"pin_memory": 0, **o})',
         'DataLoader(**{**{"pin_memory": 0, **o}, "pin_memory": True})'),
    ],
)  # fmt: skip
def test_what_a_dict_may_give_is_named_after_it(text: str, expected: str) -> None:
    result = ask(f"x = {text}\n")
    assert expected in result.text
    assert not result.refused
    again = ask(result.text, result.text.count("\n"))
    assert again.already
    assert again.text == result.text


def test_several_go_into_one_dict() -> None:
    edits = [
        Keyword(file="f", line=1, call="DataLoader", name=name, value="2", why="w")
        for name in ("num_workers", "prefetch_factor")
    ]
    result = patched("f", b"x = DataLoader(d, **o)\n", edits)
    assert '**{**o, "num_workers": 2, "prefetch_factor": 2})' in result.text


def test_the_same_value_stands_already() -> None:
    for text in ("DataLoader(d, pin_memory=True)\n", "DataLoader(d, pin_memory = (True), **o)\n"):
        result = ask(text)
        assert result.text == text
        assert result.already
        assert not result.diff


def test_a_known_call_gives_it_by_position() -> None:
    text = "DataLoader(d, 4, True, None, None, 0)\n"
    result = ask(text, name="num_workers", value="2")
    assert result.text.startswith("DataLoader(d, 4, True, None, None, 2)")
    assert ask("SGD(p, 0.1, 0.9)\n", call="SGD", name="fused").done
    assert ask("checkpoint(f, a, b, c)\n", call="checkpoint", name="use_reentrant").done


def test_an_imported_name_is_known_by_another_one() -> None:
    text = "from torch.utils.data import DataLoader as DL\nx = DL(d)\n"
    assert "DL(d, pin_memory=True)" in ask(text, 2).text


@pytest.mark.parametrize(
    "made", ["partial(DataLoader, **OPTIONS)", "functools.partial(data.DataLoader)", "DataLoader"]
)
def test_a_name_for_the_class_is_known_as_the_class(made: str) -> None:
    text = f"make = {made}\nx = make(d, 4)\n"
    assert "make(d, 4, pin_memory=True)" in ask(text, 2).text
    refused = ask(text.replace("DataLoader", "Other"), 2)
    assert causes(refused) == [because(Obstacle.NOT_ONE_CALL, calls=0, call="DataLoader", line=2)]


def test_a_partial_that_gives_some_by_position_is_left() -> None:
    text = "make = partial(DataLoader, d)\nx = make(4)\n"
    assert ask(text, 2).refused


@pytest.mark.parametrize(
    ("text", "line", "obstacle"),
    [
        ("DataLoader(d, **options, **more)\n", 1, Obstacle.MAY_BE_IN_STARS),
        ("DataLoader(*args)\n", 1, Obstacle.MAY_BE_IN_STARS),
        ("DataLoader(*args, **options)\n", 1, Obstacle.MAY_BE_IN_STARS),
        ("DataLoader(d, pin_memory=ask())\n", 1, Obstacle.VALUE_MAY_DO_MORE),
        ("DataLoader(d, pin_memory=(p := True))\n", 1, Obstacle.VALUE_MAY_DO_MORE),
        ("a, b = DataLoader(d), DataLoader(e)\n", 1, Obstacle.NOT_ONE_CALL),
        ("DataLoader(DataLoader(d))\n", 1, Obstacle.NOT_ONE_CALL),
        ("x = 1\n", 1, Obstacle.NOT_ONE_CALL),
        ("x = getattr(data, name)(d)\n", 1, Obstacle.LOOKED_UP_CALL),
        ("x = LOADERS[name](d)\n", 1, Obstacle.LOOKED_UP_CALL),
        ("DataLoader(d)\n\n", 2, Obstacle.NO_STATEMENT),
        ("DataLoader(d)\n", 9, Obstacle.NO_STATEMENT),
        ('f"{DataLoader(d)}"\n', 1, Obstacle.CALL_IN_STRING),
    ],
)
def test_what_cannot_be_done_safely_is_refused(text: str, line: int, obstacle: Obstacle) -> None:
    result = ask(text, line)
    assert result.text == text
    assert obstacles(result) == [obstacle]
    (refused,) = result.refused
    facts = {"file": "train.py", "line": line, "call": "DataLoader", "name": "pin_memory"}
    assert refused.reason.code == ByHand.GIVE_KEYWORD
    assert refused.reason.facts == facts | {"value": "True"}


def test_bare_arguments_of_an_unknown_call_are_not_guessed() -> None:
    assert obstacles(ask("Mine(d)\n", call="Mine")) == [Obstacle.MAY_BE_BARE]
    assert ask("Mine(d=d)\n", call="Mine").done
    assert ask("Mine(d)\n", call="Mine", positional=("dataset", "pin_memory")).done


def test_one_refused_does_not_lose_the_others() -> None:
    asked = {"file": "f", "call": "DataLoader", "value": "True", "why": "w"}
    edits = [
        Keyword(line=1, name="pin memory", **asked),
        Keyword(line=1, name="pin_memory", **{**asked, "value": "1 +"}),
        Keyword(line=2, name="pin_memory", **asked),
    ]
    result = patched("f", b"DataLoader(a)\nDataLoader(b)\n", edits)
    assert result.text == "DataLoader(a)\nDataLoader(b, pin_memory=True)  # ridgeline: w\n"
    assert len(result.refused) == 2
