from ridgeline.source.calls import with_argument
from ridgeline.source.file import SourceFile
from ridgeline.source.layers import layers, value_of

TEXT = """\
ROWS = 5000

class Net(nn.Module):
    def __init__(self):
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.blocks = nn.Sequential(Conv2d(8, 8, 3), nn.ReLU())
        self.table = nn.Embedding(ROWS, 64)
"""
SOURCE = SourceFile("net.py", TEXT)


def test_layers_are_found_with_their_names_and_arguments() -> None:
    first, second = layers(SOURCE, ("Conv2d",))
    assert (first.line, first.name, first.owner, first.function) == (5, "conv", "Net", "__init__")
    assert first.given("bias", 7) == "False"
    assert (second.line, second.name, second.given("bias", 7)) == (6, "", "")


def test_the_name_is_kept_as_written_in_a_tuple_too() -> None:
    text = "emb, lin = nn.Embedding(9, 4), nn.Linear(4, 2)\nself.a, b = make(nn.Embedding(1, 1))\n"
    first, second = layers(SourceFile("net.py", text), ("Embedding",))
    assert (first.name, first.target) == ("emb", "emb")
    assert (second.name, second.target) == ("", "")
    (table,) = layers(SOURCE, ("Embedding",))
    assert (table.name, table.target) == ("table", "self.table")


def test_a_name_of_the_file_stands_for_its_number() -> None:
    (table,) = layers(SOURCE, ("Embedding",))
    assert value_of(SOURCE, table.given("num_embeddings", 0)) == 5000
    assert value_of(SOURCE, "64") == 64
    assert value_of(SOURCE, "unknown + 1") is None


def test_an_argument_is_put_at_the_end() -> None:
    assert with_argument("nn.Conv2d(8, 8, 3)", "bias=False") == "nn.Conv2d(8, 8, 3, bias=False)"
    assert with_argument("f()", "a=1") == "f(a=1)"
    assert with_argument("f(\n    1,\n)", "a=1") == "f(\n    1, a=1)"


def test_an_argument_beside_a_dictionary_of_them_is_put_into_it() -> None:
    assert with_argument("Conv2d(3, 8, **kw)", "bias=False") == (
        "Conv2d(3, 8, **{**kw, 'bias': False})"
    )
    assert with_argument("Conv2d(3, 8)", "bias=False") == "Conv2d(3, 8, bias=False)"
