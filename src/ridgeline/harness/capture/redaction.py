"""Whether a name, of an option, a variable or a field, says that what it holds is a secret."""

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET = _set(
    "password passwords passwd pwd passphrase passcode secret secrets apikey apikeys token "
    "credential credentials creds authorization bearer jwt cookie cookies dsn otp webhook sas "
    "pass pat accesskey secretkey authtoken accesstoken privatekey userpass connectionstring netrc"
)
_KEYS_OF = _set(
    "api secret access private account license signing encryption encrypt auth storage "
    "subscription master ssh deploy service client shared consumer wandb hf openai aws azure gcp "
    "google anthropic comet neptune mlflow clearml kaggle replicate cohere mistral"
)
"""Before `key` or `keys`: a secret one."""
_MODELS = _set(
    "pad padding eos bos unk mask masked sep cls special stop image audio video start end per max "
    "min num n new next prefix class first last mean avg total target source prompt bot eot eod "
    "begin decoder encoder every each by single two multi forward backward one second"
)
"""Before `token` or `pass`: a model's, not a person's."""
_ABOUT = _set(
    "file files path dir directory folder env var name names type types len length size count "
    "limit dim dims dimension ratio rate min max num prob probability budget strategy idx index "
    "level policy provider backend expiry ttl timeout through"
)
"""After any of them: something about it, not the thing itself."""
_WEAK = _set("key keys token tokens auth session login pin sid signature")
_SEVERAL = _set("passwords secrets apikeys credentials creds cookies keys tokens")
_HASHES = _set("commit sha rev revision hash digest checksum md uuid")
_ENDINGS = ("password", "passwd", "apikey", "secret", "passphrase")


@lru_cache(maxsize=512)
def words(name: str) -> tuple[str, ...]:
    """--hfToken, HF_TOKEN, trainer.hf-token: (…, hf, token)."""
    return tuple(word.lower() for word in _WORDS.findall(name.rpartition("/")[2]))


def is_secret(name: str) -> bool:
    """What goes by this name is one, whatever it looks like."""
    found = words(name)
    for at, word in enumerate(found):
        before, after = found[at - 1] if at else "", found[at + 1 :]
        if _ABOUT.intersection(after):
            continue
        if word in ("token", "pass") and (before in _MODELS or "".join(after).isalpha()):
            continue  # --pad-token, --token-mixer
        if word in _SECRET or (word in ("key", "keys") and before in _KEYS_OF):
            return True
        if word == "string" and before in ("connection", "conn"):
            return True
    return "".join(found).endswith(_ENDINGS)


def may_be_secret(name: str) -> bool:
    """What goes by this name is one where nobody would have typed it: --key, --session."""
    return not (_WEAK.isdisjoint(words(name)) or _ABOUT.intersection(words(name)))


def takes_several(name: str) -> bool:
    return not _SEVERAL.isdisjoint(words(name))


def is_hash(name: str) -> bool:
    """Forty hexadecimal digits are no key here: --revision."""
    return not _HASHES.isdisjoint(words(name))


HIDDEN = "‹hidden›"
LOOKED_AT = 4096
LONGEST = 2000
"""Characters of one argument, looked at and kept: the patterns take time with the square of them,
9 ms for as many as this. What begins among the kept is looked at to its end."""

