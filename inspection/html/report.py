"""How one HTML file comes to say what is in a data set, what was rejected and why: `write_report`."""

from __future__ import annotations

import os
from pathlib import Path

from halofeed.inspection.facts.dataset import Facts, split_reason
from halofeed.inspection.html.page import check_output, rendered, write_page
from halofeed.inspection.html.reported import Report
from halofeed.inspection.html.sections import VALUES
from halofeed.inspection.stored.place import Place, open_manifest, open_place
from halofeed.schemas.address import Address, address_of
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.layout import REJECTED
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.origin import recall
from halofeed.schemas.plain_json import parse_json

EXAMPLES_PER_REASON = 4
_LONGEST_TEXT = 2000
_MOST_LINE_VALUES = 1000


def write_report(
    path: str | os.PathLike[str],
    output: str | Path | None = None,
    sources: str | None = None,
    samples: int = 12,
) -> Path:
    """Write one self-contained HTML file about a data set; equal data sets give equal bytes.

    Args:
        path: the version's folder or address.
        output: the file to write; default: <version>-report.html beside that folder, of an address here.
        sources: the folder of the source pictures, to which the samples' names are relative; default: where they lay
            when this user converted them here, else they are not shown. Volumes are shown as stored, without.
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
    path = address_of(path) or path
    place = open_place(path)
    manifest = open_manifest(place)
    is_far = isinstance(path, Address)
    if output is not None:
        file = Path(output)
    elif is_far:
        file = Path(f"{str(path).rstrip('/').rpartition('/')[2]}-report.html")
    else:
        absolute = Path(os.path.abspath(path))
        file = absolute.parent / f"{absolute.name}-report.html"
        file = file if Path(path).is_absolute() else Path(os.path.relpath(file))
    check_output(file, "report.html")
    if not is_far and Path(path).resolve() in file.resolve().parents:
        raise UsageError(
            f"--output {file}: lies in the version's folder, where `halofeed verify` allows the data set's files only; "
            "name a file elsewhere"
        )
    rejects, origin = _read_rejects(place, manifest), recall(str(place), manifest)
    facts = Facts(path=str(path), manifest=manifest, rejects=rejects, origin=origin)
    report = Report(facts=facts, folder=place, sources=sources, samples=samples)
    colors = [(f"s{at}", name) for at, name in enumerate(facts.splits)]
    parts = [
        rendered(f"sections/{name}.html", facts=facts, split_colors=colors, **values)
        for name in facts.kind.sections
        if (values := VALUES[name](report)) is not None
    ]
    named = len(set(manifest.labels) - {0} if facts.task.has_background else manifest.labels)
    values = {"manifest": manifest, "facts": facts, "named": named, "sections": parts, "path": facts.path}
    return write_page(file, "report.html", "report.css", **values)


def _read_rejects(folder: Place, manifest: Manifest) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The first few entries of rejected.jsonl for each stage and reason that the manifest counts."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {split_reason(key): [] for key in manifest.rejected}
    wanted, kept = sum(min(EXAMPLES_PER_REASON, count) for count in manifest.rejected.values()), 0
    file = folder.path(REJECTED)
    try:
        for number, line in enumerate(folder.lines(REJECTED), 1):
            try:
                entry = parse_json(line.decode("utf-8", "surrogateescape"), _MOST_LINE_VALUES)
                examples = found.get((str(entry["stage"]), str(entry["reason"])))
                if examples is not None and len(examples) < EXAMPLES_PER_REASON:
                    shown = {key: str(entry.get(key, ""))[:_LONGEST_TEXT] for key in ("source", "detail")}
                    examples.append(shown)
                    kept += 1
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CorruptFileError(
                    f"{file}: line {number} is no reject; run `halofeed verify {folder}`"
                ) from error
            if kept >= wanted:
                break
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    return found
