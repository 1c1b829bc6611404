"""Errors that halofeed raises.

HalofeedError
├── UsageError          the caller asked for something impossible (exit code 2); also a ValueError
│   ├── ArgumentsError  a call with an unknown, a missing or one argument too many; also a TypeError
│   ├── ChangedSourceError  the data set that is there was made of other sources or options
│   ├── MissingExtraError  an optional library is missing; also an ImportError
│   └── PartitionError  a partition that the mesh, the batch or the rules refuse
├── SourceError         one input cannot be converted; the job writes it to rejected.jsonl and continues
├── AnnotationsError    no annotation can be used (unknown label, duplicate id)
├── ManifestError       a manifest is missing, of another version, or wrong; lists every problem
├── CorruptFileError    bytes on disk differ from what was written
├── StoreError          an object store or web server refuses a request, or does not complete it
├── SystemLimitError    the system refuses a resource, such as one more open file
├── NotRunError         the job was only described, as requested (exit code 0)
├── JobError            the conversion failed
│   └── LostJobError    a job on another runner was lost; a second attempt may succeed
└── TrainingError       a training run cannot continue
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from halofeed.system.addresses import redacted

Problem = tuple[str, str, str]
"""(stage, reason, detail) of an input that cannot be converted, as in `SourceError`."""


class HalofeedError(Exception):
    """Base class of halofeed's errors; `exit_code` is the exit status of the command line.

    The text contains no password and no token of an address.
    """

    exit_code = 1

    def __init__(self, *parts: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in parts))


class UsageError(HalofeedError, ValueError):
    """Wrong option, name or combination of the caller."""

    exit_code = 2


class ArgumentsError(UsageError, TypeError):
    """Call with an unknown, a missing or one argument too many; the message says how to call."""


class ChangedSourceError(UsageError):
    """Data set that is there already and was made of other sources or options; the message says what differs."""


class MissingExtraError(UsageError, ImportError):
    """Missing optional library; the message names the extra of halofeed that installs it."""


class PartitionError(UsageError):
    """Partition that breaks a rule of `halofeed.schemas.partition`."""


class SourceError(HalofeedError):
    """Input that cannot be converted.

    Args:
        stage: stage of the failure: selection, annotation, read, decode, resize, boxes, encode.
        reason: short phrase that is the same for every input with this problem, so that it can be counted.
        detail: particulars of this input.

    >>> print(SourceError("decode", "file is truncated", "8 bytes missing"))
    decode: file is truncated (8 bytes missing)
    """

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = self.args

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}" + (f" ({self.detail})" if self.detail else "")

    def at(self, place: str) -> SourceError:
        """Return the same error with the name of a part of the input."""
        return SourceError(self.stage, self.reason, f"{place}: {self.detail}" if self.detail else place)


class AnnotationsError(HalofeedError):
    """Annotations that cannot be used."""


_MAX_SHOWN = 50


class ManifestError(HalofeedError):
    """Manifest that cannot be used; `problems` holds every (path in the document, problem).

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
        lines += [f"  {path}: {message}" for path, message in self.problems[:_MAX_SHOWN]]
        return "\n".join(lines + ([f"  and {count - _MAX_SHOWN} more"] if count > _MAX_SHOWN else []))


class CorruptFileError(HalofeedError):
    """File whose bytes differ from what was written; the message names the file, the offset and the record."""


class StoreError(HalofeedError):
    """Failed request to an object store or web server; the message names the object and the bytes."""


class SystemLimitError(HalofeedError):
    """Refused resource of the system, such as one more open file; the message says how to allow it."""


class NotRunError(HalofeedError):
    """Job that was only described, as the user requested."""

    exit_code = 0


class JobError(HalofeedError):
    """Failed conversion."""


class LostJobError(JobError):
    """Job on another runner that failed without an error of its workers; a second attempt may succeed."""


class TrainingError(HalofeedError):
    """Training run that cannot continue: the loss is not a number, or the data ended before the first step."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this halofeed: of its checkout, of its file, or of a release.

    >>> install_command("tf").endswith("[tf]'")
    True
    """
    import json
    import shlex
    import shutil
    import sys
    from importlib import metadata
    from pathlib import Path

    # The pip of the PATH may be another interpreter's, if no virtual environment is activated.
    found = shutil.which("pip")
    own = found is None or Path(found).parent == Path(sys.executable).parent
    pip = "pip" if own else f"{shlex.quote(sys.executable)} -m pip"
    root = Path(__file__).resolve().parents[1]
    # Of a checkout, which an editable installation uses in place.
    if (root / "pyproject.toml").is_file():
        return f"{pip} install -e '{root}[{extra}]'"
    with contextlib.suppress(metadata.PackageNotFoundError):
        # PEP 610: pip writes it for an installation from a file or an address, and not for one from an index.
        if source := metadata.distribution("halofeed").read_text("direct_url.json"):
            return f"{pip} install 'halofeed[{extra}] @ {json.loads(source)['url']}'"
    return f"{pip} install 'halofeed[{extra}]'"


@contextlib.contextmanager
def require_extra(extra: str, *modules: str) -> Iterator[None]:
    """Replace the error of a missing module in a block by the command that installs it.

    Args:
        extra: extra of halofeed that installs the modules.
        *modules: names of the modules.

    Raises:
        MissingExtraError: one of `modules` is not installed.

    >>> with require_extra("tf", "no_such_module"):  # doctest: +ELLIPSIS
    ...     import no_such_module
    Traceback (most recent call last):
        ...
    halofeed.system.errors.MissingExtraError: no_such_module is not installed; pip install ...[tf]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        for one in (error, error.__cause__):  # JAX raises an error without a name from that of jaxlib
            name = getattr(one, "name", None) or ""
            if name.partition(".")[0] in modules:
                raise MissingExtraError(f"{name} is not installed; {install_command(extra)}") from error
        raise
