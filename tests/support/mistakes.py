"""How an everyday mistake is tried: a command that must end in what, where and the cure before a record is written."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from tests.support.conversions import halofeed_here

Given = ParamSpec("Given")
Prepare = Callable[[Path], list[object]]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What somebody gets wrong.

    `prepare` draws the source into an empty folder and returns the arguments of `halofeed convert` beside --out and
    --name. Each of `says` is a regular expression that the message must hold: what, where, and the cure.
    """

    prepare: Prepare
    says: tuple[str, ...]
    exit_code: int


def usage(prepare: Prepare, *says: str) -> Mistake:
    """A mistake of the command line itself."""
    return Mistake(prepare=prepare, says=says, exit_code=2)


def refused(prepare: Prepare, *says: str) -> Mistake:
    """A mistake that only the data show."""
    return Mistake(prepare=prepare, says=says, exit_code=1)


def preparing(draw: Callable[Concatenate[Path, Given], list[object]]) -> Callable[Given, Prepare]:
    """Give what draws a source, the folder its first argument, the others now and the folder later."""
    return lambda *more, **options: lambda source: draw(source, *split_words(more), **options)


def split_words(words: Iterable[Any]) -> list[Any]:
    """Words of a command; options and their values may stand in one text."""
    return [
        word
        for one in words
        for word in (one.split(" ") if isinstance(one, str) and one.startswith("--") else [one])
    ]


def check(mistake: Mistake, folder: Path) -> None:
    """Assert that the command ends with the right message, and that no record was written."""
    source, out = folder / "source", folder / "out"
    source.mkdir()
    given = ["convert", *split_words(mistake.prepare(source)), "--out", out, "--name", "set"]
    done = halofeed_here(*given)
    message = done.stderr
    assert done.returncode == mistake.exit_code, f"exit {done.returncode}\n{done.stdout}\n{message}"
    for pattern in mistake.says:
        assert re.search(pattern, message), f"no {pattern!r} in:\n{message}"
    assert "Traceback" not in message
    assert not written_shards(out), "records were written"


def written_shards(out: Path) -> list[Path]:
    """The shards below a folder that hold a record."""
    return sorted(path for path in out.rglob("*.tfrecord-*") if path.stat().st_size)
