"""Addresses whose passwords and tokens are used in requests and appear in nothing that is printed or written.

    https://user:password@host/cards/1.0.0?token=abc    what requests are made with: `Address.full`
    https://***@host/cards/1.0.0                        what is printed and written: `str`

Libraries print addresses in their own errors too, whole or in parts. So every error of halofeed and every line that it
tells goes through `redacted`, which knows the secrets of all addresses of this process, and what addresses look like.
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
_LEAST_CHARACTERS, _LEAST_OF_QUERY = 6, 16
"""A shorter secret would be found in any text. A query's value stands in its address, so that only tokens count."""
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s'\"<>]+)")
_USER_WITH_SLASH: Final = re.compile(r"(?!\[)[^/?#@]*:(?![0-9]*(?:[/?#]|$)).*@", re.DOTALL)
"""A password that holds a slash, as keys of AWS do: a colon that no port follows, and an @ later."""
_USER: Final = re.compile(r"[^/?#]*@")
_secrets: set[str] = set()


class Address:
    """An address of a folder of files; as text it is without user, password and query.

    Args:
        text: the address, with ://.
        redirects: hosts, as `host` or `host:port`, to which a web server may send requests on; `*` any host.

    >>> address = Address("https://ann:pa55word@host/cards/1.0.0?token=abcd")
    >>> print(address, repr(address / "manifest.json"))
    https://***@host/cards/1.0.0 Address('https://***@host/cards/1.0.0/manifest.json')
    >>> (address / "manifest.json").full
    'https://ann:pa55word@host/cards/1.0.0/manifest.json?token=abcd'
    """

    __slots__ = ("_place", "_query", "_user", "redirects", "scheme")

    def __init__(self, text: str, redirects: tuple[str, ...] = ()) -> None:
        self.scheme, _, rest = text.partition("://")
        found = _user_in(rest)
        self._user, rest = rest[:found], rest[found:]
        place, self._query = _cut_query(rest)
        self._place = place.rstrip("/")
        self.redirects = redirects
        user = self._user.removesuffix("@")
        keep_secret(user)
        keep_secret(user.partition(":")[2])
        keep_secret(base64.b64encode(unquote(user).encode()).decode())  # as it stands in a request's header
        for _, value in parse_qsl(self._query[1:]):
            if len(value) >= _LEAST_OF_QUERY:
                keep_secret(value)

    def __reduce__(self) -> tuple[type[Address], tuple[str, tuple[str, ...]]]:
        return Address, (self.full, self.redirects)

    @property
    def full(self) -> str:
        """The address with its secrets, for requests alone."""
        return f"{self.scheme}://{self._user}{self._place}{self._query}"

    @property
    def has_user(self) -> bool:
        """Whether it states a user or a password."""
        return bool(self._user)

    @property
    def has_secrets(self) -> bool:
        """Whether it states a user, a password or a query."""
        return bool(self._user or self._query)

    def hidden_in(self, text: str) -> str:
        """A text of which this address, and parts of it, are what they are as text."""
        for secret in (self._user.removesuffix("@"), self._query[1:]):
            text = text.replace(secret, HIDDEN) if secret else text
        return redacted(text)

    def __truediv__(self, name: str) -> Address:
        """The address of what lies below this one."""
        below = Address.__new__(Address)
        below.scheme, below._user, below._query = self.scheme, self._user, self._query
        below._place, below.redirects = f"{self._place}/{name}", self.redirects
        return below

    def __str__(self) -> str:
        return f"{self.scheme}://{self._user and f'{HIDDEN}@'}{self._place}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __fspath__(self) -> str:
        return self.full

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and (self.full, self.redirects) == (other.full, other.redirects)

    def __hash__(self) -> int:
        return hash(self.full)


def address_of(path: str | os.PathLike[str]) -> Address | None:
    """The address that a path is; None of a path of this machine."""
    if isinstance(path, Address):
        return path
    text = os.fspath(path)
    return Address(text) if "://" in text else None


def keep_secret(text: str) -> None:
    """Have `redacted` find this text from now on, as it is and as it is written in addresses."""
    _secrets.update(form for form in (text, unquote(text)) if len(form) >= _LEAST_CHARACTERS)


def redacted(text: str) -> str:
    """A text without the secrets of the addresses in it, and of those that this process knows.

    >>> redacted("Cannot connect to https://ann:pa55@host:80/a?sig=b2 and s3://b/a@b.jpg")
    'Cannot connect to https://***@host:80/a?*** and s3://b/a@b.jpg'
    """
    if "://" in text:
        text = _ADDRESS.sub(_without_secrets, text)
    for secret in sorted((one for one in tuple(_secrets) if one in text), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def printable_cause(error: Exception) -> Exception | None:
    """An error of a library, to be raised from; None where its traceback would print a secret."""
    told = "".join([*traceback.format_exception(error), repr(error)])
    return error if redacted(told) == told else None


def _without_secrets(found: re.Match[str]) -> str:
    rest = found[2]
    user = _user_in(rest)
    place, query = _cut_query(rest[user:])
    return f"{found[1]}{f'{HIDDEN}@' if user else ''}{place}{f'?{HIDDEN}' if len(query) > 1 else query}"


def _user_in(rest: str) -> int:
    """How many characters after :// are user, password and @."""
    found = _USER_WITH_SLASH.match(rest) or _USER.match(rest)
    return found.end() if found else 0


def _cut_query(rest: str) -> tuple[str, str]:
    """What stands before a query or fragment, and from its mark on."""
    cut = min(at if (at := rest.find(mark)) >= 0 else len(rest) for mark in "?#")
    return rest[:cut], rest[cut:]
