"""Rows that are planned together equal those that are written one by one."""

import pytest

from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop
from halofeed.loader.assemble import Assembler
from halofeed.loader.native import kernel
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
CASES = [(kind, number) for kind in CHAINS for number in range(4)]


@pytest.fixture(scope="module")
def folders(draw, write, tmp_path_factory):
    return {
        "pictures": write(draw(30, task="classification")),
        "volumes": write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", draw_scans({"train": 31})),
    }


@ways
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize(("kind", "number"), others(CASES, CASES[3::4]))
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
        monkeypatch.setattr(OpenFile, "look", lambda self: None)
    batches = list(map(loader.batch, range(40)))
    assert len(written) >= 30 * 7 and all(written)  # all but those of the first epoch
    monkeypatch.setattr(Assembler, "plan", lambda self, *rows: None)
    for step, found in enumerate(batches):
        same(found, loader.batch(step))
