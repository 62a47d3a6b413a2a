"""Which names are secret: those under which a secret value is likely, such as ``password`` or ``api_token``.

Among them are all names that Django hides in its error reports, and that the client of Sentry leaves out by default.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

MAX_NAME = 200

# The first mark a name as secret anywhere in it, the endings at the end of a word, the words as a word of their own,
# and the last only as the whole name.
STEMS = (
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "accesskey",
    "accountkey",
    "storagekey",
    "masterkey",
    "sharedkey",
    "sshkey",
    "authkey",
    "sessionkey",
    "subscriptionkey",
    "privatekey",
    "encryptionkey",
    "signingkey",
    "cookie",
    "sessionid",
    "phpsessid",
    "connectionstring",
    "requirepass",
    "masterauth",
    "dbpass",
    "userpass",
)
ENDINGS = ("token", "tokens", "pwd", "session")
WORDS = frozenset(
    {
        "token",
        "tokens",
        "pwd",
        "pass",
        "dsn",
        "jwt",
        "auth",
        "oauth",
        "bearer",
        "signature",
        "csrf",
        "xsrf",
        "otp",
        "totp",
    }
)
WHOLE = frozenset({"connectsid", "symfony", "ipaddress", "remoteaddr", "xforwardedfor", "xrealip"})
# In the names of settings, which are written in capitals, as Django has it.
IN_SETTINGS = ("API", "AUTH", "TOKEN", "KEY", "SECRET", "PASS", "SIGNATURE", "HTTP_COOKIE")
# Parameters of addresses whose names are too usual to be secret elsewhere.
IN_ADDRESSES = frozenset({"key", "sig", "api"})
# Headers whose value is one secret up to the end of the line, although it has the form of pairs.
_HEADERS = ("cookie", "authorization")

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[\W_]+")
_EXCEPTION = re.compile(r"(?:.*\.)?[A-Z]\w*(?:Error|Exception|Warning|Failure|Denied|Expired|Invalid|Missing|NotFound)")
_COUNTS = frozenset({"max", "min", "used", "count", "total", "limit"})


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is likely to be secret, regardless of how the name is spelled."""
    return _is_secret_name(name[:MAX_NAME])


@lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    """The answer for a name that is cut already, so that the cache stays small."""
    plain = unicodedata.normalize("NFKC", name)
    if plain.isupper() and any(part in plain for part in IN_SETTINGS):
        return True
    words = [word for word in _NOT_WORD.split(_CAMEL_CASE_BOUNDARY.sub("_", plain).lower()) if word]
    whole = "".join(words)
    return (
        whole in WHOLE or any(stem in whole for stem in STEMS) or whole.endswith(ENDINGS) or not WORDS.isdisjoint(words)
    ) and not _counts(words)


def _counts(words: list[str]) -> bool:
    """Whether the name is that of a number of tokens, such as ``max_tokens`` or ``tokens_used``."""
    return "tokens" in words and not _COUNTS.isdisjoint(words)


def is_exception(name: str) -> bool:
    """Whether a name is that of a class of exceptions, after which a message follows and no value."""
    return _EXCEPTION.fullmatch(name[:MAX_NAME]) is not None


def is_header(name: str) -> bool:
    """Whether the value of a secret name is that of a header that is secret as a whole."""
    return any(header in name[:MAX_NAME].lower() for header in _HEADERS)


def find_secret_names(schema: Any, *, by_name_only: str) -> list[str]:
    """The properties in a JSON Schema, at any depth, that have secret names and hold texts.

    Properties of the format ``by_name_only`` hold only the name of a secret and are allowed.
    """
    found: list[str] = []
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            for name, described in properties.items() if isinstance(properties, dict) else ():
                if is_secret_name(str(name)) and _holds_text(described, by_name_only):
                    found.append(str(name))
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return sorted(set(found))


def _holds_text(described: Any, by_name_only: str) -> bool:
    if not isinstance(described, dict):
        return False
    inside = [described.get("items"), described.get("additionalProperties"), *described.get("anyOf", [])]
    is_text = described.get("type") == "string" and described.get("format") != by_name_only
    return is_text or any(_holds_text(part, by_name_only) for part in inside)
