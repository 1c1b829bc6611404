"""Which errors halofeed raises.

HalofeedError
├── UsageError          the caller asked for something impossible (exit code 2); also a ValueError
│   └── PartitionError  a partition that the mesh, the batch or the rules refuse
├── SourceError         one input cannot be converted; the job writes it to rejected.jsonl and goes on
├── AnnotationsError    the annotations as a whole cannot be used (unknown label, duplicate id)
├── ManifestError       a manifest is missing, of another version, or wrong; lists every problem
├── CorruptFileError    bytes on disk are not what was written
├── StoreError          an object store or web server refuses, does not answer or cuts off
├── SystemLimitError    the system refuses what is needed, such as one more open file
├── JobError            the conversion as a whole failed
└── TrainingError       a training run cannot go on

Which extra of the package brings a library that is not there?
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from halofeed.system.addresses import redacted

Problem = tuple[str, str, str]
"""(stage, reason, detail) of one input that cannot be converted, as `SourceError` has them."""


class HalofeedError(Exception):
    """Base of every error that halofeed raises on purpose; `exit_code` is the command line's.

    Its text holds no password and no token of an address.
    """

    exit_code = 1

    def __init__(self, *parts: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in parts))


class UsageError(HalofeedError, ValueError):
    """The caller asked for something that cannot be: a wrong option, name or combination."""

    exit_code = 2


class MissingExtraError(UsageError, ImportError):
    """An optional library is not installed; the message says which extra of halofeed brings it."""


class PartitionError(UsageError):
    """A partition breaks a rule of `halofeed.schemas.partition`."""


class SourceError(HalofeedError):
    """One input cannot be converted.

    Args:
        stage: where it failed: selection, annotation, read, decode, resize, boxes, encode.
        reason: a short phrase that is the same for every input with this fault, to be counted.
        detail: what is particular to this input.

    >>> print(SourceError("decode", "file is truncated", "8 bytes missing"))
    decode: file is truncated (8 bytes missing)
    """

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = self.args

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}" + (f" ({self.detail})" if self.detail else "")

    def at(self, place: str) -> SourceError:
        """The same error of a part of the input, which it names."""
        return SourceError(self.stage, self.reason, f"{place}: {self.detail}" if self.detail else place)


class AnnotationsError(HalofeedError):
    """The annotations as a whole cannot be used."""


_MOST_SHOWN = 50


class ManifestError(HalofeedError):
    """A manifest that cannot be used; `problems` holds every (path in the document, what is wrong).

    >>> print(ManifestError("manifest.json", [("splits.train.records", "expected an integer, got 'x'")]))
    manifest.json: 1 problem
      splits.train.records: expected an integer, got 'x'
    """

    def __init__(self, where: str, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple((path, redacted(message)) for path, message in problems)
        super().__init__(where, self.problems)
        self.where = self.args[0]

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [f"{self.where}: {count} problem" + ("s" if count != 1 else "")]
        lines += [f"  {path}: {message}" for path, message in self.problems[:_MOST_SHOWN]]
        return "\n".join(lines + ([f"  and {count - _MOST_SHOWN} more"] if count > _MOST_SHOWN else []))


class CorruptFileError(HalofeedError):
    """Bytes on disk are not what was written; the message names file, offset and record."""


class StoreError(HalofeedError):
    """Bytes cannot be had from an object store or web server; the message names the object, and which ones."""


class SystemLimitError(HalofeedError):
    """The system refuses what is needed, such as one more open file; the message says how to allow it."""


class NotRunError(HalofeedError):
    """The job was described, as was asked, and not run."""

    exit_code = 0


class JobError(HalofeedError):
    """The conversion as a whole failed."""


class LostJobError(JobError):
    """A job on another runner failed for no fault that its workers name; started again it may go on."""


class TrainingError(HalofeedError):
    """A training run cannot go on: the loss is not a number, or the data ended before the first step."""


@contextlib.contextmanager
def require_extra(extra: str, *modules: str) -> Iterator[None]:
    """Turn a missing module within into the command that installs it.

    Raises:
        MissingExtraError: one of `modules` is not installed.

    >>> with needing("tf", "no_such_module"):
    ...     import no_such_module
    Traceback (most recent call last):
        ...
    halofeed.errors.MissingExtraError: no_such_module is not installed; pip install 'halofeed[tf]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in modules:
            raise MissingExtraError(
                f"{error.name} is not installed; pip install 'halofeed[{extra}]'"
            ) from error
        raise
