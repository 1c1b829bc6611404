"""How one HTML file comes to say what is in a data set, what was rejected and why: `write_report`."""

from __future__ import annotations

import contextlib
import json
import math
import os
from importlib.resources import files
from pathlib import Path

from halofeed.inspection import gallery, howto, scan_gallery, sections, volume_sections
from halofeed.inspection.display import display_of
from halofeed.inspection.facts import Facts
from halofeed.inspection.markup import Markup, element, join
from halofeed.inspection.planes import load_scan
from halofeed.inspection.samples import choose, find_candidates, load_sample, open_sources
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.layout import REJECTED, local_folder
from halofeed.schemas.manifest import read_manifest

EXAMPLES_PER_REASON = 4
_LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL = 360, 160
_FULL_SIZE_SAMPLES = 24
"""Up to so many samples have the largest thumbnails, so that the file stays below 5 MB."""


def write_report(
    path: str | Path,
    output: str | Path | None = None,
    source: str | None = None,
    samples: int = 12,
) -> Path:
    """Write one self-contained HTML file about a data set; equal data sets give equal bytes.

    Args:
        path: the version's folder.
        output: the file to write; default: <version>-report.html beside that folder.
        source: where the source pictures are now; default: where they were. Volumes are shown as stored, without.
        samples: how many records to show.

    Returns:
        the file.

    Raises:
        UsageError: there is no finished data set, the file cannot be written, or it would lie in the version's
            folder, which holds nothing but the data set.
        ManifestError, CorruptFileError: the data set is not what was written.
    """
    if samples < 0:
        raise UsageError(f"--samples {samples}: expected 0 or more")
    folder = local_folder(path)
    manifest = read_manifest(folder)
    absolute = Path(os.path.abspath(folder))
    file = absolute.parent / f"{absolute.name}-report.html" if output is None else Path(output)
    if output is None and not folder.is_absolute():
        file = Path(os.path.relpath(file))
    _check_output(file, folder)
    facts = Facts.of(str(path), manifest, _read_rejects(folder))
    page = _page(facts, folder, source, samples)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page.encode())
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(f"--output {file}: cannot be written: {error.strerror or error}") from error
    return file


def _check_output(file: Path, folder: Path) -> None:
    if file.is_dir():
        raise UsageError(f"--output {file}: is a folder; name a file, such as {file / 'report.html'}")
    if folder.resolve() in file.resolve().parents:
        raise UsageError(
            f"--output {file}: lies in the version's folder, where `halofeed verify` allows the data set's files only; "
            "name a file elsewhere"
        )


def _page(facts: Facts, folder: Path, source: str | None, samples: int) -> str:
    manifest = facts.manifest
    sources, root = open_sources(manifest, source)
    chosen = (
        choose(find_candidates(folder, manifest), samples, detection=facts.is_detection) if samples else []
    )
    side = round(_LARGEST_THUMBNAIL * math.sqrt(min(1.0, _FULL_SIZE_SAMPLES / max(1, len(chosen)))))
    side = max(_SMALLEST_THUMBNAIL, side)
    ranks = {label: rank for rank, label in enumerate(facts.label_counts())}
    parts: list[Markup | None]
    if facts.is_volume:
        display = display_of(manifest, facts.total)
        scans = [load_scan(folder, manifest, one, display, ranks, side) for one in chosen]
        parts = [
            sections.conversion(facts),
            scan_gallery.scans(facts, scans, display),
            sections.labels(facts),
            volume_sections.findings(facts),
            volume_sections.grids(facts),
            volume_sections.intensities(facts, display),
        ]
    else:
        shown = [load_sample(folder, manifest, one, sources, side, ranks) for one in chosen]
        parts = [
            sections.conversion(facts),
            gallery.samples(facts, shown, root, sources is not None),
            sections.labels(facts),
            sections.boxes(facts),
            sections.sizes(facts),
            sections.pixels(facts),
        ]
    parts += [sections.partitions(facts), howto.recipe(facts), howto.usage(facts)]
    style = Markup((files("halofeed.inspection") / "report.css").read_text("utf-8"))
    title = f"{manifest.name} {manifest.version} – halofeed report"
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, title),
        element("style", None, style),
    )
    made = element("footer", None, "Written by ", element("code", None, f"halofeed report {facts.path}"))
    body = element("body", None, element("main", None, sections.header(facts), parts, made))
    return join([Markup("<!doctype html>\n"), element("html", {"lang": "en"}, head, body), "\n"])


def _read_rejects(folder: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The first few entries of rejected.jsonl for each stage and reason."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    file = folder / REJECTED
    try:
        with file.open(encoding="utf-8", errors="surrogateescape") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    entry = json.loads(line)
                    examples = found.setdefault((str(entry["stage"]), str(entry["reason"])), [])
                    if len(examples) < EXAMPLES_PER_REASON:
                        examples.append({key: str(entry.get(key, "")) for key in ("source", "detail")})
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise CorruptFileError(
                        f"{file}: line {number} is no reject; run `halofeed verify {folder}`"
                    ) from error
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    return found
