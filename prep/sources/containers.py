"""Container files, whose members are pictures: their names, their shards, and reading them in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from halofeed.prep.sources.array_records import is_array_record
from halofeed.prep.sources.files import SourceFiles, SourceStream
from halofeed.prep.sources.members import Member
from halofeed.system.checksum import crc32c
from halofeed.system.errors import AnnotationsError, SourceError

_UNSAFE = re.compile(r"[\x00-\x1f\x7f;:\\%\"*?<>|]|^/+|(?<=/)/+|(?:(?<=/)|^)\.{1,2}(?=/|$)|/$")
_SHARD = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})(\.[^/]*)?")
_NAME = re.compile(
    r"[^/]*\.(?:(tar)|(parquet)|(?:tfrecords?|record)(?:-\d{5,}-of-\d{5,})?)(?:\.(?:gz|bz2|xz|zst))?",
    re.IGNORECASE,
)
_UNPACK = {
    b"\x1f\x8b": ("gz", "gunzip"),
    b"BZh": ("bz2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zst", "zstd -d"),
}
UNPACK_COMMANDS = {f".{extension}": f"{command} -k" for extension, command in _UNPACK.values()}
"""Command that unpacks a file of each extension and keeps the packed one."""
_SNIFFED_BYTES = 64


def unpack_command(head: bytes) -> str:
    """Return the command that unpacks a compressed file, by its first bytes; "" for another file.

    >>> unpack_command(b"BZh91AY"), unpack_command(b"PAR1")
    ('bunzip2 -k', '')
    """
    return next((f"{command} -k" for start, (_, command) in _UNPACK.items() if head.startswith(start)), "")


def container_kind(path: str) -> str:
    """Return "tar", "parquet", "tfrecord" or "array_record" by the name of a file; "" for another.

    >>> [container_kind(name) for name in ("a.tar", "b.TFRecord-00000-of-00002", "c.record.gz", "d.jpg")]
    ['tar', 'tfrecord', 'tfrecord', '']
    """
    if is_array_record(path):
        return "array_record"
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        return ""
    return "tar" if found[1] else "parquet" if found[2] else "tfrecord"


def check_shards(paths: Sequence[str]) -> None:
    """Raise AnnotationsError if the names of shards show that some of them are missing.

    >>> check_shards(["a-00000-of-00002.parquet", "a-00001-of-00002.parquet", "b.parquet"])
    >>> try:
    ...     check_shards(["a-00000-of-00002.parquet"])
    ... except AnnotationsError as error:
    ...     print(error)
    a-00001-of-00002.parquet is missing, one of 2 shards; add it, or name one shard with --source
    """
    listed, checked = set(paths), set()
    for path in paths:
        found = _SHARD.fullmatch(path)
        # Each set of shards is checked once.
        if found is None or (shards := (found[1], found[3], found[4] or "")) in checked:
            continue
        checked.add(shards)
        start, count, end = shards
        # A name may state billions of shards. One more number than there are files is enough to find a missing one.
        numbers = range(len(paths) + 1 if int(count) > len(paths) else int(count))
        names = (f"{start}-{number:0{len(found[2])}d}-of-{count}{end}" for number in numbers)
        if missing := next((name for name in names if name not in listed), None):
            raise AnnotationsError(
                f"{missing} is missing, one of {int(count):,} shards; add it, or name one shard with --source"
            )


@contextmanager
def open_container(files: SourceFiles, path: str) -> Iterator[ContainerReader]:
    """Open a container for reading in order.

    Raises:
        AnnotationsError: it cannot be read; or it is compressed, so that its pictures have no place in it.
    """
    place = shlex.quote(f"{files.root}/{path}")
    try:
        head = files.head(path, 8)
        packed = next((fix for start, fix in _UNPACK.items() if head.startswith(start)), None)
        if packed is not None:
            ending, command = packed
            fix = f"{command} {place}"
            # gunzip and the like refuse a name without their extension.
            if not path.endswith(f".{ending}"):
                fix = f"mv {place} {place}.{ending} && {command} {place}.{ending}"
            raise AnnotationsError(
                f"{path}: it is compressed, and pictures are read from their places in it; unpack it with {fix}"
            )
        with closing(files.open(path)) as stream:
            yield ContainerReader(stream)
    except (SourceError, OSError) as error:
        raise AnnotationsError(f"{path} in {files.root}: {error}; name a file that can be read") from error


class ContainerReader:
    """Reader of a container's bytes in order.

    Attributes:
        offset: bytes read so far.
    """

    def __init__(self, stream: SourceStream) -> None:
        self._stream = stream
        self.offset = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer only at the end of the file."""
        parts = []
        while size and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
            self.offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def describe_member(container: str, name: str, data: bytes, start: int, column: int | None = None) -> Member:
    """Return the member with these bytes; its extension is that of its content, "" if that is no picture.

    >>> member = describe_member("a.tar", "b;c.jpeg", b"GIF89a", 512)
    >>> member.name, member.size, member.extension
    ('b%3Bc', 6, '.gif')
    """
    # Imported here because the command line's help imports the layouts and must not load the decoders.
    from halofeed.prep.formats.picture import sniff

    try:
        kind = sniff(data[:_SNIFFED_BYTES])
    except SourceError:
        kind = ""
    return Member(
        container=container,
        name=member_name(name),
        start=start,
        size=len(data),
        checksum=crc32c(data),
        extension=".jpg" if kind == "jpeg" else f".{kind}" if kind else "",
        column=column,
    )


def member_name(name: str) -> str:
    """Return a name without its extension, with escapes for what the path of a member must not hold.

    >>> member_name("/a//../b;1.jpg"), member_name("cats/0001.v2.png"), member_name("")
    ('%2Fa/%2F%2E%2E/b%3B1', 'cats/0001.v2', '_')
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    plain = stem if stem and dot and extension.isalnum() else last
    return (
        _UNSAFE.sub(lambda match: "".join(f"%{ord(one):02X}" for one in match[0]), folder + slash + plain)
        or "_"
    )
