"""Folder in which the examples of the Python API run: pictures, a data set of them, and a trained model."""

import contextlib
from pathlib import Path

import pytest

API = (
    *("halofeed.api.", "halofeed.loader.dataset.", "halofeed.loader.mixture.", "halofeed.keras_data."),
    "halofeed.loader.forms.epoch_batches.",
)
OF_A_RUN = ("evaluate", "export", "predict", "train")


@pytest.fixture(scope="session")
def api_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw `photos` and convert them to `data/photos` and `data/more`."""
    from tests.support.conversions import draw_folders, run_convert

    folder = tmp_path_factory.mktemp("api")
    draw_folders(folder / "photos", 8)
    for name in ("photos", "more"):
        run_convert(folder / "photos", folder / "data", name=name, layout="folders")
    return folder


@pytest.fixture(scope="session")
def api_run(api_folder: Path) -> None:
    """Train a small model for a step."""
    import halofeed

    with contextlib.chdir(api_folder):
        halofeed.train("data/photos", out="run", steps=1, batch_size=8, set={"model.features": [8]})


@pytest.fixture(autouse=True)
def _in_api_folder(request: pytest.FixtureRequest) -> None:
    """Run an example of the API in its folder, with halofeed imported."""
    if isinstance(request.node, pytest.DoctestItem) and request.node.name.startswith(API):
        import halofeed

        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("api_folder"))
        request.getfixturevalue("doctest_namespace")["halofeed"] = halofeed
        if request.node.name.endswith(OF_A_RUN):
            request.getfixturevalue("api_run")
