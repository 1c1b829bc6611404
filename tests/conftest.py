"""What all tests share: where the real data lies, or a plain statement, and a user's state of their own."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.levels import Levels

_NOBODY = 65534
TEST_DATA = Path(os.environ.get("HALOFEED_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")

# How long an example takes says how busy the machine is.
settings.register_profile("halofeed", deadline=None)
settings.load_profile("halofeed")

TEMPORARY = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `./run test`; see tests/support/levels.py."""
    parser.addoption("--record-durations", action="store_true", help="write .ci/durations.json")
    parser.addoption("--record-passes", action="store_true", help="write tests/exhaustive.json")


def pytest_configure(config: pytest.Config) -> None:
    """Register the order of the files; keep the state of conversions and JAX programs in temporary folders.

    Child processes inherit both folders.
    """
    config.pluginmanager.register(Levels(config))
    folders = [tempfile.mkdtemp(prefix="halofeed-tests-state-")]
    os.environ["XDG_STATE_HOME"] = folders[0]
    if not hasattr(config, "workerinput"):  # the workers of xdist inherit it
        folders.append(tempfile.mkdtemp(prefix="halofeed-tests-programs-"))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folders[1]
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
    config.stash[TEMPORARY] = folders


def pytest_unconfigure(config: pytest.Config) -> None:
    for folder in config.stash[TEMPORARY]:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header() -> str:
    state = "found" if TEST_DATA.is_dir() else "ABSENT: tests on real files skip; set HALOFEED_TEST_DATA"
    return f"real data: {TEST_DATA} ({state})"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real input; the test is skipped where it is absent."""
    if not TEST_DATA.is_dir():
        pytest.skip(f"no real data at {TEST_DATA}; set HALOFEED_TEST_DATA")
    return TEST_DATA


@pytest.fixture
def ordinary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which `ordinary_user` can write; pytest's own lie where none but their owner gets to.

    Temporary files lie beside it, for the system's folder of them may not be everybody's either.
    """
    base = Path(tempfile.mkdtemp(prefix="halofeed-test-"))
    base.chmod(0o755)
    for name in ("folder", "temporary"):
        (base / name).mkdir()
        (base / name).chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(base / "temporary"))
    yield base / "folder"
    for above, names, _ in os.walk(base):
        for name in names:
            if not os.path.islink(inside := os.path.join(above, name)):
                os.chmod(inside, 0o700)
    shutil.rmtree(base)


@contextmanager
def _without_rights() -> Iterator[None]:
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def ordinary_user() -> Callable[[], AbstractContextManager[None]]:
    """What takes a superuser's rights from this process for a while; nothing where it has none.

    What is imported in that while must be so already: Python itself may lie in the superuser's home.
    """
    return nullcontext if os.geteuid() else _without_rights
