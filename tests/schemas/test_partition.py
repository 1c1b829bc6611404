"""The partition keeps every rule and figure that users of TPUConfig know."""

import enum
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import PartitionError
from halofeed.schemas.partition import PER_HOST_V2, Partition, axis_names, core_axes, splits_that_divide


def from_lists(*dims: object, cores: int | None = 4, mode: object = PER_HOST_V2) -> Partition:
    given = {"num_cores_per_replica": cores, "per_host_input_for_training": mode}
    return Partition.from_tpu_config(input_partition_dims=list(dims), **given)


IMAGE, MASK = (8, 64, 48, 3), (8, 64, 48, 1)


def test_the_three_published_configurations_are_taken_as_they_are_and_every_spelling_of_per_host_v2():
    for mode in ("PER_HOST_V2", "InputPipelineConfig.PER_HOST_V2", Mode.PER_HOST_V2, 3):
        assert from_lists([1, 4, 1, 1], mode=mode).cores_per_replica == 4
    dims = {"image": [1, 4, 1, 1], "image_mask": [1, 2, 2, 1]}
    first = from_lists([1, 4, 1, 1], None)
    first.check_inputs(IMAGE, (8,))
    first.check_inputs(IMAGE, {"class_label": (8,), "mask": MASK})
    assert first.resolve({"image": IMAGE, "label": (8,)}) == {"image": (1, 4, 1, 1), "label": None}

    second = from_lists(dims, {"class_label": [1], "mask": None})
    second.check_inputs({"image": IMAGE, "image_mask": MASK}, {"class_label": (8,), "mask": MASK}, replicas=2)
    third = from_lists(dims, [1])
    third.check_inputs({"image": IMAGE, "image_mask": MASK}, (8,), replicas=8)
    assert third.dims == {"image": (1, 4, 1, 1), "image_mask": (1, 2, 2, 1), "label": (1,)}


def test_the_command_line_takes_the_lists_of_tpu_config_and_plain_numbers():
    rows, both = {"image": (1, 4, 1, 1)}, {"image": (1, 4, 1, 1), "label": (1, 2, 2)}
    for text in ("1,4,1,1", "[1,4,1,1]", "[[1,4,1,1],None]", "[[1, 4, 1, 1], [1]]", "([1,4,1,1],None)"):
        assert Partition.parse(text, cores_per_replica=4).dims == rows, text
    for text in ("[{'image':[1,4,1,1]},{'label':[1,2,2]}]", "[[1,4,1,1],[1,2,2]]", "1,4,1,1;label=1,2,2"):
        assert Partition.parse(text, cores_per_replica=4).dims == both, text


def test_other_arguments_of_tpu_config_are_named_and_unknown_ones_refused(capsys):
    known = {"num_cores_per_replica": 4, "input_partition_dims": [[1, 4, 1, 1], None]}
    known |= {"per_host_input_for_training": PER_HOST_V2, "tpu_job_name": None}
    Partition.from_tpu_config(iterations_per_loop=100, num_shards=2, **known)
    first, second = capsys.readouterr().err.splitlines()
    assert (
        "num_shards=2 is ignored" in first and "iterations_per_loop=100" in second and "TrainConfig" in second
    )
    with pytest.raises(PartitionError, match=r"num_shard: TPUConfig has no .* did you mean num_shards"):
        Partition.from_tpu_config(num_shard=2, **known)
    with pytest.raises(PartitionError, match="iterations_per_loop: expected 1 or more, got 0"):
        Partition.from_tpu_config(iterations_per_loop=0, **known)


class Mode(enum.Enum):
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3


