"""Check of the program that `halofeed inspect --parser` prints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.inspection.describe_dataset import parser_code
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from tests.support.conversions import shard_paths


def check_parser(folder: str | Path, split: str = "train") -> None:
    """Compare every record that the program reads with the loader's; images must need no padding."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    program: dict[str, Any] = {}
    exec(parser_code(folder), program)
    fields = read_manifest(folder).fields
    names = [one.name for one in fields if one.optional and one.name in ("masks", "source", "transform")]
    loader = Loader(folder, split=split, batch_size=1, training=False, include=names)
    files = list(map(str, shard_paths(Path(folder), split)))
    rows = list(tf.data.TFRecordDataset(files).map(program["parse"]).as_numpy_iterator())
    assert len(rows) == loader.num_records
    for number, row in enumerate(rows):
        assert row.keys() == {field.name for field in fields}
        batch = loader.batch(number)
        for name in row.keys() & batch.keys():
            value, expected = row[name], np.asarray(batch[name][0])
            value = np.asarray(value.decode() if isinstance(value, bytes) else value)
            assert value.dtype == expected.dtype or value.dtype.kind == "U", name
            inside = expected[tuple(map(slice, value.shape))]  # lists and masks are padded
            np.testing.assert_array_equal(value, inside, err_msg=name)
