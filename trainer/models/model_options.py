"""Options of models in groups: keywords for the configuration, frozen dataclasses for the code.

A configuration names each option (`model.width`), and messages list them all, so they stay keywords of the model's
class. A constructor of 15 parameters is hard to read and to check, so it takes the options in groups of one subject.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

Init = Callable[..., None]


def takes_options(**groups: type) -> Callable[[Init], Init]:
    """Return a decorator of `__init__` by which the fields of option groups become its keywords.

    Args:
        groups: dataclass of options for each parameter of `__init__` that takes a group.

    Returns:
        A decorator. The signature has the fields of all groups, with their defaults, in place of the groups.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Size:
    ...     width: int = 8
    ...     depth: int = 2
    >>> class Net:
    ...     @takes_options(size=Size)
    ...     def __init__(self, *, classes: int, size: Size) -> None:
    ...         self.size = size
    >>> Net(classes=3, width=4).size
    Size(width=4, depth=2)
    >>> list(inspect.signature(Net).parameters)
    ['classes', 'width', 'depth']
    """
    names = {group: [field.name for field in dataclasses.fields(kind)] for group, kind in groups.items()}

    def decorate(init: Init) -> Init:
        @functools.wraps(init)
        def with_groups(*arguments: Any, **keywords: Any) -> None:
            made = {
                group: kind(**{name: keywords.pop(name) for name in names[group] if name in keywords})
                for group, kind in groups.items()
            }
            # An unknown keyword is left over, and `init` refuses it as any function does.
            init(*arguments, **keywords, **made)

        signature = inspect.signature(init)
        own = [parameter for name, parameter in signature.parameters.items() if name not in groups]
        options = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
            for kind in groups.values()
            for field in dataclasses.fields(kind)
        ]
        # `Model.options` and the check of a configuration read the signature.
        with_groups.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return with_groups

    return decorate