MISTAKES = [([], {}, "one or two elements"), ([[1, 4, 1, 1], None, None], {}, "one or two elements")]
MISTAKES += [([[1, 4, 1, 1]], {"mode": True}, "needs PER_HOST_V2")]
MISTAKES += [([[1, 4, 1, 1]], {"mode": Mode.PER_HOST_V1}, "needs PER_HOST_V2")]
MISTAKES += [([[1, 4, 1, 1]], {"cores": None}, "num_cores_per_replica")]
MISTAKES += [([[1, 3, 1, 1]], {"cores": 3}, "1, 2, 4, 8, 16, 32, 64, 128")]
MISTAKES += [([[1, 256, 1, 1]], {"cores": 256}, "1, 2, 4, 8, 16, 32, 64, 128")]
MISTAKES += [([None], {}, "expected the features' dims, got None"), ([1, 4, 1, 1], {}, "wrap the dims")]
MISTAKES += [([[1, 4, 0, 1]], {}, "at least 1"), ([[-1, -4, 1, 1]], {}, "at least 1")]
MISTAKES += [([[]], {}, "at least 1"), ([[1, 2.0, 2, 1]], {}, "whole numbers")]
MISTAKES += [([[1, 2, 1, 1]], {}, "product is the cores per replica, 4")]
MISTAKES += [([{"image": [1, 4, 1, 1]}, {"image": None}], {}, "a feature and a label")]
MISTAKES += [([{"image": "1,4,1,1"}], {}, "expected parts along each axis")]


@pytest.mark.parametrize(("dims", "options", "message"), MISTAKES)
def test_a_construction_mistake_is_refused(dims, options, message):
    with pytest.raises(ValueError, match=message):
        from_lists(*dims, **options)  # type: ignore[arg-type]


FEATURES, LABELS = {"image": [1, 4, 1, 1]}, {"label": None}
BOTH, ROWS = [FEATURES, LABELS], [[1, 4, 1, 1]]


@pytest.mark.parametrize(
    ("dims", "features", "labels", "message"),
    [
        (BOTH, {"picture": IMAGE}, {"label": (8,)}, r"\[0\]: mismatched keys of the features"),
        (BOTH, {"image": IMAGE}, {"class": (8,)}, r"\[1\]: mismatched keys of the labels"),
        (BOTH, IMAGE, {"label": (8,)}, r"\[0\]: mismatched structure of the features"),
        (ROWS, {"image": IMAGE}, None, r"\[0\]: mismatched structure of the features"),
        (BOTH, {"image": IMAGE}, (8,), r"\[1\]: mismatched structure of the labels"),
        ([FEATURES, [1]], {"image": IMAGE}, {"label": (8,)}, r"\[1\]: mismatched structure of the labels"),
        ([FEATURES, [1]], {"image": IMAGE}, None, "the batch has none"),
        (ROWS, (8, None, 48, 3), None, "fully known"),
        (ROWS, (8, 64, 48), None, "one for each axis"),
        (ROWS, (8, 62, 48, 3), None, "does not divide by 4"),
        (ROWS, (7, 64, 48, 3), None, "batch of 7 does not divide by the 2 replicas; use a batch of 6 or 8"),
        (ROWS, IMAGE, (None,), "fully known"),
        (ROWS, IMAGE, (), "scalar"),
    ],
)
def test_a_mistake_against_the_first_batch_is_refused(dims, features, labels, message):
    with pytest.raises(ValueError, match=message):
        from_lists(*dims).check_inputs(features, labels, replicas=2)  # type: ignore[arg-type]


def test_keys_that_are_not_named_or_not_split_are_whole_and_a_key_that_the_batch_lacks_is_refused():
    for parts in ([1], [1, 1], [1, 1, 1, 1, 1]):
        whole = Partition(cores_per_replica=4, dims={"image": parts})
        assert whole.resolve({"image": IMAGE}) == {"image": None}
    partition = Partition.parse("image=1,4,1,1", cores_per_replica=4)
    assert partition.resolve({"image": IMAGE, "boxes": (8, 100, 4)}) == {"image": (1, 4, 1, 1), "boxes": None}
    with pytest.raises(PartitionError, match="'imge': the batch has no such key; it has image, label"):
        Partition.parse("imge=1,4,1,1", cores_per_replica=4).resolve({"image": IMAGE, "label": (8,)})


