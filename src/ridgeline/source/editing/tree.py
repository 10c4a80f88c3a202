"""A file of the user's parsed with its formatting: its statements in their blocks, and where each
stands in the text; and code compared by its meaning. Lines end where Python ends them (not at form
feeds, as `str.splitlines` does) and count from 1."""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from ridgeline.measure.collection import collection_paused
from ridgeline.records.facts import Fact, Reason
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.file import last_name


class Cannot(Exception):
    """An edit cannot be made safely, for a reason."""

    def __init__(self, code: Obstacle, **facts: Fact) -> None:
        self.reason = Reason(code.value, facts)
        super().__init__(self.reason)


try:
    from libcst.metadata.position_provider import PositionProvidingCodegenState
except ImportError:  # no public name of libcst's
    PositionProvidingCodegenState = None  # type: ignore[assignment,misc]

_NEWLINE = re.compile(r"\r\n?|\n")
_STRINGS = (cst.SimpleString, cst.FormattedString, cst.TemplatedString)
_APART = (
    cst.IndentedBlock,
    cst.Else,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Finally,
    cst.MatchCase,
)
MARK = "# ridgeline:"

_StatementNode = cst.SimpleStatementLine | cst.BaseCompoundStatement


@dataclass(slots=True, eq=False)
class Block:
    """Statements that follow one another: those of a module or of a body."""

    owner: "Statement | None"
    node: cst.Module | cst.IndentedBlock
    statements: "list[Statement]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Statement:
    """A line of simple statements, or a compound statement with everything in it."""

    node: _StatementNode
    first: int
    """The first line, decorators included."""
    last: int
    block: Block
    index: int
    blocks: list[Block] = field(default_factory=list)
    parts: list[tuple[int, cst.CSTNode]] = field(default_factory=list)
    """The lines on which a compound statement and its elif, else, except, … begin."""

    @property
    def level(self) -> int:
        """Return how many blocks are around the statement's own."""
        owner = self.block.owner
        return 0 if owner is None else owner.level + 1


@dataclass(frozen=True, slots=True)
class Spot:
    """The statement on a line, and the part of it that has the line."""

    statement: Statement
    part: cst.CSTNode

    @property
    def opens(self) -> bool:
        return self.part is self.statement.node

    @property
    def shared(self) -> bool:
        """Return whether the line holds more than one statement."""
        node = self.part
        if isinstance(node, cst.SimpleStatementLine):
            return len(node.body) > 1
        return isinstance(getattr(node, "body", None), cst.SimpleStatementSuite)


