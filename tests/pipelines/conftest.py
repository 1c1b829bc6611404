"""What tests of conversions share: pictures to convert, and a server of each kind of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.storage import retry
from tests.support.conversions import draw_folders
from tests.support.engines.processes import MissingError
from tests.support.stores import Place, serving


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of the pictures that SOURCE of a module describes."""
    return draw_folders(tmp_path_factory.mktemp("source"), **request.module.SOURCE)


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.exhaustive)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store with an empty bucket, for the tests of a file; gs://, whose server is built first, by hand only."""
    try:
        with serving(request.param, tmp_path_factory.mktemp("store")) as found:
            yield found
    except MissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def clean(place: Place) -> Place:
    """The store, of which nothing is left of earlier tests."""
    store = place.store()
    store.delete([entry.path for entry in store.entries()])
    store.abort_uploads()
    return place


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between attempts, so that their number decides and not the time."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_SECONDS", 0.01)