def test_an_uneven_size_is_refused_with_the_axis_the_divisor_and_the_cure():
    with pytest.raises(PartitionError) as caught:
        Partition.parse("image=1,1,4,1", cores_per_replica=4).resolve({"image": (2, 64, 50, 3)})
    assert str(caught.value) == (
        "image: width of size 50 does not divide by 4; resize or pad it to 48 or 52; splits of "
        "(2, 64, 50, 3) over 4 cores that divide: [1,2,2,1], [1,4,1,1]"
    )
    partition = Partition(cores_per_replica=2, dims={"image": [2, 1, 1, 1]})
    assert partition.resolve({"image": (4, 8, 8, 3)}, replicas=2) == {"image": (2, 1, 1, 1)}
    with pytest.raises(PartitionError, match="batch of size 3 does not divide by 2"):
        partition.resolve({"image": (6, 8, 8, 3)}, replicas=2)


def test_a_mistake_on_the_command_line_is_refused():
    for text, message in (
        ("image", "expected key=parts"),
        ("image=1,four", "whole numbers"),
        ("image=1,4,1,1;image=1,4,1,1", "given twice"),
        ("[[1,4,1,1],", "expected TPUConfig's lists"),
        ("(1)", "expected parts along each axis"),
    ):
        with pytest.raises(PartitionError, match=message):
            Partition.parse(text, cores_per_replica=4)
    partition = Partition(cores_per_replica=8, dims={"image": [1, 4, 2, 1], "label": None, "mask": [1]})
    assert Partition.parse(str(partition), cores_per_replica=8) == partition


def test_cores_must_fit_the_system_and_divide_it_and_are_whole_numbers_also_of_numpy():
    assert Partition(cores_per_replica=4).replicas(8) == 2
    with pytest.raises(PartitionError, match="take 4 or 8 devices"):
        Partition(cores_per_replica=4).replicas(6)
    assert core_axes(Partition(cores_per_replica=np.int64(4)).cores_per_replica) == ("core0", "core1")
    with pytest.raises(PartitionError, match=r"got 4\.0"):
        Partition(cores_per_replica=4.0)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.sampled_from([2, 4, 8, 16]))
def test_splits_that_divide_are_those_that_brute_force_finds(shape, cores):
    expected = {
        split
        for split in itertools.product(range(1, cores + 1), repeat=len(shape))
        if math.prod(split) == cores
        and all(size % parts == 0 for size, parts in zip(shape, split, strict=True))
    }
    found = splits_that_divide(shape, (cores,))[cores]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert splits_that_divide((128, 128, 128), (8,))[8][0] == (2, 2, 2), "the least halo comes first"
    assert splits_that_divide((1, 1000, 100, 3), (4,), axes=(1, 2))[4][0] == (1, 4, 1, 1)


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=5))
def test_core_axes_spell_the_row_major_core_number(dims):
    """A core's number in binary, most significant bit first, is its coordinate along core0, core1, ..."""
    names = axis_names(dims)
    cores = math.prod(dims)
    axes = core_axes(cores)
    assert [name for group in names for name in group] == list(axes)
    for core, tile in enumerate(itertools.islice(itertools.product(*map(range, dims)), 64)):
        bits = dict(zip(axes, f"{core:0{len(axes)}b}" if axes else "", strict=True))
        assert tile == tuple(int("".join(bits[name] for name in group) or "0", 2) for group in names)


@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("dims", ["1,3,1,1", "1,3,2,1", "1,256,1,1"])
def test_a_product_that_no_number_of_cores_can_be_is_not_advised(cores, dims):
    with pytest.raises(PartitionError) as caught:
        Partition.parse(f"image={dims}", cores_per_replica=cores)
    message = str(caught.value)
    assert "--cores-per-replica" not in message and "cores_per_replica=" not in message, message
    assert "power of 2" in message and "128" in message
