"""--max-rejected as a number and as a share, the warning without it, and one wording before and after a conversion."""

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import halofeed
from halofeed.errors import JobError, UsageError
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.reject_limit import RejectLimit
from tests.support.annotation_writer import draw
from tests.support.conversions import convert_words, draw_folders, halofeed_here

SIZE = {"layout": "folders", "height": 16, "width": 24}


def largest(share: Fraction, inputs: int) -> int:
    """The largest number of rejects whose share of the inputs is not above the limit, by trying each."""
    return max(number for number in range(inputs + 1) if Fraction(number, inputs) <= share)


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_a_share_allows_as_many_as_a_slow_count(hundredths: int, inputs: int) -> None:
    share, percent = Fraction(hundredths, 10_000), f"{hundredths / 100:.2f}%"
    for text in (percent, f"{hundredths / 10_000:.4f}"):
        assert RejectLimit.of(text).most(inputs) == largest(share, inputs)
    assert RejectLimit.of(hundredths) == RejectLimit.of(str(hundredths)) == RejectLimit(count=hundredths)


@pytest.mark.parametrize("value", ["few", "-1", "101%", "1.5", "", "5 %%", "nan", "1e3", "½"])
def test_what_is_neither_a_number_nor_a_share_is_refused(value: str) -> None:
    words = re.escape(f"--max-rejected {value}: expected a number of inputs, such as 100, or a share of them")
    with pytest.raises(UsageError, match=words):
        JobOptions(source="s", out="o", name="n", max_rejected=value)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pictures of which three are broken, and two files that are left out on purpose."""
    folder = draw_folders(tmp_path_factory.mktemp("source"), 20, broken=3)
    for name in ("layers.psd", "more.psd"):
        (folder / "hat" / name).write_bytes(b"left out")
    return folder


@pytest.mark.parametrize(("accepted", "refused"), [("15%", "14.9%"), ("0.15", "0.149"), (3, 2), (0.15, 0.1)])
def test_a_share_is_of_the_inputs_that_were_asked_for(
    source: Path, tmp_path: Path, accepted: object, refused: object
) -> None:
    data = halofeed.convert(source, tmp_path / "a", max_rejected=accepted, **SIZE)
    assert sum(count for reason, count in data.rejected.items() if "psd" not in reason) >= 3
    with pytest.raises(JobError, match=r"max_rejected"):
        halofeed.convert(source, tmp_path / "b", max_rejected=refused, **SIZE)
    with pytest.raises(JobError, match=r"is converted, but 3 inputs were rejected and max_rejected allows"):
        halofeed.convert(source, tmp_path / "a", max_rejected=refused, **SIZE)
    name = data.path.split("/")[-2]
    assert not (tmp_path / "b" / name / "1.0.0/manifest.json").exists()


def test_a_share_in_numpy_is_that_of_its_text(source: Path, tmp_path: Path) -> None:
    assert halofeed.convert(source, tmp_path, max_rejected=np.float32(0.15), **SIZE)


@pytest.mark.parametrize(("broken", "warns"), [(1, False), (2, True)])
def test_more_than_a_twentieth_warns_and_exits_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: int, warns: bool
) -> None:
    folder = draw_folders(tmp_path / "src", 20, broken=broken)
    words = convert_words(folder, tmp_path / "out")
    done = halofeed_here(*words)
    assert done.returncode == 0 and ("warning: 2 of 20 inputs rejected, more than 5%" in done.stdout) == warns
    for limit in ("10%", "2"):
        assert "warning" not in halofeed_here(*words, "--max-rejected", limit).stdout
    capsys.readouterr()
    halofeed.convert(folder, tmp_path / "function", **SIZE)
    said = capsys.readouterr().err
    assert ("2 of 20 inputs rejected" in said and "accept them with max_rejected 10%" in said) == warns
    halofeed.convert(folder, tmp_path / "function", quiet=True, **SIZE)
    assert capsys.readouterr().err == ""


def outcomes(text: str) -> Counter[str]:
    """The lines on rejected inputs, files that are left out and dropped objects, without where they are listed."""
    found = [
        line
        for line in text.splitlines()
        if re.search(r"^  [\d,]+ .*(rejected|left out|dropped)|^ +\d+ x ", line)
    ]
    return Counter(re.sub(r", see \S*", "", line) for line in found)


def table_of_some(folder: Path) -> list[object]:
    """A table that leaves out files on purpose, and names files that are missing."""
    draw_folders(folder, 6)
    rows = [
        "filename,class",
        "hat/0000.jpg,hat",
        "shirt/0001.jpg,shirt",
        "hat/gone.jpg,hat",
        "hat/lost.jpg,hat",
    ]
    (folder / "some.csv").write_text("\n".join(rows) + "\n")
    return ["--source", folder / "some.csv", "--images", folder, "--layout", "csv"]


def boxes_with_faults(folder: Path) -> list[object]:
    """Boxes of which one is inverted, and a picture that is missing."""
    draw(folder, "a.png", "b.png")
    good, bad = (2, 2, 8, 8), (8, 8, 2, 2)
    rows = [
        "filename,class,xmin,ymin,xmax,ymax",
        *(f"a.png,hat,{','.join(map(str, good))}" for _ in range(3)),
    ]
    rows += [f"b.png,hat,{','.join(map(str, box))}" for box in (good, bad)] + ["gone.png,hat,1,1,9,9"]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    return ["--source", folder / "t.csv", "--images", folder, "--layout", "csv"]


@pytest.mark.parametrize("prepare", [table_of_some, boxes_with_faults])
def test_a_dry_run_and_the_conversion_say_the_same_of_the_same_files(prepare, tmp_path: Path) -> None:
    words = ["convert", *prepare(tmp_path / "src"), "--out", tmp_path / "out", "--name", "set"]
    words += ["--height", 16, "--width", 24]
    foretold, said = (halofeed_here(*words, *more).stdout for more in (["--dry-run"], []))
    assert outcomes(said) and outcomes(said) <= outcomes(foretold), f"{foretold}\n{said}"
    warned = [re.findall(r"warning: .* rejected, more than 5%", text) for text in (foretold, said)]
    assert warned[0] == warned[1] != []


def test_a_chosen_layout_is_a_plain_status_line(tmp_path: Path) -> None:
    draw_folders(tmp_path / "src", 4)
    words = ["convert", "--source", tmp_path / "src", "--out", tmp_path / "out", "--name", "set"]
    words += ["--height", 16, "--width", 24]
    done = halofeed_here(*words)
    assert done.stderr == "layout folders, because it finds labels for 4 of 4 inputs\n"
    assert halofeed_here(*words, "--quiet").stderr == ""
