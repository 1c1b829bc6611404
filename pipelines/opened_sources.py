"""The opened source of a conversion: the folders of annotations and images, and their paths that cannot be listed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from halofeed.pipelines.job import JobOptions
from halofeed.prep.sources.containers import container_kind
from halofeed.prep.sources.files import LocalFiles, RemoteFiles, check_source_path, source_files
from halofeed.prep.sources.walk import EMPTY_FOLDER, HIDDEN_FILE
from halofeed.storage.atomic_files import decode_name
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, Problem, SourceError

_MAX_SHOWN_FAULTS = 3


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Folders of the annotations and the images, and the name of the annotation file if the user gave one."""

    annotations: LocalFiles | RemoteFiles
    images: LocalFiles | RemoteFiles
    annotation_file: str | None

    def faults(self) -> dict[str, Problem]:
        """Return the problem of each path that could not be listed."""
        return {**self.annotations.faults(), **self.images.faults()}


def open_sources(options: JobOptions) -> Sources:
    """Open the source that the user named; raise UsageError where a local one does not exist."""
    source, annotation_file = options.source.rstrip("/") or "/", None
    if is_remote(source):
        # Not looked up: the extension shows whether the address is a file.
        folder, _, last = source.rpartition("/")
        if last.rpartition(".")[2] in ("json", "csv", "jsonl", "ndjson", "manifest") or container_kind(last):
            source, annotation_file = folder, last
    elif check_source_path("--source", source):
        source, annotation_file = os.path.dirname(source) or ".", decode_name(os.path.basename(source))
    annotations = source_files(source)
    images = annotations if options.images is None else source_files(options.images)
    return Sources(annotations=annotations, images=images, annotation_file=annotation_file)


@contextlib.contextmanager
def naming_faults(sources: Sources) -> Iterator[None]:
    """Add the paths that could not be listed to an error of the annotations, because they may explain it."""
    try:
        yield
    except AnnotationsError as error:
        lines = [
            f"  {path}: {SourceError(*problem)}"
            for path, problem in sources.faults().items()
            # Every source may have these, so they explain no error.
            if problem not in (HIDDEN_FILE, EMPTY_FOLDER)
        ]
        if not lines:
            raise
        if len(lines) > _MAX_SHOWN_FAULTS:
            lines[_MAX_SHOWN_FAULTS:] = [f"  and {len(lines) - _MAX_SHOWN_FAULTS} more"]
        raise AnnotationsError("\n".join([str(error), "these could not be listed:", *lines])) from error
