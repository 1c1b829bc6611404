"""Rows that are planned together, from known fields, equal those that are parsed and written one by one."""

import pytest

from halofeed.loader import (
    FlipDepth,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    Mosaic,
    RandomCrop,
    ScaleJitter,
    shards,
)
from halofeed.loader import record as record_module
from halofeed.loader.assemble import Assembler
from halofeed.loader.filling import Filler
from halofeed.schemas.native import kernel
from halofeed.schemas.shard_file import OpenFile
from tests.support.batches import same
from tests.support.kernels import ways
from tests.support.level_rows import others
from tests.support.volume_writer import draw_scans, write_scans

CHAINS = {
    "pictures": [
        [FlipLeftRight(), RandomCrop(10, 12), FlipUpDown()],
        [RandomCrop(20, 30), RandomCrop(16, 8), FlipLeftRight(1.0)],
        [FlipUpDown(), FlipLeftRight()],
        [],
    ],
    "volumes": [
        [FlipDepth(), FlipLeftRight(), RandomCrop(3, 5, 6), FlipUpDown()],
        [RandomCrop(6, 8, 10), FlipDepth(1.0)],
        [FlipUpDown(1.0), RandomCrop(5, 2, 9), RandomCrop(2, 2, 3)],
        [],
    ],
}
CHAINS |= {f"packed {kind}": chains for kind, chains in CHAINS.items()}
CASES = [(kind, number) for kind in CHAINS for number in range(4)]


@pytest.fixture(scope="module")
def folders(draw, write, tmp_path_factory):
    return {
        "pictures": write(draw(30, task="classification")),
        "packed pictures": write(
            draw(30, frame=(36, 34), task="classification"), frame=(36, 34), encoding="packed"
        ),
        "volumes": write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", draw_scans({"train": 31})),
        "packed volumes": write_scans(
            tmp_path_factory.mktemp("packed") / "1.0.0", draw_scans({"train": 31}), encoding="packed"
        ),
    }


@ways
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize(("kind", "number"), others(CASES, [*CASES[3:8:4], CASES[8], CASES[12]]))
def test_planned_rows_are_those_written_alone(folders, kind, number, verify, in_memory, is_used, monkeypatch):
    monkeypatch.setattr(kernel, "_library", kernel._library if is_used else None)
    options = {"batch_size": 7, "seed": 3, "augment": CHAINS[kind][number], "include": ["epoch"]}
    loader = Loader(folders[kind], **options, verify=verify)
    written = []
    moved = Assembler.move_planned
    act = Assembler.write_planned
    monkeypatch.setattr(Assembler, "write_planned", lambda *row: written.append(act(*row)) or written[-1])

    def moved_too(self, *rows):
        made = moved(self, *rows)
        written.extend(made.tolist())
        return made

    monkeypatch.setattr(Assembler, "move_planned", moved_too)
    if not in_memory:
        monkeypatch.setattr(OpenFile, "as_array", lambda self: None)
    batches = list(map(loader.batch, range(40)))
    assert len(written) >= 30 * 7 and all(written)  # all but those of the first epoch
    monkeypatch.setattr(Assembler, "plan", lambda self, *rows: None)
    for step, found in enumerate(batches):
        same(found, loader.batch(step))


STORAGE = [("raw", True), ("jpeg", False), ("jpeg", True), ("png", False)]
AUGMENT = {
    "none": [],
    "windows": [FlipLeftRight(), RandomCrop(16, 24), FlipUpDown(), RandomCrop(12, 20, minimum_visible=0.8)],
    "mosaic": [Mosaic(18, 26), ScaleJitter(16, 24)],
}


@pytest.mark.parametrize("augment", AUGMENT)
@pytest.mark.parametrize(("encoding", "pad"), others(STORAGE, STORAGE[:1]))
def test_batches_of_known_records_are_those_of_parsed_ones(draw, write, monkeypatch, encoding, pad, augment):
    folder = write(draw(23), encoding=encoding, pad=pad, max_boxes=3)
    options = {"batch_size": 5, "seed": 3, "augment": AUGMENT[augment]}
    loader, parsing = Loader(folder, **options), Loader(folder, **options, verify="always")
    for step in range(2 * loader.steps_per_epoch):
        loader.batch(step)
    expected = [parsing.batch(step) for step in range(12)]
    slab = ((3, 12), (0, 14)) if augment == "mosaic" else ((5, 12), (7, 20))
    part = parsing.of_slab(slab).batch(7)
    monkeypatch.setattr(record_module, "decode_parts", None)
    if augment != "mosaic":
        monkeypatch.setattr(Filler, "_fill_row", None)  # all rows are planned together
    for step, whole in enumerate(expected):
        same(loader.batch(step), whole)
    same(loader.of_slab(slab).batch(7), part)


def test_objects_that_found_no_room_are_parsed_each_time(draw, write, monkeypatch):
    monkeypatch.setattr(shards, "MAX_OBJECT_BYTES", 1000)
    folder = write(draw(23), encoding="jpeg", pad=False)
    loader, parsing = Loader(folder, batch_size=5), Loader(folder, batch_size=5, verify="always")
    for step in range(15):
        same(loader.batch(step), parsing.batch(step))