class Tree:
    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(m.end() for m in _NEWLINE.finditer(text))]
        self._cut: dict[int, int] = {}
        bare = self._without_feeds()
        # Nothing made here is garbage, and looking for it took half of the time of a file of 3,000
        # lines (3.0 s with, 1.4 s without).
        with collection_paused():
            self.module = cst.parse_module(bare)
            code, self._ranges = _written_out(self.module)
        if code != bare:
            raise Cannot(Obstacle.TEXT_NOT_KEPT)
        self.comments: dict[int, cst.Comment] = {}
        self._strings: list[tuple[int, int]] = []
        for node, place in self._ranges.items():
            if isinstance(node, cst.Comment):
                self.comments[place.start.line] = node
            elif isinstance(node, _STRINGS) and place.start.line != place.end.line:
                self._strings.append((place.start.line, place.end.line))
        self.body = Block(None, self.module)
        self._fill(self.body, self.module.body)

    def _without_feeds(self) -> str:
        """The parser loses a form feed before a statement: it reads the text without those that
        begin a line, and the places it names are moved by what was cut."""
        if "\f" not in self.text:
            return self.text
        pieces = []
        for line, start in enumerate(self._starts, 1):
            whole = self.text[start : self.start_of(line + 1)]
            space = whole[: len(whole) - len(whole.lstrip(" \t\f"))]
            self._cut[line] = space.rfind("\f") + 1
            pieces.append(whole[self._cut[line] :])
        return "".join(pieces)

    def _fill(self, block: Block, nodes: Sequence[cst.BaseStatement]) -> None:
        for node in nodes:
            assert isinstance(node, _StatementNode)
            place = self._range(node)
            first = place.start.line
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.decorators:
                first = self._range(node.decorators[0]).start.line
            made = Statement(node, first, place.end.line, block, len(block.statements))
            block.statements.append(made)
            if not isinstance(node, cst.SimpleStatementLine):
                for part in parts(node):
                    made.parts.append((self._range(part).start.line, part))
                    body = getattr(part, "body", None)
                    if isinstance(body, cst.IndentedBlock):
                        made.blocks.append(Block(made, body))
                        self._fill(made.blocks[-1], body.body)

    def _range(self, node: cst.CSTNode) -> CodeRange:
        return self._ranges[node]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the offsets of a node in the text, without the node's own parentheses."""
        place = self._range(node)
        return self._offset(place.start), self._offset(place.end)

    def _offset(self, at: CodePosition) -> int:
        return self._starts[at.line - 1] + self._cut.get(at.line, 0) + at.column

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        place = self._range(node)
        return place.start.line, place.end.line

    def line_at(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def start_of(self, line: int) -> int:
        """Return the offset at which a line begins; for the line after the last one, the text's
        end."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def line(self, number: int) -> str:
        """Return a line without its newline."""
        return self.text[self.start_of(number) : self.start_of(number + 1)].rstrip("\r\n")

    @property
    def count(self) -> int:
        return len(self._starts)

    def newline(self, line: int) -> str:
        """Return how a line ends; for the last line, how the file's lines do."""
        whole = self.text[self.start_of(line) : self.start_of(line + 1)]
        return whole[len(whole.rstrip("\r\n")) :] or self.module.default_newline

    def indent(self, line: int) -> str:
        text = self.line(line)
        space = text[: len(text) - len(text.lstrip(" \t\f"))]
        return space[space.rfind("\f") + 1 :]  # a form feed begins the count again

    def in_string(self, line: int) -> bool:
        """Return whether a line begins inside a string."""
        return any(first < line <= last for first, last in self._strings)

    def ends_in_string(self, line: int) -> bool:
        return any(first <= line < last for first, last in self._strings)

    def own_comment(self, line: int) -> str:
        """Return the comment that has a line to itself, or ""."""
        comment = self.comments.get(line)
        return comment.value if comment and self.line(line).lstrip(" \t\f").startswith("#") else ""

    def statements(self, block: Block | None = None) -> Iterator[Statement]:
        for statement in (block or self.body).statements:
            yield statement
            for inner in statement.blocks:
                yield from self.statements(inner)

    def at(self, line: int) -> Spot:
        found: Statement | None = None
        blocks = [self.body]
        while blocks:
            block = blocks.pop()
            for statement in block.statements:
                if statement.first <= line <= statement.last:
                    found, blocks = statement, list(statement.blocks)
                    break
        if found is None:
            raise Cannot(Obstacle.NO_STATEMENT, line=line)
        if isinstance(found.node, cst.SimpleStatementLine):
            return Spot(found, found.node)
        if not self.line(line).strip() or self.own_comment(line):
            raise Cannot(Obstacle.NO_STATEMENT, line=line)
        part = [node for start, node in found.parts if start <= line]
        return Spot(found, part[-1] if part else found.node)


def _written_out(module: cst.Module) -> tuple[str, Mapping[cst.CSTNode, CodeRange]]:
    """Return the text that the parser gives back and the place of each node in it, in one pass:
    0.18 s for a file of 3,400 lines. With libcst's public names, used where it lacks the others,
    this takes 0.36 s."""
    try:
        provider = PositionProvider()
        state = PositionProvidingCodegenState(
            default_indent=module.default_indent,
            default_newline=module.default_newline,
            provider=provider,
        )
        module._codegen(state)
        return "".join(state.tokens), cast(Mapping[cst.CSTNode, CodeRange], provider._computed)
    except (AttributeError, TypeError):
        return publicly(module)


def publicly(module: cst.Module) -> tuple[str, Mapping[cst.CSTNode, CodeRange]]:
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    return module.code, wrapper.resolve(PositionProvider)


def parts(node: cst.BaseCompoundStatement) -> Iterator[cst.CSTNode]:
    """Yield the statement itself, then its elif, else, except, finally and case."""
    yield node
    for name in ("handlers", "cases"):
        yield from getattr(node, name, ())
    after = getattr(node, "orelse", None)
    if isinstance(after, cst.If):
        yield from parts(after)
    elif after is not None:
        yield after
    last = getattr(node, "finalbody", None)
    if last is not None:
        yield last


def own(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield every node of a part with its parent, without the blocks below and other parts."""
    for child in node.children:
        if isinstance(child, _APART):
            continue
        if isinstance(child, cst.If) and isinstance(node, cst.If):
            continue
        yield child, node
        yield from own(child)


def expression_shape(code: str) -> str:
    try:
        if not code.strip():
            raise SyntaxError("nothing")
        return ast.dump(ast.parse(f"({code}\n)", mode="eval"))
    except (SyntaxError, ValueError) as error:
        raise Cannot(Obstacle.NO_EXPRESSION, expression=code) from error


def statement_shapes(code: str) -> list[str]:
    try:
        return [ast.dump(node) for node in ast.parse(code).body]
    except (SyntaxError, ValueError) as error:
        raise Cannot(Obstacle.OWN_CODE_NOT_PARSED) from error


def run_shape(tree: Tree, run: Sequence[Statement]) -> list[str]:
    """Return the shapes of a run of statements, as they would be at the top of a file."""
    code = "".join(tree.module.code_for_node(statement.node) for statement in run)
    try:
        return statement_shapes(code)
    except Cannot:
        return []


def holds_run(many: Sequence[str], few: Sequence[str]) -> bool:
    """Return whether `few` stands in `many` without a gap."""
    size = len(few)
    return any(list(many[at : at + size]) == list(few) for at in range(len(many) - size + 1))


def called_name(code: str) -> str:
    """Return the last name of what is called: `autocast` of torch.autocast("cuda")."""
    try:
        node: ast.AST = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    return last_name(node)
