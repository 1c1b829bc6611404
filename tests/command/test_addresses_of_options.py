"""Every option that takes a path, given addresses: no message has a token, and none is a library's raw error."""

import pytest

from halofeed.cli import _COMMANDS, main, options_of
from halofeed.storage import retry
from tests.support.conversions import draw_folders

SECRET = "a7Zq"
QUERY = f"?sig={SECRET}%2F9x"
ADDRESSES = tuple(
    f"{place}/x.json{QUERY}"
    for place in (
        *("s3://bucket", "gs://bucket", "hdfs://host", "http://127.0.0.1:9", "https://127.0.0.1:9"),
        *("s4://bucket", "ftp://host", "file:///tmp"),
    )
)
UNKNOWN = ("s4", "ftp")
OF_CONVERT = (
    *("--source", "--images", "--out", "--label-map", "--split-lists", "--nnunet-splits", "--normalize-like"),
    *("--preview", "--recipe"),
)
LOCAL = (
    "out",
    "output",
    "sources",
    "source",
    "json",
    "html",
    "folder",
    "config",
    "backbone_weights",
    "init",
    "images",
)
NO_PATHS = {("export", "--to"), ("demo", "--images"), ("convert", "--source"), ("convert", "--images")}


def words_of_convert(option, address, folder):
    words = {"--source": str(folder / "photos"), "--out": str(folder / "out"), "--name": "x"}
    words |= {"--height": "16", "--width": "16"}
    words[option] = f"train={address}" if option == "--split-lists" else address
    if option == "--preview":
        words["--preview"] = address.replace(".json", ".png")
    more = ["--dry-run"] if option == "--preview" else []
    return ["convert", *(word for pair in words.items() for word in pair), *more]


def other_words():
    """The command line of each other option and argument that is a path, without its value."""
    for command in _COMMANDS:
        if command in ("convert", "completion", "configs"):
            continue
        if command not in ("demo", "package", "plan"):
            yield command, "", [command]
        for name, action in options_of(command).items():
            is_path = action.dest in LOCAL and action.option_strings[0] == name
            if is_path and (command, name) not in NO_PATHS:
                takes_folder = command not in ("demo", "package")
                yield command, name, [command, *(["nowhere"] if takes_folder else []), name]


def answer(words, capfd):
    code = main(words)
    said = "".join(capfd.readouterr())
    assert code != 0, said
    assert SECRET not in said
    assert "shows where" not in said, f"a raw error: {said}"
    assert "Traceback" not in said
    return said


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch):
    monkeypatch.setattr(retry, "REQUEST_ATTEMPTS", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("addresses")
    draw_folders(root / "photos", 4)
    return root


@pytest.mark.parametrize("option", OF_CONVERT)
def test_convert_tells_no_token_and_names_an_unknown_scheme(option, folder, capfd):
    for address in ADDRESSES:
        said = answer(words_of_convert(option, address, folder), capfd)
        scheme = address.partition("://")[0]
        if scheme in UNKNOWN and option not in ("--normalize-like", "--preview"):
            assert f"{scheme}:// is an unknown file system" in said, said
            assert option in said


@pytest.mark.parametrize(("command", "option", "words"), list(other_words()))
def test_other_commands_tell_no_token(command, option, words, capfd):
    for address in ADDRESSES:
        answer([*words, address], capfd)