_MAKES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,}
    | (?:sk|pk|rk)[-_](?=[\w-]*\d)[\w-]{12,}
    | gh[pousr]_\w{8,} | github_pat_\w{8,} | gl(?:pat|ptt|dt|rt|oas|soat)-[\w-]{8,}
    | (?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{12,}
    | AIza[\w-]{20,} | ya29\.[\w-]{8,} | GOCSPX-[\w-]{8,}
    | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,} | hooks\.slack\.com/services/\S+
    | eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
    | nvapi-[\w-]{8,} | r8_\w{8,} | gsk_\w{8,} | xai-\w{8,} | pplx-\w{8,} | tvly-[\w-]{8,}
    | npm_\w{8,} | pypi-[\w-]{12,} | dckr_pat_[\w-]{8,} | dop_v1_\w{8,} | lsv2_\w{8,}
    | SG\.[\w-]{8,}\.[\w-]{8,} | hv[sb]\.[\w-]{8,} | whsec_\w{8,} | sntrys_\w{8,}
    | shp(?:at|ss|ca|pa)_\w{8,} | tskey-[\w-]{8,} | lin_api_\w{8,} | glsa_\w{8,}
    | ATATT3[\w=-]{8,} | AGE-SECRET-KEY-\w+ | ntn_\w{8,} | dapi[0-9a-f]{16,}
    )[\w=/+-]*""",
    re.VERBOSE,
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)
_HIDE = rf"\1{HIDDEN}"
_LOGINS = (
    re.compile(r"(https?://)[^\s/?#\"']+(?=@)"),
    re.compile(r"(://)[^\s/?#:@\"']*:[^\s/?#\"']*(?=@)"),
    # a password with a slash in it, where what follows the colon is no port
    re.compile(r"(://)[^\s/:@]*:(?!\d+(?:/|$))[^\s@]+(?=@)"),
    re.compile(r"((?<![\w/:.‹-])[\w.+-]+:)[^\s@/:]+(?=@(?!sha\d)[\w-]+(?:[.:/]|$))"),
    re.compile(r"(\b(?:Bearer|Basic|Token|Digest)\s+)(?=\S*[\d=+/_-])[^\s\"',}]{6,}", re.I),
)
_NAME = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]{0,80})["'\])]{0,3}\s{0,8}(?::=|[:=])\s{0,8}""")
_OF_A_NAME = re.compile(
    r"""(["'])(?:(?!\1).)*\1?|\[[^\]]*\]?|(?:Bearer|Basic|Token)\s+[^\s"',}]+|[^\s"',;&}\])]+""",
    re.I | re.S,
)
_DRAWN = (
    (re.compile(r"(?<![\w/+.=-])[A-Za-z0-9/+]{40}(?![\w/+.=-])"), 0.25),
    (re.compile(r"[A-Za-z0-9+=]{20,}"), 0.35),
    (re.compile(r"[A-Za-z0-9_-]{32,}"), 0.45),
)
"""What a key may look like, and the least share of characters at which its kind (small, capital,
digit) changes: 0.62 of them where it was drawn at random, 0.38 in ViT-bigG-14-CLIPA-336-datacomp1b.
The first is one cloud's secret keys, which may hold slashes."""
_HEX = re.compile(r"(?<![\w/-])(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})(?![\w/-]|\.\w)")
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d*)?(?:e[+-]?\d+)?", re.I)
_ASSIGNED = re.compile(r"([-+~]*[A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_BETWEEN = re.compile(r"[\s,/._:|-]+")


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a command line, with what is or may be a secret replaced."""
    kept: list[str] = []
    name = ""  # the option whose value comes next
    for argument in arguments:
        option = len(argument) > 1 and argument[0] == "-" and not _NUMBER.fullmatch(argument)
        kept.append(_cut(_value("" if option else name, argument[:LOOKED_AT]), argument))
        if option:
            name = "" if "=" in argument else argument
        elif not takes_several(name):
            name = ""
    return tuple(kept)


def redacted_text(text: str) -> str:
    """Code, or an exception's words: only what is quoted or looks like a key is hidden, because
    `token = tokenizer(x)` is a program and no secret."""
    return _cut(_by_looks(_by_names(text[:LOOKED_AT], quoted=True)), text)


def _cut(kept: str, whole: str) -> str:
    most = LONGEST if len(whole) <= LOOKED_AT else min(LONGEST, len(kept) // 2)
    return kept if len(kept) <= most else f"{kept[:most]}… ({len(whole):,} characters)"


def looks_secret(text: str) -> bool:
    """Whether a value gives itself away, whatever it is called."""
    return _by_looks(text[:LOOKED_AT]) != text[:LOOKED_AT]


def _value(name: str, value: str) -> str:
    """`value` of the option `name`, or an argument by itself."""
    if is_secret(name):
        return HIDDEN if value else value
    if name in ("-u", "--user", "--login") and ":" in value:
        return f"{value.partition(':')[0]}:{HIDDEN}"
    if may_be_secret(name) and not _typed(value):
        return HIDDEN
    assigned = _ASSIGNED.fullmatch(value)  # --name=value, NAME=value as Hydra and env take it
    if assigned is not None:
        return f"{assigned[1]}={_value(assigned[1], assigned[2])}"
    return _by_looks(_by_names(value), is_hash(name))


def _typed(value: str) -> bool:
    """A number, a word, a path, a list of such: what people write by hand."""
    parts = _BETWEEN.split(value)
    return bool(_NUMBER.fullmatch(value)) or all(
        part.isalpha() or part.isdigit() or len(part) < 8 for part in parts
    )


def _by_names(text: str, quoted: bool = False) -> str:
    """`text` with the values of fields that are named like a secret replaced; `quoted`: of those
    the strings only."""
    kept, at = [], 0
    while (name := _NAME.search(text, at)) is not None:
        kept.append(text[at : name.end()])
        at = name.end()
        value = _OF_A_NAME.match(text, at) if is_secret(name[1]) else None
        if value is None or (quoted and (value[1] is None or len(value[0]) < 3)):
            continue
        quote = value[1] or ""
        kept.append(f"{quote}{HIDDEN}{quote}")
        at = value.end()
    return "".join((*kept, text[at:]))


def _by_looks(text: str, hashes: bool = False) -> str:
    """`text` with what looks like a secret by itself replaced."""
    if len(text) < 6:
        return text
    text = _MAKES.sub(HIDDEN, _PEM.sub(HIDDEN, text))
    for login in _LOGINS:
        text = login.sub(_HIDE, text)
    for pattern, least in _DRAWN:
        text = pattern.sub(partial(_if_drawn, least=least), text)
    return text if hashes else _HEX.sub(HIDDEN, text)


def _if_drawn(found: "re.Match[str]", least: float) -> str:
    """Letters of both cases and digits, changing kind all the time: drawn, not written."""
    kinds = [_kind(character) for character in found[0] if character not in "-_"]
    changes = sum(a != b for a, b in pairwise(kinds))
    drawn = {"a", "A", "0"} <= set(kinds) and changes >= least * len(kinds)
    return HIDDEN if drawn else found[0]


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    return "A" if character.isupper() else "a" if character.islower() else "+"
