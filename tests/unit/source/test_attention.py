import pytest

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from ridgeline.source.layers import find_written_attention


def rewritten(*lines: str) -> tuple[int, str] | None:
    source = "def forward(self, x):\n" + "".join(f"    {line}\n" for line in lines)
    place = Place(file="a.py", line=1, function="forward")
    found = find_written_attention(SourceFiles(texts={"a.py": source}), place)
    return (found.line, found.call) if found is not None else None


SDPA = "F.scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("lines", "line", "call"),
    [
        (
            ("s = q @ k.mT / 8", "return torch.softmax(s, -1) @ v"),
            3, f"return {SDPA}(q, k, v)",
        ),
        (
            ("a = torch.bmm(q, k.transpose(1, 2)) * self.scale",
             "a = a.masked_fill(causal, -1e9)",
             "a = self.softmax(a)",
             "a = F.dropout(a, p=0.1, training=self.training)",
             "out = torch.bmm(a, v)"),
            4, f"out = {SDPA}(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)",
        ),
        (
            ('w = torch.einsum("bhqd,bhkd->bhqk", q, k)',
             "w = w.masked_fill(mask, float('-inf')).softmax(dim=-1)",
             'o = torch.einsum("bhqk,bhkd->bhqd", w, v)'),
            3, f"o = {SDPA}(q, k, v, attn_mask=~mask)",
        ),
        (
            ("s = torch.matmul(q, k.transpose(2, 3)) / 8 + position",
             "y = s.softmax(-1) @ v"),
            3, f"y = {SDPA}(q, k, v, attn_mask=position)",
        ),
        (
            ('self.register_buffer("seen", torch.tril(ones))',
             "s = q @ k.mT",
             "s = s.masked_fill(self.seen[:t, :t] == 0, -torch.inf)",
             "y = s.softmax(-1) @ v"),
            5, f"y = {SDPA}(q, k, v, is_causal=True)",
        ),
        (
            ("a = F.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1)",
             "y = torch.matmul(self.drop(a), v).transpose(1, 2)"),
            2, f"mixed = {SDPA}(q, k, v, dropout_p=self.drop.p if self.training else 0.0)",
        ),
    ],
)  # fmt: skip
def test_the_call_has_the_programs_own_names(lines: tuple[str, ...], line: int, call: str) -> None:
    assert rewritten(*lines) == (line, call)


def test_products_elsewhere_leave_the_softmax_alone() -> None:
    assert rewritten("return self.scores(x).softmax(-1)") == (2, "")


def test_without_a_softmax_there_is_nothing() -> None:
    assert rewritten("return x @ self.weight") is None
