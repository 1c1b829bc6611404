"""Numbers kept in memory are those of the records, and no record is parsed again for them."""

import pytest

from halofeed.loader import FlipLeftRight, FlipUpDown, Loader, Mosaic, RandomCrop, ScaleJitter, field_cache
from halofeed.loader import record as record_module
from halofeed.loader.filling import Filler
from tests.support.batches import same
from tests.support.level_rows import others

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
    monkeypatch.setattr(field_cache, "MAX_OBJECT_BYTES", 1000)
    folder = write(draw(23), encoding="jpeg", pad=False)
    loader, parsing = Loader(folder, batch_size=5), Loader(folder, batch_size=5, verify="always")
    for step in range(15):
        same(loader.batch(step), parsing.batch(step))
