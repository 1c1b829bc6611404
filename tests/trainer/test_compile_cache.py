"""A program is compiled once: the next command loads it, with equal results, whatever happens to the files."""

import contextlib
import errno
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halofeed
from halofeed.storage import paths
from halofeed.trainer import compile_cache as subject
from halofeed.trainer.compile_cache import ProgramFiles, chosen_folder, compile_cache
from halofeed.trainer.run_folder import open_run
from tests.support.conversions import draw_folders, run_convert
from tests.support.training import logged


@pytest.fixture(scope="module")
def events() -> Iterator[Counter[str]]:
    """The number of JAX's events by their last word."""
    found: Counter[str] = Counter()

    def count(name: str, **_: Any) -> None:
        found[name.rpartition("/")[2]] += 1

    jax.monitoring.register_event_listener(count)
    yield found
    jax.monitoring.unregister_event_listener(count)


@pytest.fixture
def compiled_in(events: Counter[str]) -> Callable[..., int]:
    """A function that calls another one and returns the number of programs that it compiled and did not load."""

    def call(function: Callable[..., object], *arguments: object) -> int:
        events.clear()
        function(*arguments)
        assert events["compile_requests_use_cache"]
        return events["compile_requests_use_cache"] - events["cache_hits"]

    return call


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    draw_folders(folder / "source", 8)
    return run_convert(folder / "source", folder / "out", layout="folders", height=16, width=16).folder


def train(data: str, out: Path, cache: Path | str) -> list[float]:
    """The losses of a small run, as a command in a new process would compute them."""
    jax.clear_caches()
    halofeed.train(
        data,
        out=out,
        config="classifier_small",
        steps=4,
        batch_size=8,
        checkpoint_every=2,
        evaluate_split="train",
        set={"model.features": [8]},
        compile_cache=cache,
    )
    return [entry["loss"] for entry in logged(out)]


def weights(run: Path) -> list[np.ndarray[Any, Any]]:
    opened = open_run(run)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(opened.restore(opened.problem(), "last")[:2])]


def test_commands_on_a_trained_model_compile_nothing_again(
    compiled_in: Callable[..., int], data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, first, again = tmp_path / "cache", tmp_path / "first", tmp_path / "again"
    assert compiled_in(train, data, first, cache) > 5
    assert re.search(r"; compiled in \d+\.\d s\n", capsys.readouterr().err)
    assert compiled_in(train, data, again, cache) == 0
    assert re.search(r"; loaded in \d+\.\d s from the compile cache\n", capsys.readouterr().err)
    assert [entry["loss"] for entry in logged(again)] == [entry["loss"] for entry in logged(first)]
    # Bit by bit as the program that was compiled here.
    for one, other in zip(weights(again), weights(first), strict=True):
        np.testing.assert_array_equal(one, other)

    shutil.rmtree(again / "checkpoints" / "00000004")
    assert compiled_in(train, data, again, cache) == 0
    assert [entry["loss"] for entry in logged(again)] == [entry["loss"] for entry in logged(first)]
    for one, other in zip(weights(again), weights(first), strict=True):
        np.testing.assert_array_equal(one, other)

    def evaluate() -> None:
        jax.clear_caches()
        halofeed.evaluate(again, compile_cache=cache)

    def predict() -> None:
        jax.clear_caches()
        halofeed.predict(again, out=tmp_path / "predicted", compile_cache=cache)

    assert compiled_in(evaluate) == compiled_in(predict) == 0


def test_damaged_programs_are_compiled_again_and_change_no_result(
    compiled_in: Callable[..., int], data: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    losses = train(data, tmp_path / "first", cache)
    whole = {file: file.read_bytes() for file in sorted(cache.iterdir())}
    for number, (file, content) in enumerate(whole.items()):
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
        # Another program's bytes have a correct checksum of their own.
        other = next(value for name, value in whole.items() if name != file)
        file.write_bytes([flipped, content[:middle], b"", other][number % 4])
    assert compiled_in(train, data, tmp_path / "second", cache) == len(whole)
    assert [entry["loss"] for entry in logged(tmp_path / "second")] == losses
    assert compiled_in(train, data, tmp_path / "third", cache) == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_named_once_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: int
) -> None:
    # Also a superuser cannot write.
    def create(path: Path) -> int:
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr(subject, "create_file", create)
    jax.clear_caches()
    with compile_cache(tmp_path / "cache") as files:
        assert jax.jit(lambda x: x * 7)(3) == 21
        assert jax.jit(lambda x: x * 8)(3) == 24
    assert files is not None and files.stored == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "cache") in line and os.strerror(error) in line and "--compile-cache" in line
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_in_place_of_the_folder_fails_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("notes")
    jax.clear_caches()
    with compile_cache(tmp_path / "cache"):
        assert jax.jit(lambda x: x * 9)(3) == 27
    assert (tmp_path / "cache").read_text() == "notes"
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_block_ends_with_the_settings_of_before(tmp_path: Path) -> None:
    names = [name for name in jax.config.values if "cache" in name]
    before = {name: getattr(jax.config, name) for name in names}
    with contextlib.suppress(ZeroDivisionError), compile_cache(tmp_path / "cache"):
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache")
        raise ZeroDivisionError
    assert {name: getattr(jax.config, name) for name in names} == before
    jax.clear_caches()
    assert jax.jit(lambda x: x * 11)(3) == 33
    assert not (tmp_path / "cache").exists()


