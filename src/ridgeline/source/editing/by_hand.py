"""What to write, and where, for an edit that could not be carried out."""

from ridgeline.records.edit import Edit, Import, Insert, Keyword, Replace, Rewrite, Within


def by_hand(edit: Edit, file: str) -> str:
    if isinstance(edit, Keyword):
        return f"in {file}, line {edit.line}: give {edit.call}(…)\n    {edit.name}={edit.value}"
    if isinstance(edit, Insert):
        put = f"{edit.where} the statement there, put"
        return f"in {file}, line {edit.line}: {put}\n{_indented(edit.text)}"
    if isinstance(edit, Within):
        return f"in {file}, {_between(edit)}: put what stands there into\n    with {edit.header}:"
    if isinstance(edit, Replace):
        swap = f"in place of {edit.before} write"
        return f"in {file}, line {edit.line}: {swap}\n{_indented(edit.after)}"
    if isinstance(edit, Rewrite):
        return f"in {file}, {_between(edit)}: write\n{edit.after}"
    if isinstance(edit, Import):
        return f"in {file}, with its imports: put\n{_indented(edit.text)}"
    where = "before its first import" if edit.where == "start" else "after its imports"
    return f"in {file}, {where}: put\n{_indented(edit.text)}"


def _between(edit: Within | Rewrite) -> str:
    if edit.first == edit.last:
        return f"line {edit.first}"
    return f"lines {edit.first} to {edit.last}"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").split("\n"))
