"""A batch is the same, bit by bit, on any number of hosts and threads, and every step resumes.

That each record comes once an epoch, at sizes of 2**k and one beside it too, stands in test_sampler.py.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.far_step import link_shards
from halofeed.loader import (
    ElasticDeformation,
    FlipDepth,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    MixUp,
    Mosaic,
    RandomCrop,
    RandomRotation,
    Rotate90,
    ScaleJitter,
)
from halofeed.loader.batch import join_id
from halofeed.loader.sampler import Sampler
from tests.support.allocations import traced
from tests.support.batches import bits, joined
from tests.support.level_rows import others
from tests.support.volume_writer import draw_scans, write_scans

CROP = [FlipLeftRight(), RandomCrop(16, 16)]
COMBINED = [
    *(FlipLeftRight(), FlipUpDown(), Mosaic(24, 32, probability=0.8), MixUp(probability=0.5)),
    ScaleJitter(20, 20, (0.8, 1.5)),
]
SCANS = [FlipDepth(), FlipUpDown(), RandomCrop(4, 6, 6, foreground=0.5), Rotate90()]
QUICK = ("raw, cropped", "volumes, cropped", "packed volumes, cropped", "drawn by class")
CASES = {
    "raw": ("raw", {}),
    "raw, cropped": ("raw", {"augment": CROP}),
    "jpeg": ("jpeg", {}),
    "jpeg, cropped": ("jpeg", {"augment": CROP}),
    "volumes": ("volumes", {}),
    "volumes, cropped": ("volumes", {"augment": SCANS, "include": ["affine", "key"]}),
    "resized": ("raw", {"augment": [ScaleJitter(16, 16, (0.5, 2.0)), FlipLeftRight()]}),
    "combined": ("raw", {"augment": COMBINED, "include": ["masks", "key"]}),
    "turned": ("volumes", {"augment": [RandomRotation(12.0), RandomCrop(4, 5, 6, foreground=0.5)]}),
    "bent": ("volumes", {"augment": [ElasticDeformation(2.0, 8.0, 0.7), FlipLeftRight()]}),
    "packed, cropped": ("packed", {"augment": CROP}),
    "packed": ("packed", {}),
    "yuv420": ("yuv420", {"augment": [*CROP, Rotate90()]}),
    "packed volumes, cropped": ("packed volumes", {"augment": SCANS, "include": ["affine", "key"]}),
    "packed, resized": ("packed", {"augment": [ScaleJitter(16, 16, (0.5, 2.0)), FlipLeftRight()]}),
    "drawn by class": ("raw", {"augment": [FlipLeftRight()], "draw_by": "class"}),
}
"""By name: of which data set, and with which options."""
HOSTS = (1, 2, 3, 4, 8)
RECORDS = 61


@pytest.fixture(scope="module")
def folders(draw, write, tmp_path_factory):
    drawn = draw(RECORDS)
    scans = draw_scans({"train": RECORDS})
    return {
        "raw": write(drawn, masks=True),
        "jpeg": write(drawn, encoding="jpeg", pad=False),
        "volumes": write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", scans),
        "packed": write(drawn, encoding="packed"),
        "yuv420": write(drawn, encoding="yuv420"),
        "packed volumes": write_scans(tmp_path_factory.mktemp("packed") / "1.0.0", scans, encoding="packed"),
    }


@pytest.fixture(
    params=[
        *others([name for name in CASES if name != "combined"], QUICK),
        pytest.param("combined", marks=pytest.mark.exhaustive),
    ]
)
def case(request, folders):
    """A folder, and the options of a loader."""
    kind, options = CASES[request.param]
    return folders[kind], {"seed": 9, **options}


def test_hosts_give_the_batch_of_one_bit_by_bit(case):
    folder, options = case
    options |= {"batch_size": 48, "num_epochs": 2}
    whole = [bits(batch) for batch in Loader(folder, **options).batches()]
    assert len(whole) == 3  # the second one straddles the epochs, the third one is padded
    for count in HOSTS:
        hosts = [Loader(folder, **options, shard_index=at, shard_count=count) for at in range(count)]
        for step, right in enumerate(whole):
            assert bits(joined([host.batch(step) for host in hosts])) == right, (count, step)


def test_threads_give_the_batch_of_one_bit_by_bit(case, monkeypatch):
    folder, options = case
    found = []
    for count in (1, 2, 3, 4):
        # So many threads fill the rows of a batch, and so many ask for batches at the same time.
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, count=count: set(range(count)))
        loader = Loader(folder, batch_size=48, **options)
        with ThreadPoolExecutor(count) as pool:
            found.append([bits(batch) for batch in pool.map(loader.batch, range(8))])
        assert loader._filler._workers.count == count
    assert all(batches == found[0] for batches in found[1:])


def test_every_step_of_two_epochs_resumes_bit_by_bit_on_other_hosts(case):
    folder, options = case
    options |= {"batch_size": 8, "num_epochs": 2}
    whole = [bits(batch) for batch in Loader(folder, **options).batches()]
    assert len(whole) == -(-2 * RECORDS // 8)
    saved = [json.dumps(Loader(folder, **options).state(step)) for step in range(len(whole) + 1)]
    for step, state in enumerate(saved):
        count = (1, 2, 4, 8)[step % 4]
        hosts = [Loader(folder, **options, shard_index=at, shard_count=count) for at in range(count)]
        streams = [host.batches(host.restore(json.loads(state))) for host in hosts]
        rest = [bits(joined(parts)) for parts in zip(*streams, strict=True)]
        assert rest == whole[step:], step


def test_the_millionth_step_of_ten_million_records_is_resumed_from_a_small_state(draw, write, tmp_path):
    one = write(draw(1_000, frame=(4, 4), vary=False, task="classification"), frame=(4, 4), shards=1)
    folder, step = link_shards(one, tmp_path / "1.0.0", 10_000), 10**6
    loader = Loader(folder, batch_size=16, seed=3)
    assert loader.num_records == 10**7
    state = json.dumps(loader.state(step))
    assert len(state) < 1_000
    with traced() as memory:
        sampler = Sampler(records=10**7, batch_size=16, seed=3)
        rows = sampler.rows(step, 0, 16)
    assert memory.peak < 1_000_000
    batch = next(loader.batches(loader.restore(json.loads(state))))
    ids = Loader(one, batch_size=1, training=False).stored
    assert join_id(batch["id"]).tolist() == [ids(number % 1_000).id for number in rows.records.tolist()]
