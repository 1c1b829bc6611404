"""The data set that the commands of these tests are given, made of the pictures that each module draws."""

from pathlib import Path

import pytest

from tests.support.commands import SETTINGS
from tests.support.conversions import draw_folders, run_convert


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of the pictures that SOURCE of a module describes."""
    return draw_folders(tmp_path_factory.mktemp("source"), **request.module.SOURCE)


@pytest.fixture(scope="module")
def data(source, tmp_path_factory) -> Path:
    """The module's source, converted undisturbed."""
    return Path(run_convert(source, tmp_path_factory.mktemp("data"), **SETTINGS).folder)
