"""Which extra of the package brings a library that is not there?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from halofeed.schemas.errors import MissingExtraError


@contextlib.contextmanager
def needing(extra: str, *modules: str) -> Iterator[None]:
    """Turn a missing module within into the command that installs it.

    Raises:
        MissingExtraError: one of `modules` is not installed.

    >>> with needing("tf", "no_such_module"):
    ...     import no_such_module
    Traceback (most recent call last):
        ...
    halofeed.schemas.errors.MissingExtraError: no_such_module is not installed; pip install 'halofeed[tf]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in modules:
            raise MissingExtraError(
                f"{error.name} is not installed; pip install 'halofeed[{extra}]'"
            ) from error
        raise
