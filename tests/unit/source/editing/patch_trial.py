"""Real files patched at sites drawn for them, and what must hold of the result, checked with
Python's own parser and tokenizer: taking the edits out again gives the original."""

import ast
import copy
import hashlib
import io
import os
import random
import sysconfig
import textwrap
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.records.edit import (
    Edit,
    Import,
    Insert,
    Keyword,
    Patched,
    Replace,
    Rewrite,
    Top,
    Within,
)
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing import patched, write_copy
from ridgeline.source.file import decoded

LARGEST = 60_000  # bytes
_BODIES = ("body", "orelse", "finalbody")


def real_files(count: int, largest: int = LARGEST) -> list[Path]:
    """Of the standard library and the installed packages, evenly over both; those Python reads."""
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    out: list[Path] = []
    for root in roots:
        found = sorted(
            p for p in root.rglob("*.py") if root != roots[0] or "packages" not in str(p)
        )
        random.Random(0).shuffle(found)
        good = (path for path in found if 200 < path.stat().st_size < largest and _compiles(path))
        out += [path for path, _ in zip(good, range(count // 2), strict=False)]
    return out


def _compiles(path: Path) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def parsed(source: bytes | str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def drawn(raw: bytes, seed: str) -> list[Edit]:
    """Edits at places of that file, the same each time; every name of ours is found again."""
    rng = random.Random(seed)
    tree = parsed(raw)
    out: list[Edit] = [
        Top(file="f", where="start", text="import ours_first", why="before everything"),
        Top(
            file="f", where="after imports", text="if 1:\n    ours_flag = '''\n a\n'''", why="flag"
        ),
        Import(file="f", text="import ours_module", why="needed below"),
    ]
    blocks = list(_blocks(tree))
    for number, block in enumerate(rng.sample(blocks, min(4, len(blocks)))):
        at = rng.randrange(len(block))
        where = rng.choice(["before", "after"])
        text = rng.choice([f"ours_{number} = 1", f"for ours_{number} in ():\n    pass"])
        line = block[at].lineno
        out.append(Insert(file="f", line=line, where=where, text=text, why=f"inserted {number}"))
    for number, block in enumerate(rng.sample(blocks, min(2, len(blocks)))):
        first = rng.randrange(len(block))
        last = rng.randrange(first, len(block))
        lines = (block[first].lineno, block[last].end_lineno or 0)
        header = f"ours_with_{number}()"
        out.append(
            Within(file="f", first=lines[0], last=lines[1], header=header, why=f"around {number}")
        )
    out += _on_calls(tree, rng)
    out += _on_lines(raw, blocks, rng)
    return out


def _on_lines(raw: bytes, blocks: Sequence[list[ast.stmt]], rng: random.Random) -> Iterator[Edit]:
    """Whole lines by one or by four of ours. Comments on them would go with them: none are drawn
    there, nor strings of several lines, which cannot be moved to the top to be compared."""
    lines = decoded(raw).text.replace("\r\n", "\n").split("\n")
    for number, block in enumerate(rng.sample(blocks, min(2, len(blocks)))):
        first = rng.randrange(len(block))
        last = rng.randrange(first, min(first + 3, len(block)))
        begin, end = block[first].lineno, block[last].end_lineno or 0
        before = lines[begin - 1 : end]
        text = "\n".join(before)
        if "#" in text or '"""' in text or "'''" in text or "\\" in text or "\f" in text:
            continue
        indent = before[0][: len(before[0]) - len(before[0].lstrip())]
        rows = [f"{indent}ours_rewritten_{number} = 1"]
        rows += rng.choice([[], [f"{indent}ours_more_{number} = {n}" for n in range(3)]])
        yield Rewrite(
            file="f", first=begin, last=end, before=text, after="\n".join(rows),
            why=f"rewritten {number}",
        )  # fmt: skip


def _on_calls(tree: ast.Module, rng: random.Random) -> Iterator[Edit]:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _name(n)]
    for number, call in enumerate(rng.sample(calls, min(5, len(calls)))):
        if number < 3:
            line = rng.choice([call.lineno, call.end_lineno or 0])
            pair = {"name": f"ours_{number}", "value": rng.choice(["True", "'x'", "(1, 2)"])}
            why = rng.choice(["short", "a reason that is so long that the line has no room for it"])
            yield Keyword(file="f", line=line, call=_name(call), **pair, why=why, positional=("*",))
        else:
            before, after = ast.unparse(call), f"ours_{number} + 1"
            yield Replace(file="f", line=call.lineno, before=before, after=after, why="swapped")


def _name(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in _BODIES:
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _neighbours(block: list[ast.stmt], edit: Insert) -> Iterator[ast.stmt]:
    """The statement of the file that each one of that edit's stands beside."""
    name = edit.text.split()[0 if edit.text[0] == "o" else 1]
    for at, node in enumerate(block):
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
        if getattr(target, "id", "") == name:
            beside = block[at + 1 :] if edit.where == "before" else block[:at][::-1]
            yield from [one for one in beside if not _is_ours(one)][:1]


def misplaced(raw: bytes, result: Patched) -> list[str]:
    """Insertions that stand beside another statement than the one they name."""
    old, new = parsed(raw), parsed(raw_of(result))
    _Without(result.done, only_with=True).visit(new)
    blocks = list(_blocks(new))
    out = []
    for edit in result.done:
        if not isinstance(edit, Insert):
            continue
        named = [n for n in ast.walk(old) if isinstance(n, ast.stmt) and n.lineno == edit.line]
        if any(_stays_first(node) for node in named):
            continue
        beside = [one for block in blocks for one in _neighbours(block, edit)]
        shapes = {_normal(_Without(result.done).visit(copy.deepcopy(one))) for one in beside}  # type: ignore[arg-type]
        if not shapes or not shapes <= {_normal(node) for node in named}:
            out.append(f"{edit.text!r} of line {edit.line} went elsewhere")
    return out


def _stays_first(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


class _Without(ast.NodeTransformer):
    """The tree as it was: the edits that were done taken out again."""

    def __init__(self, done: Sequence[Edit], only_with: bool = False) -> None:
        self.only_with = only_with
        self.found: list[tuple[str, str]] = []
        """The keywords of ours, by their calls."""
        self.lines = {
            edit.after.split(" =")[0].strip(): parsed(textwrap.dedent(edit.before)).body
            for edit in done
            if isinstance(edit, Rewrite)
        }
        replaced = [edit for edit in done if isinstance(edit, Replace)]
        self.before = {
            ast.dump(parsed(edit.after).body[0].value): parsed(edit.before).body[0].value  # type: ignore[attr-defined]
            for edit in replaced
        }

    def visit(self, node: ast.AST) -> object:
        if isinstance(node, ast.BinOp) and ast.dump(node) in self.before:
            return self.before[ast.dump(node)]
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, list(self._kept(value)))
        self.generic_visit(node)
        if isinstance(node, ast.Call):
            ours = [k.arg for k in node.keywords if (k.arg or "").startswith("ours_")]
            self.found += [(_name(node), name or "") for name in ours]
            node.keywords = [k for k in node.keywords if not (k.arg or "").startswith("ours_")]
            for keyword in node.keywords:
                self.found += [(_name(node), name) for name in _among(keyword)]
        return node

    def _kept(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for one in block:
            if isinstance(one, ast.With) and ast.unparse(one.items[0]).startswith("ours_with"):
                yield from self._kept(one.body)
            elif _assigned(one) in self.lines:
                yield from self.lines[_assigned(one)]
            elif self.only_with or not _is_ours(one):
                yield one


def _among(keyword: ast.keyword) -> list[str]:
    """Those of ours in `**{**options, "ours_0": True}`, which becomes `**options` again."""
    given = keyword.value
    if keyword.arg is not None or not isinstance(given, ast.Dict) or given.keys[:1] != [None]:
        return []
    names = [key.value for key in given.keys[1:] if isinstance(key, ast.Constant)]
    mine = [name for name in names if isinstance(name, str) and name.startswith("ours_")]
    if mine and len(mine) == len(given.keys) - 1:
        keyword.value = given.values[0]
        return mine
    return []


def _assigned(node: ast.stmt) -> str:
    target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
    return target.id if isinstance(target, ast.Name) else ""


def _is_ours(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return node.names[0].name.startswith("ours_")
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant):
        return node.test.value == 1 and ast.unparse(node.body[0]).startswith("ours_flag")
    return _assigned(node).startswith("ours_")


def _comments(source: bytes) -> list[str]:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return [
        t.string for t in tokens if t.type == tokenize.COMMENT and "# ridgeline:" not in t.string
    ]


def _normal(tree: ast.AST) -> str:
    # the contexts and kinds of a replaced expression, parsed alone, may differ: u"" and Load
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.kind = None
    return ast.dump(tree)


def raw_of(result: Patched) -> bytes:
    return result.text.encode(result.encoding)


def faults_of(raw: bytes, edits: Sequence[Edit], result: Patched) -> list[str]:
    """What is wrong with a result: nothing, it is hoped."""
    new = raw_of(result)
    faults = []
    try:
        tree = parsed(new)
    except (SyntaxError, ValueError) as error:
        return [f"does not parse: {error}"]
    without = _Without(result.done)
    if _normal(without.visit(tree)) != _normal(parsed(raw)):  # type: ignore[arg-type]
        faults.append("taking the edits out does not give the original back")
    asked = [(edit.call, edit.name) for edit in result.done if isinstance(edit, Keyword)]
    if sorted(asked) != sorted(without.found):
        faults.append("a keyword went to another call")
    faults += misplaced(raw, result)
    multiline = any(isinstance(e, Replace) and "was" in result.text for e in result.done)
    if not multiline and _comments(new) != _comments(raw):
        faults.append("a comment was lost or moved")
    faults += unstable(new, edits, result)
    if len(result.done) + len(result.already) + len(result.refused) != len(edits):
        faults.append("an edit is not accounted for")
    return faults


def unstable(new: bytes, edits: Sequence[Edit], result: Patched) -> list[str]:
    """What a second pass over the result does, and what it does not find there."""
    again = patched("f", new, edits)
    if again.text != result.text or again.done:
        return [f"not idempotent: {[type(edit).__name__ for edit in again.done]}"]
    lost = [edit for edit in result.done if edit not in again.already]
    return [f"not found again: {lost}"] if lost else []


def variants(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The same program in other bytes."""
    yield "as it is", raw
    if b"\r" not in raw:
        yield "CRLF", raw.replace(b"\n", b"\r\n")
    if not raw.startswith(b"\xef\xbb\xbf") and b"coding" not in b"".join(raw.splitlines()[:2]):
        yield "BOM", b"\xef\xbb\xbf" + raw
    tabs = b"".join(_tabbed(line) for line in raw.splitlines(keepends=True))
    try:
        if tabs != raw and ast.dump(parsed(tabs)) == ast.dump(parsed(raw)):
            yield "tabs", tabs
    except SyntaxError:
        pass
    if raw.endswith(b"\n"):
        yield "no last newline", raw.rstrip(b"\r\n")


def _tabbed(line: bytes) -> bytes:
    bare = line.lstrip(b" ")
    space = len(line) - len(bare)
    return b"\t" * (space // 4) + b" " * (space % 4) + bare


def file_faults(path: Path, folder: Path, counts: Counter[str]) -> list[str]:
    """One file in every variant, and its copy written."""
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    edits = drawn(raw, path.name)
    faults = []
    for name, bytes_ in variants(raw):
        result = patched(str(path), bytes_, edits)
        counts[f"{name}: files"] += 1
        counts["edits done"] += len(result.done)
        counts["edits refused"] += len(result.refused)
        for refused in result.refused:
            counts[f"refused: {type(refused.edit).__name__}"] += 1
            cause = refused.reason.cause
            if cause is not None and cause.code == Obstacle.DOES_NOT_COMPILE:
                counts[f"taken back: {cause.facts['error']}"] += 1
        if name == "as it is":
            plain = result
            faults += [*faults_of(bytes_, edits, result), *_writing_faults(path, result, folder)]
        elif name in ("CRLF", "BOM"):
            newline = "\r\n" if name == "CRLF" else "\n"
            if result.text != plain.text.replace("\n", newline):
                faults.append(f"{name}: the result is not that of the plain file")
            elif name == "CRLF":
                faults += [f"{name}: {f}" for f in unstable(raw_of(result), edits, result)]
        else:
            faults += [f"{name}: {fault}" for fault in faults_of(bytes_, edits, result)]
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        faults.append("THE ORIGINAL WAS CHANGED")
    return faults


def _writing_faults(path: Path, result: Patched, folder: Path) -> list[str]:
    """Written beside, through a link, onto the original, and where nothing may be written."""
    faults = []
    copy, link = folder / "copy.py", folder / "link.py"
    write_copy(result, copy, overwrite=True)
    if copy.read_bytes() != raw_of(result):
        faults.append("the copy holds other bytes")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    for target in (path, link):
        try:
            write_copy(result, target, overwrite=True)
            faults.append("it wrote to the original")
        except RidgelineError:
            pass
    closed = folder / "closed"
    closed.mkdir(exist_ok=True)
    closed.chmod(0o555)
    if not _refused_in(closed, result):
        faults.append("no clean error in a read-only directory")
    if sorted(p.name for p in folder.iterdir()) != ["closed", "copy.py", "link.py"]:
        faults.append("something was left behind")
    return faults


def _refused_in(folder: Path, result: Patched) -> bool:
    """In a child, which gives up root: root may write anywhere."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            write_copy(result, folder / "copy.py")
        except RidgelineError:
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and not list(folder.iterdir())
