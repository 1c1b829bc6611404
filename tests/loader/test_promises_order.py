"""Is a batch the same, bit by bit, on any number of hosts and threads, and does every step resume?

That each record comes once an epoch, at sizes of 2**k and one beside it too, stands in test_sampler.py.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.far_step import link_shards
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop
from halofeed.loader.sampler import Sampler
from tests.allocations import traced
from tests.volume_writer import draw_scans, write_scans

AUGMENT = {
    "raw": [FlipLeftRight(), RandomCrop(16, 16)],
    "jpeg": [FlipLeftRight(), RandomCrop(16, 16)],
    "volumes": [FlipDepth(), FlipUpDown(), RandomCrop(4, 5, 6, foreground=0.5)],
}
HOSTS = (1, 2, 3, 4, 8)
RECORDS = 61


@pytest.fixture(scope="module")
def folders(draw, write, tmp_path_factory):
    drawn = draw(RECORDS)
    scans = draw_scans({"train": RECORDS})
    return {
        "raw": write(drawn),
        "jpeg": write(drawn, encoding="jpeg", pad=False),
        "volumes": write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", scans),
    }


def bits(batch):
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in batch.items()}


def joined(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("kind", AUGMENT)
def test_hosts_give_the_batch_of_one_bit_by_bit(folders, kind, augmented):
    options = {"batch_size": 48, "seed": 9, "augment": AUGMENT[kind] if augmented else [], "num_epochs": 2}
    whole = [bits(batch) for batch in Loader(folders[kind], **options).batches()]
    assert len(whole) == 3  # the second one straddles the epochs, the third one is padded
    for count in HOSTS:
        hosts = [Loader(folders[kind], **options, shard_index=at, shard_count=count) for at in range(count)]
        for step, right in enumerate(whole):
            assert bits(joined([host.batch(step) for host in hosts])) == right, (count, step)


@pytest.mark.parametrize("kind", AUGMENT)
def test_threads_give_the_batch_of_one_bit_by_bit(folders, kind, monkeypatch):
    options = {"batch_size": 48, "seed": 9, "augment": AUGMENT[kind]}
    found = []
    for count in (1, 2, 3, 4):
        # So many threads fill the rows of a batch, and so many ask for batches at the same time.
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, count=count: set(range(count)))
        loader = Loader(folders[kind], **options)
        with ThreadPoolExecutor(count) as pool:
            found.append([bits(batch) for batch in pool.map(loader.batch, range(8))])
        assert loader._filler._executor()[1] == count
    assert all(batches == found[0] for batches in found[1:])


@pytest.mark.parametrize("kind", AUGMENT)
def test_every_step_of_two_epochs_resumes_bit_by_bit_on_other_hosts(folders, kind):
    options = {"batch_size": 8, "seed": 9, "augment": AUGMENT[kind], "num_epochs": 2}
    whole = [bits(batch) for batch in Loader(folders[kind], **options).batches()]
    assert len(whole) == -(-2 * RECORDS // 8)
    saved = [json.dumps(Loader(folders[kind], **options).state(step)) for step in range(len(whole) + 1)]
    for step, state in enumerate(saved):
        count = (1, 2, 4, 8)[step % 4]
        hosts = [Loader(folders[kind], **options, shard_index=at, shard_count=count) for at in range(count)]
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
    assert batch["id"].tolist() == [ids(number % 1_000).id for number in rows.records.tolist()]
