"""Fixtures that draw examples and write small picture data sets; eight virtual CPU devices."""

import jax
import pytest

from tests.support.picture_writer import draw_examples, write_splits

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def draw():
    return draw_examples


@pytest.fixture(scope="session")
def write(tmp_path_factory):
    """Writes {split: examples}, or examples as `train`, and gives the folder."""

    def write(examples, **options):
        splits = examples if isinstance(examples, dict) else {"train": examples}
        return write_splits(tmp_path_factory.mktemp("tiny") / "1.0.0", splits, **options)

    return write
