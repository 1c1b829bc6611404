"""Small data sets of each kind."""

import pytest

from halofeed.loader import FlipLeftRight, MixUp, RandomCrop
from halofeed.loader.store import remote_store as remote
from halofeed.storage import retry
from tests.support.volume_writer import draw_scans, write_scans


@pytest.fixture(scope="session")
def sets(draw, write, tmp_path_factory):
    """A folder for each kind of data set, and the augmentations that are tried on it."""
    scans = draw_scans({"train": 14}, shape=(7, 9, 11))
    large = draw_scans({"train": 6}, shape=(24, 160, 400), seed=3)
    volumes = tmp_path_factory.mktemp("volumes")
    crop = [RandomCrop(16, 16), FlipLeftRight()]
    return {
        "pictures": (write(draw(22), masks=True), []),
        "crops": (write(draw(22)), crop),
        "mixed": (write(draw(22)), [MixUp(probability=0.7)]),
        "jpeg": (write(draw(22), encoding="jpeg", pad=False), crop),
        "png": (write(draw(13), encoding="png", pad=False), []),
        "volumes": (write_scans(volumes / "tiny" / "1.0.0", scans), []),
        "large volumes": (write_scans(volumes / "large" / "1.0.0", large), []),
        "packed": (write(draw(22), encoding="packed"), []),
        "packed crops": (write(draw(22), encoding="packed"), crop),
        "yuv420": (write(draw(22), encoding="yuv420"), []),
        "yuv420 crops": (write(draw(22), encoding="yuv420"), crop),
        "packed volumes": (write_scans(volumes / "packed" / "1.0.0", large, encoding="packed"), []),
        "packed volume crops": (
            volumes / "packed" / "1.0.0",
            [RandomCrop(5, 20, 300, foreground=0.5)],
        ),
        "volume crops": (volumes / "large" / "1.0.0", [RandomCrop(5, 20, 300, foreground=0.5)]),
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch):
    """Pauses between attempts that tests have the time for."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(remote, "LONGEST_PAUSE_SECONDS", 0.05)
