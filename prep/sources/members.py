"""Pictures inside container files: TFRecord files, tar files, Parquet files and ArrayRecord files.

A member has a path, so that it is listed, stamped, read and rejected like any other source file:

    data/train-000.tar//cats/0001@1536+20480-1a2b3c4d.jpg       bytes 1536 to 22016 of data/train-000.tar
    data/train-00000-of-00002.parquet//000017@17.3+20480-1a2b3c4d.jpg      row 17 of its column 3
    data/x-train.array_record-00000-of-00002//000017@17.90+20480-1a2b3c4d.jpg      record 17, from its byte 90

No path of a file holds `//`. The CRC32C at the end shows whether the container is still the one that was listed. A key
(`member_key`) has neither position nor checksum: `data/train-000.tar//cats/0001.jpg`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from halofeed.system.checksum import crc32c

_MEMBER = re.compile(r"(.+?)//(.+)@(\d+)(?:\.(\d+))?\+(\d+)-([0-9a-f]{8})(\.[a-z0-9]+)?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One picture inside a container file.

    Args:
        container: path of the container below the sources' root.
        name: name within the container, without extension.
        start: offset of its first byte in the container, or its row.
        size: number of bytes.
        checksum: CRC32C of its bytes.
        extension: extension with its dot, in lower case; "" for another content than a picture.
        column: column of a Parquet file, counted over all leaves of the schema; first byte within a record of an
            ArrayRecord file; None for a range of the container's bytes.
    """

    container: str
    name: str
    start: int
    size: int
    checksum: int
    extension: str = ""
    column: int | None = None

    @property
    def path(self) -> str:
        """Return the path of this member, from which `parse_member` makes it again.

        >>> Member(container="a.tar", name="b/c", start=512, size=9, checksum=1, extension=".jpg").path
        'a.tar//b/c@512+9-00000001.jpg'
        """
        column = "" if self.column is None else f".{self.column}"
        return f"{self.container}//{self.name}@{self.start}{column}+{self.size}-{self.checksum:08x}{self.extension}"

    def matches(self, data: bytes) -> bool:
        """Return whether bytes are those that were listed."""
        return len(data) == self.size and crc32c(data) == self.checksum


def parse_member(path: str) -> Member | None:
    """Return the member that a path names; None for the path of a file.

    >>> parse_member("a.parquet//000017@17.3+9-00000001.jpg").column, parse_member("a//b.jpg"), parse_member("b.jpg")
    (3, None, None)
    """
    if "//" not in path or (found := _MEMBER.fullmatch(path)) is None:
        return None
    container, name, start, column, size, checksum, extension = found.groups()
    return Member(
        container=container,
        name=name,
        start=int(start),
        size=int(size),
        checksum=int(checksum, 16),
        extension=extension or "",
        column=None if column is None else int(column),
    )


def container_of(path: str) -> str | None:
    """Return the container of a member; None for the path of a file.

    >>> container_of("a.tar//b@512+9-00000001.jpg"), container_of("a.tar")
    ('a.tar', None)
    """
    member = parse_member(path)
    return None if member is None else member.container


def member_key(path: str) -> str:
    """Return the key of a path: for a member, its container and name without its position and checksum.

    >>> member_key("a.tar//b@512+9-00000001.jpg"), member_key("b.jpg")
    ('a.tar//b.jpg', 'b.jpg')
    """
    member = parse_member(path)
    return path if member is None else f"{member.container}//{member.name}{member.extension}"
