"""A file's bytes as text, and the encoding that gives the same bytes back."""

import io
import tokenize

from msgspec import Struct


class Decoded(Struct, frozen=True, kw_only=True):
    text: str
    encoding: str
    fault: str = ""
    """Why it cannot be patched; then the text still gives its bytes back."""


def decoded(raw: bytes) -> Decoded:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        if text.encode(encoding) == raw:
            return Decoded(text=text, encoding=encoding)
        fault = f"its encoding, {encoding}, does not give the same bytes back"
    except (SyntaxError, UnicodeError, LookupError) as error:
        fault = f"it cannot be decoded ({_sentence(error)})"
    # surrogateescape keeps bytes that are no UTF-8
    return Decoded(text=raw.decode("utf-8", "surrogateescape"), encoding="utf-8", fault=fault)


def encoded(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "surrogateescape")


def _sentence(error: Exception) -> str:
    return str(error).split("\n")[0]
