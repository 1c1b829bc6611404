"""What a password or a token in an address comes to: requests have it, and nothing that is told or written."""

import pickle
import shutil
import socket
import traceback

import pytest
from fsspec.config import conf

from halofeed.cli import main
from halofeed.errors import StoreError, UsageError
from halofeed.loader import Loader
from halofeed.storage.web import RefusedRedirectError
from halofeed.system.addresses import Address, keep_secret, redacted
from tests.support.batches import same
from tests.support.conversions import all_bytes, halofeed_here
from tests.support.faulty_server import serving

PASSWORD, TOKEN = "pa55/wordX", "tok123ABC456def789"
SECRETS = (PASSWORD, TOKEN, "pa55%2FwordX", "YW5uOnBhNTUvd29yZFg")  # the last as a request's header has it


def check(*texts: str) -> None:
    """None of them holds a secret."""
    assert not [(secret, text) for text in texts for secret in SECRETS if secret in text]


def forms(address: str) -> list[str]:
    """An address with a user and a password, and with a token."""
    return [address.replace("://", "://ann:pa55%2FwordX@", 1), f"{address}?sig={TOKEN}"]


@pytest.mark.parametrize(
    ("full", "shown"),
    [
        ("s3://AKIA:ab/c+d=@bucket/x/y/", "s3://***@bucket/x/y"),
        ("https://u:a?b#c@host/x", "https://***@host/x"),
        ("https://token@host:80/x?sig=1&b=2#c", "https://***@host:80/x"),
        ("http://host:8080/@eaDir/a:b@c.jpg", "http://host:8080/@eaDir/a:b@c.jpg"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("s3://bucket/k@v/x.jpg", "s3://bucket/k@v/x.jpg"),
    ],
)
def test_an_address_prints_itself_without_user_password_and_query(full, shown):
    address = Address(full)
    copied = pickle.loads(pickle.dumps(address))
    assert str(address) == f"{address}" == shown and shown in repr(address) and copied == address
    assert (copied / "a.json").full.startswith(full.partition("?")[0].rstrip("/")[:9])
    told = redacted(f"cannot open '{full}': no")
    assert (shown.partition("?")[0] in told and full not in told) or full == shown


def test_a_secret_is_found_where_a_library_repeats_a_part_of_the_address():
    Address("https://ann:x9y8z7-secret@host/a")
    keep_secret("short")
    assert redacted("nonnumeric port: 'x9y8z7-secret@host'; short") == "nonnumeric port: '***@host'; short"
    error = UsageError("no s3://a:bcdefgh@c/d?e=f")
    assert str(error) == "no s3://***@c/d?***" and "bcdefgh" not in repr(error)


@pytest.mark.long
def test_no_command_tells_or_writes_a_secret_of_an_address(sets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving(sets["jpeg"][0]) as server:
        for far in forms(server.address):
            looks = [["verify", far], ["inspect", far], ["inspect", far, "--record", "train:1"]]
            looks += [["report", far, "--output", "set.html"], ["show", far, "--output", "set.png"]]
            done = [halofeed_here(*words) for words in looks]
            assert [one.returncode for one in done[1:]] == [0] * 4, [one.stderr for one in done]
            server.fault = lambda name, number: "403"
            done += [halofeed_here(name, far, "--debug") for name in ("verify", "bench", "train", "plan")]
            done += [halofeed_here("inspect", f"{far}/no", "--debug")]
            assert 0 not in [one.returncode for one in done[5:]]
            assert main(["verify", far, far]) == 2
            check(*(one.stdout + one.stderr for one in done), *capsys.readouterr())
            server.fault = lambda name, number: ""
    check(*(data.decode("latin1") for data in all_bytes(tmp_path).values()))


def test_files_that_are_local_are_not_written_to_folders_named_after_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    far = f"s3://ann:{PASSWORD}@bucket/x"
    given = ["train data --out FAR", "evaluate FAR", "predict run data --out=FAR", "export run --out FAR"]
    given += ["predict run --source FAR --out o", "report data --output FAR", "show data --output FAR"]
    given += ["plan --json FAR", "demo --folder FAR", "package --output FAR"]
    for line in given:
        words = line.replace("FAR", far).split()
        done = halofeed_here(*words, *([] if words[0] in ("demo", "package") else ["--debug"]))
        assert done.returncode == 2 and "s3://***@bucket/x: expected a path on local disk" in done.stderr
        check(done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["403", "503", "cut", "absent", "nobody", "scheme", "s3"])
def test_no_error_of_a_loader_holds_a_secret_and_no_refused_connection_is_a_missing_file(
    sets, fault, monkeypatch
):
    monkeypatch.setattr("halofeed.storage.retry.backoff_delay", lambda attempt: 0)
    with serving(sets["jpeg"][0]) as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {
            "absent": f"{server.address}/none",
            "nobody": f"http://127.0.0.1:{free.getsockname()[1]}/x",
            "scheme": "tape://host/x",
            "s3": "s3://bucket/x",
        }.get(fault, server.address)
        server.fault = lambda name, number: fault
        for far in forms(address)[: 1 if fault == "s3" else 2]:
            with pytest.raises((StoreError, UsageError)) as raised:
                Loader(far, batch_size=4)
            texts = [
                *traceback.format_exception(raised.value),
                repr(raised.value),
                repr(raised.value.__cause__),
            ]
            check(*texts)
            if fault == "nobody":
                assert raised.type is StoreError and not [one for one in texts if "FileNotFoundError" in one]
            assert "://***@" in str(raised.value) or TOKEN in far


@pytest.mark.parametrize("fsspec", [False, True], ids=["plain", "by fsspec"])
def test_what_an_address_needs_reaches_the_server_and_the_batches_are_the_same(
    sets, caplog, monkeypatch, fsspec
):
    folder = sets["jpeg"][0]
    caplog.set_level("DEBUG")
    if fsspec:
        monkeypatch.setitem(conf, "http", {"headers": {"X-Any": "1"}})
    with serving(folder) as server:
        for far in forms(server.address):
            loader = Loader(far, batch_size=4)
            same(loader.batch(1), Loader(folder, batch_size=4).batch(1))
            check(repr(loader), repr(pickle.loads(pickle.dumps(loader))))
    assert not fsspec or server.address.rpartition("/")[2] in caplog.text
    check(caplog.text)


@pytest.mark.parametrize("fsspec", [False, True], ids=["plain", "by fsspec"])
def test_redirects_to_another_host_are_refused_unless_they_are_allowed(sets, tmp_path, monkeypatch, fsspec):
    if fsspec:
        monkeypatch.setitem(conf, "http", {"headers": {"X-Any": "1"}})
    folder = shutil.copytree(sets["jpeg"][0], tmp_path / "1.0.0")
    with serving(folder) as other, serving(folder) as server:
        host = other.address.removeprefix("http://")
        far = server.address.replace("://", "://ann:pa55%2FwordX@")
        Loader(far, batch_size=4)
        server.fault = lambda name, number: f"to {other.address}/{name.lstrip('/')}"
        with pytest.raises(StoreError, match=rf"to another host, {host}; .*--redirects {host}") as raised:
            Loader(far, batch_size=4)
        assert isinstance(raised.value.__cause__, RefusedRedirectError | None) and not other.asked
        check(*traceback.format_exception(raised.value))
        for allowed in (host, "127.0.0.1", "*"):
            same(*(Loader(at, batch_size=4).batch(0) for at in (Address(far, (allowed,)), folder)))
        assert other.users == {None} and None not in server.users
        assert halofeed_here("inspect", far).returncode == 1
        assert halofeed_here("inspect", far, "--redirects", f"elsewhere, {host}").returncode == 0
