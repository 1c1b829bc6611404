"""Addresses whose passwords and tokens are used in requests and never printed or written.

    https://user:password@host/cards/1.0.0?token=abc    Address.full, for requests
    https://***@host/cards/1.0.0                        str(address), for messages and files

Libraries print addresses, or parts of them, in their own errors. So halofeed passes every error and status line
through `redacted`, which knows the secrets of all addresses of this process.
"""

from __future__ import annotations

import base64
import os
import re
import traceback
from typing import Final
from urllib.parse import parse_qsl, unquote

HIDDEN: Final = "***"
NO_USER: Final = (
    "this address takes no user and no password; leave them out, and give credentials as "
    "docs/stores.md says, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
)
NO_QUERY: Final = (
    "this address takes no query and no fragment; leave out what follows ? or #, and give credentials as "
    "docs/stores.md says"
)
_SHORTEST_SECRET, _SHORTEST_TOKEN = 6, 16
"""Characters of a secret and of a secret value in a query. Shorter ones occur in ordinary text."""
_ONE_SLASH: Final = re.compile(r"(s3a?|gs|gcs|https?|hdfs):/(?!/)")
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s'\"<>]+)")
_USER_WITH_SLASH: Final = re.compile(r"(?!\[)[^/?#@]*:(?![0-9]*(?:[/?#]|$)).*@", re.DOTALL)
"""Pattern of a password with a slash, as in AWS keys: a colon without a port after it, and a later @."""
_USER: Final = re.compile(r"[^/?#]*@")
_secrets: set[str] = set()


class Address:
    """Address of a folder of files. Its text has no user, password or query.

    Args:
        text: the address, with ://.
        redirects: hosts, as `host` or `host:port`, to which a web server may redirect; `*` allows any host.

    >>> address = Address("https://ann:pa55word@host/cards/1.0.0?token=abcd")
    >>> print(address, repr(address / "manifest.json"))
    https://***@host/cards/1.0.0 Address('https://***@host/cards/1.0.0/manifest.json')
    >>> (address / "manifest.json").full
    'https://ann:pa55word@host/cards/1.0.0/manifest.json?token=abcd'
    """

    __slots__ = ("_location", "_query", "_user", "redirects", "scheme")

    def __init__(self, text: str, redirects: tuple[str, ...] = ()) -> None:
        self.scheme, _, rest = text.partition("://")
        user_length = _user_length(rest)
        self._user, rest = rest[:user_length], rest[user_length:]
        location, self._query = _split_query(rest)
        self._location = location.rstrip("/")
        self.redirects = redirects
        user = self._user.removesuffix("@")
        keep_secret(user)
        keep_secret(user.partition(":")[2])
        keep_secret(base64.b64encode(unquote(user).encode()).decode())  # the form in the header of a request
        for _, value in parse_qsl(self._query[1:]):
            if len(value) >= _SHORTEST_TOKEN:
                keep_secret(value)

    def __reduce__(self) -> tuple[type[Address], tuple[str, tuple[str, ...]]]:
        return Address, (self.full, self.redirects)

    @property
    def full(self) -> str:
        """The address with its secrets, for requests only."""
        return f"{self.scheme}://{self._user}{self._location}{self._query}"

    @property
    def has_user(self) -> bool:
        """True if the address has a user or a password."""
        return bool(self._user)

    @property
    def has_query(self) -> bool:
        """True if the address has a query or a fragment."""
        return len(self._query) > 1

    def hidden_in(self, text: str) -> str:
        """Return a text in which the secrets of this address are hidden."""
        for secret in (self._user.removesuffix("@"), self._query[1:]):
            text = text.replace(secret, HIDDEN) if secret else text
        return redacted(text)

    def __truediv__(self, name: str) -> Address:
        """Return the address of a file or folder below this one."""
        child = Address.__new__(Address)
        child.scheme, child._user, child._query = self.scheme, self._user, self._query
        child._location, child.redirects = f"{self._location}/{name}", self.redirects
        return child

    def __str__(self) -> str:
        return f"{self.scheme}://{self._user and f'{HIDDEN}@'}{self._location}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __fspath__(self) -> str:
        return self.full

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and (self.full, self.redirects) == (other.full, other.redirects)

    def __hash__(self) -> int:
        return hash(self.full)


def is_remote(path: str) -> bool:
    """Return whether a path is an address such as gs://, s3:// or hdfs://."""
    return "://" in path


def address_of(path: str | os.PathLike[str]) -> Address | None:
    """Return a path as an address; None for a path of this machine."""
    if isinstance(path, Address):
        return path
    text = os.fspath(path)
    return Address(text) if is_remote(text) else None


def meant_address(path: str) -> str | None:
    """Return the address that a path with a single slash means; None for other paths.

    >>> meant_address("s3:/bucket/cards"), meant_address("data/cards")
    ('s3://bucket/cards', None)
    """
    return _ONE_SLASH.sub(r"\1://", path) if _ONE_SLASH.match(path) else None


def keep_secret(text: str) -> None:
    """Register a secret that `redacted` hides from now on, also in its URL-encoded form."""
    _secrets.update(form for form in (text, unquote(text)) if len(form) >= _SHORTEST_SECRET)


def redacted(text: str) -> str:
    """Return a text without the secrets of the addresses in it and without the registered secrets.

    >>> redacted("Cannot connect to https://ann:pa55@host:80/a?sig=b2 and s3://b/a@b.jpg")
    'Cannot connect to https://***@host:80/a?*** and s3://b/a@b.jpg'
    """
    if "://" in text:
        text = _ADDRESS.sub(_without_secrets, text)
    for secret in sorted((one for one in tuple(_secrets) if one in text), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def printable_cause(error: Exception) -> Exception | None:
    """Return a library's error as the cause of a new one; None where its traceback would print a secret."""
    printed = "".join([*traceback.format_exception(error), repr(error)])
    return error if redacted(printed) == printed else None


def _without_secrets(found: re.Match[str]) -> str:
    rest = found[2]
    user_length = _user_length(rest)
    location, query = _split_query(rest[user_length:])
    return f"{found[1]}{f'{HIDDEN}@' if user_length else ''}{location}{f'?{HIDDEN}' if len(query) > 1 else query}"


def _user_length(rest: str) -> int:
    """Return the number of characters after :// that are user, password and @."""
    found = _USER_WITH_SLASH.match(rest) or _USER.match(rest)
    return found.end() if found else 0


def _split_query(rest: str) -> tuple[str, str]:
    """Return the part before a query or fragment, and the query or fragment with its first character."""
    end = min(at if (at := rest.find(mark)) >= 0 else len(rest) for mark in "?#")
    return rest[:end], rest[end:]
