"""Each data set has exactly its share, every record once per epoch, and a batch is a function of its step."""

import pickle
from collections import Counter

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, Mixture, RandomCrop
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from tests.support.batches import rows_of, same

AUGMENT = [FlipLeftRight(), RandomCrop(8, 8)]


@pytest.fixture(scope="module")
def folders(draw, write):
    return [str(write(draw(count, seed=seed), masks=True)) for seed, count in enumerate((11, 7, 3))]


def mixture(folders, weights=(0.5, 0.3, 0.2), **options):
    given = {"batch_size": 8, "seed": 3, "augment": AUGMENT} | options
    return Mixture(dict(zip(folders, weights, strict=True)), **given)


def slow_sources(shares, seed, rows):
    """Which data set each row is of, and which of its rows: counted one by one."""
    from halofeed.loader.sampler import permute

    cycle, seen, found = sum(shares), [0] * len(shares), []
    for row in range(rows):
        (slot,) = permute(np.array([row % cycle]), count=cycle, seed=seed, epoch=np.array([row // cycle]))
        which = next(n for n in range(len(shares)) if slot < sum(shares[: n + 1]))
        found.append((which, seen[which]))
        seen[which] += 1
    return found


@pytest.mark.parametrize("weights", [(5, 3, 2), (1, 1, 1), (7, 90, 3)])
def test_rows_are_counted_as_one_by_one_from_any_start(folders, weights):
    mixed = mixture(folders, weights)
    expected = slow_sources(list(mixed.parts.values()), 3, 240)
    for start, stop in ((0, 240), (0, 1), (37, 38), (99, 203), (100, 200)):
        which, places = mixed.sources(start, stop)
        assert list(zip(which.tolist(), places.tolist(), strict=True)) == expected[start:stop]


def test_each_data_set_gives_every_record_once_an_epoch_as_its_own_loader_shows_it(folders):
    mixed = mixture(folders)
    seen = {number: [] for number in range(3)}
    for step in range(30):
        which, _ = mixed.sources(8 * step, 8 * step + 8)
        for source, row in zip(which.tolist(), rows_of(mixed.batch(step)), strict=True):
            seen[source].append(row)
    for number, folder in enumerate(folders):
        alone = Loader(folder, batch_size=1, seed=3, augment=AUGMENT)
        found = seen[number]
        assert found == [rows_of(alone.batch(place))[0] for place in range(len(found))]
        epoch = Counter(row["id"] for row in found[: alone.num_records])
        assert set(epoch.values()) == {1} and len(epoch) == alone.num_records


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_hosts_give_the_rows_of_one(folders, hosts):
    whole = mixture(folders)
    parts = [mixture(folders, shard_index=host, shard_count=hosts) for host in range(hosts)]
    for step in (0, 5, 10**6):
        assert [row for part in parts for row in rows_of(part.batch(step))] == rows_of(whole.batch(step))


def test_it_resumes_and_refuses_the_state_of_another_mixture(folders):
    mixed = mixture(folders)
    state = mixed.state(17)
    assert mixture(folders).restore(state) == 17
    for other in (mixture(folders, (5, 3, 3)), mixture(folders, seed=4), mixture(folders[::-1])):
        with pytest.raises(UsageError, match="the state is of another stream"):
            other.restore(state)


def test_tensorflow_and_a_mesh_get_the_same(folders):
    mixed = mixture(folders, augment=[])
    element = next(iter(mixed.dataset(3, repeat=True)))
    mesh = make_mesh(4)
    placed = next(iter(mixed.on_mesh(mesh, Partition.parse("image=1,4,1,1", cores_per_replica=4), 3)))
    expected = mixed.batch(3)
    np.testing.assert_array_equal(element["image"], expected["image"])
    np.testing.assert_array_equal(placed["image"], expected["image"])
    np.testing.assert_array_equal(placed["boxes"], expected["boxes"])


def test_weights_and_sets_that_cannot_be_mixed_and_an_end_are_refused_with_what_differs(folders, draw, write):
    for weights, words in (
        ((1, 0, 1), "expected a number above 0, got 0"),
        ((1, -2, 1), "expected a number above 0, got -2"),
        ((1, float("nan"), 1), "expected a number above 0, got nan"),
        ((1, "much", 1), "expected a number above 0, got 'much'"),
        ((1, "1/0", 1), "expected a number above 0, got '1/0'"),
        ((0.33333, 0.33333, 0.12345), "shares would be exact only after .* rows; round them"),
    ):
        with pytest.raises(UsageError, match=words):
            mixture(folders, weights)
    smaller = str(write(draw(4, frame=(12, 16)), frame=(12, 16), masks=True))
    with pytest.raises(UsageError, match=r"image: .*\(24, 32, 3\).*\(12, 16, 3\)"):
        mixture([folders[0], smaller], (1, 1), augment=[])
    with pytest.raises(UsageError, match="num_epochs: a mixture has no end"):
        mixture(folders, num_epochs=1)
    with pytest.raises(UsageError, match="weights: expected one data set or more"):
        Mixture({}, batch_size=4)
    mixed = mixture(folders)
    assert mixed.steps is None
    with pytest.raises(TypeError, match="no end"):
        len(mixed)


def test_a_mixture_can_be_pickled_as_workers_of_other_libraries_do(folders):
    mixed = mixture(folders)
    same(pickle.loads(pickle.dumps(mixed)).batch(3), mixed.batch(3))
    same(pickle.loads(pickle.dumps(mixed.by_step()))[2], mixed.batch(2))
