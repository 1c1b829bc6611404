"""The warning about copies at the end of a conversion."""

from pathlib import Path

import pytest

import halofeed
from halofeed.inspection.review import leak_warning
from halofeed.inspection.review.leak_warning import copy_warnings
from tests.inspection.test_copies import PLANTED, draw, write
from tests.support.conversions import convert_words, halofeed_here, run_convert


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 6 pictures, with a resized copy in another split and an exact one of another class."""
    folder = tmp_path_factory.mktemp("leaking")
    for number in range(6):
        write(folder, f"train/{'ab'[number % 2]}/{number}.png", draw(number))
    write(folder, "test/a/copy0.png", PLANTED["resized"](draw(0)))
    write(folder, "train/a/copy1.png", draw(1))
    return folder


SIZE = {"height": 80, "width": 100}


def test_the_command_and_python_warn_of_copies_with_files_and_a_command(
    leaking: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = halofeed_here(*convert_words(leaking, tmp_path, **SIZE)).stdout
    lines = [line for line in printed.splitlines() if "of copies" in line]
    assert "1 group of copies is in several splits" in lines[0]
    assert "test/a/copy0.png (test:0) and train/a/0.png (train:" in lines[0]
    assert "1 group of copies has labels that differ" in lines[1] and "a in 1 and b in 1" in lines[1]
    command = lines[0].split("`")[1].split()
    assert "copies in several splits: 1" in halofeed_here(*command[1:]).stdout
    halofeed.convert(leaking, tmp_path / "python", name="set", **SIZE)
    said = capfd.readouterr().err
    assert "halofeed.convert: 1 group of copies is in several splits" in said
    halofeed.convert(leaking, tmp_path / "quiet", name="set", quiet=True, **SIZE)
    assert "copies" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "more", [{}, {"split_shares": "train=0.5,test=0.5", "split_seed": 3}], ids=["named", "shares"]
)
def test_the_option_that_a_warning_names_repairs_the_leak(
    leaking: Path, tmp_path: Path, more: dict[str, object]
) -> None:
    words = convert_words(leaking, tmp_path, **SIZE, **more)
    (line,) = [line for line in halofeed_here(*words).stdout.splitlines() if "in several splits" in line]
    advised = line.partition("the same command with ")[2].split()[:3]
    assert advised[0] == "--duplicates" and advised[2] == "--overwrite"
    assert "in several splits" not in halofeed_here(*words, *advised).stdout


def test_leaks_with_other_labels_are_repaired_by_the_option_that_the_warning_names(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "in", f"train/a/{number}.png", draw(number))
    write(tmp_path / "in", "test/b/0.png", draw(0))
    write(tmp_path / "in", "test/b/9.png", draw(9))
    words = convert_words(tmp_path / "in", tmp_path, **SIZE)
    (line,) = [line for line in halofeed_here(*words).stdout.splitlines() if "in several splits" in line]
    advised = line.partition("the same command with ")[2].split()[:3]
    assert "in several splits" not in halofeed_here(*words, *advised).stdout


def test_no_copies_give_no_warning(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "in", f"{('train', 'test')[number % 2]}/a/{number}.png", draw(number))
    assert (
        copy_warnings(run_convert(tmp_path / "in", tmp_path / "out", layout="folders", **SIZE).folder) == []
    )


def test_a_failing_search_is_named_and_the_conversion_succeeds(
    leaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(leak_warning, "copy_groups", fail)
    done = halofeed_here(*convert_words(leaking, tmp_path, **SIZE))
    assert done.returncode == 0 and "copies were not searched (ValueError: broken)" in done.stdout


def test_a_large_data_set_is_not_searched_and_the_warning_says_how(
    leaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_convert(leaking, tmp_path, layout="folders", **SIZE).folder
    monkeypatch.setattr(leak_warning, "MOST_RECORDS", 7)
    (text,) = copy_warnings(folder)
    assert "not searched" in text and "more than 7 records" in text and f"`halofeed review {folder}`" in text
