"""What a person reads when a conversion is done."""

from __future__ import annotations

from halofeed.pipelines.convert import Conversion
from halofeed.pipelines.storage import OutputFolder, is_remote
from halofeed.schemas.layout import REJECTED
from halofeed.schemas.manifest import Split


def summary(done: Conversion) -> str:
    """A few lines: splits, what was not written and why, and where to look next."""
    manifest = done.manifest
    head = "already converted" if done.was_there else "converted"
    lines = [f"{manifest.name} {manifest.version}: {head}, {manifest.task}, {len(manifest.labels)} classes"]
    lines += [f"  {name:<12} {_describe(split)}" for name, split in manifest.splits.items()]
    if manifest.rejected:
        total = sum(manifest.rejected.values())
        left_out = f"{_counted(total, 'input')} {'was' if total == 1 else 'were'} not written"
        lines.append(f"  {left_out}, see {OutputFolder(done.folder).path(REJECTED)}")
        ranked = sorted(manifest.rejected.items(), key=lambda entry: (-entry[1], entry[0]))
        lines += [f"    {count:>7,} x {reason}" for reason, count in ranked[:8]]
        if len(ranked) > 8:
            lines.append(f"    and {len(ranked) - 8} reasons more")
    for name, split in manifest.splits.items():
        if boxes := split.statistics.get("boxes"):
            listed = ", ".join(f"{count:,} {what}" for what, count in boxes.items())
            lines.append(f"  boxes of {name}: {listed}")
        if cut := split.statistics.get("cut", {}).get("boxes"):
            images = split.statistics["cut"]["images"]
            lines.append(
                f"  {name}: {images:,} images have more than --max-boxes; the loader will cut {cut:,} boxes of them"
            )
    where = "copy it to a local folder, then look at it" if is_remote(done.folder) else "look at it"
    lines.append(f"{done.folder}: {where} with `halofeed report {done.folder}`")
    return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _describe(split: Split) -> str:
    size = sum(shard.bytes for shard in split.shards)
    return f"{split.records:>9,} records  {_counted(len(split.shards), 'shard')}  {size / 1e6:,.1f} MB"
