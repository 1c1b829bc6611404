"""Is every file below a source folder found once, whatever links there are?"""

from __future__ import annotations

import pytest

from halofeed.prep.sources import LocalFiles
from halofeed.schemas.errors import SourceError


def test_links_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "root" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "cat" / "a.png").write_bytes(b"abc")
    (tmp_path / "elsewhere" / "b.png").write_bytes(b"ab")
    (tmp_path / "root" / "cat" / "up").symlink_to("..")
    (tmp_path / "root" / "cat" / "self").symlink_to(".")
    (tmp_path / "root" / "dog").symlink_to(tmp_path / "elsewhere")
    assert dict(LocalFiles(tmp_path / "root").sizes()) == {"cat/a.png": 3, "dog/b.png": 2}


def test_a_link_that_leads_nowhere_is_listed_and_cannot_be_read(tmp_path):
    (tmp_path / "a.png").symlink_to("nowhere.png")
    files = LocalFiles(tmp_path)
    assert dict(files.sizes()) == {"a.png": 0}
    with pytest.raises(SourceError, match="No such file"):
        files.read("a.png")
