"""Whether a name, of an option, a variable or a field, says that what it holds is a secret."""

import re
from functools import lru_cache

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