def test_another_version_of_jax_or_no_folder_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("jax._src.compilation_cache.get_file_cache")
    for folder in (tmp_path / "cache", None):
        with compile_cache(folder) as files:
            assert files is None
            assert jax.config.jax_compilation_cache_dir != str(folder)


def test_the_option_comes_before_the_variable_and_that_before_the_settings_of_jax(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(subject.VARIABLE, "")
    dir_before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert chosen_folder(None) == tmp_path / "halofeed" / "compiled"
        # Several processes share only a folder that is named.
        assert chosen_folder(None, processes=2) is None
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of jax"))
        assert chosen_folder(None) is None
        monkeypatch.setenv(subject.VARIABLE, "variable")
        assert chosen_folder(None) == chosen_folder(None, processes=2) == Path("variable")
        assert chosen_folder("option", processes=2) == Path("option")
        assert chosen_folder("none") is None
        monkeypatch.setenv(subject.VARIABLE, "none")
        assert chosen_folder(None) is None
    finally:
        jax.config.update("jax_compilation_cache_dir", dir_before)


def test_the_cache_folder_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # A relative XDG_CACHE_HOME does not count, by the specification.
    for cache in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert paths.user_cache_folder("plans") == tmp_path / ".cache" / "halofeed" / "plans"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert paths.user_cache_folder("plans") is None


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(key=KEYS, other=KEYS, value=st.binary(max_size=200), change=st.data())
@settings(max_examples=60)
def test_a_file_gives_the_stored_bytes_or_none(
    tmp_path_factory: pytest.TempPathFactory, key: str, other: str, value: bytes, change: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    ProgramFiles(folder).put(key, value)
    assert ProgramFiles(folder).get(key) == value
    assert other == key or ProgramFiles(folder).get(other) is None
    (file,) = folder.iterdir()
    content = file.read_bytes()
    if change.draw(st.booleans()):
        bit = change.draw(st.integers(0, len(content) * 8 - 1))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
    else:
        damaged = bytearray(content[: change.draw(st.integers(0, len(content) - 1))])
    file.write_bytes(damaged)
    assert ProgramFiles(folder).get(key) is None
    # The damaged file is gone, so the next program takes its place.
    assert list(folder.iterdir()) == []


def test_readers_beside_writers_get_whole_programs(tmp_path: Path) -> None:
    values = [bytes([number]) * 300_000 for number in range(4)]
    ended, wrong = threading.Event(), []
    ProgramFiles(tmp_path).put("key", values[0])

    def read() -> None:
        while not ended.is_set():
            # A part of a file would have a wrong checksum.
            if (found := ProgramFiles(tmp_path).get("key")) not in values:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [
        threading.Thread(target=lambda one=one: [ProgramFiles(tmp_path).put("key", one) for _ in range(30)])
        for one in values
    ]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert wrong == [] and ProgramFiles(tmp_path).get("key") in values
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Ten programs of 1,000 bytes, the first of them the oldest, a temporary file of a killed process, and notes."""
    files = ProgramFiles(tmp_path)
    for number in range(10):
        files.put(str(number), bytes(1000))
        os.utime(files._file(str(number)), (number + 1, number + 1))
    (tmp_path / "abandoned.new").write_bytes(b"")
    os.utime(tmp_path / "abandoned.new", (1, 1))
    (tmp_path / "current.new").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    "limits", [{"MAX_FILES": 6}, {"MAX_BYTES": 6500}, {"MAX_FILES": 6, "MAX_BYTES": 6500}]
)
def test_the_least_recently_used_programs_are_deleted(
    filled: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(subject, name, value)
    assert ProgramFiles(filled).get("0") is not None  # used just now
    files = ProgramFiles(filled)
    files.put("new", bytes(1000))
    kept = {name for name in [*map(str, range(10)), "new"] if files.get(name) is not None}
    assert kept == {"0", "6", "7", "8", "9", "new"}
    assert {file.name for file in filled.iterdir() if file.suffix != ".program"} == {
        "current.new",
        "notes.txt",
    }


def test_programs_of_other_versions_and_processors_have_other_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = ProgramFiles(tmp_path)
    files.put("key", b"program")
    own = subject._environment()
    assert f"jaxlib {jax.lib.__version__}" in own
    for other in (own[:-1], (*own, "more"), ("jaxlib 0.0.1", *own[1:])):
        monkeypatch.setattr(subject, "_environment", lambda other=other: other)
        assert files.get("key") is None
    monkeypatch.setattr(subject, "_environment", lambda: own)
    assert files.get("key") == b"program"
