"""Does the command line speak plainly: exit codes, one-line errors, examples, Beam's options after `--`?"""

import argparse
import dataclasses
import re
import shlex
import socket
from pathlib import Path

import pytest

from halofeed.cli import _parser, command_parser
from halofeed.errors import UsageError
from halofeed.parser import subparsers
from halofeed.pipelines import beam_options as options
from halofeed.pipelines import workers as workers_module
from halofeed.pipelines.beam_options import choose_runner
from halofeed.pipelines.job import JobOptions
from tests.support.conversions import convert_words, halofeed, halofeed_here

COMMANDS = tuple(subparsers(_parser()))
SCREEN_LINES = 60
FLAG = re.compile(r"^  (?:-\w, )?(--[a-z-]+)", re.MULTILINE)
SOURCE = {"images": 8, "broken": 1}


def convert(source: Path, out: Path, *more: object, layout: str = "folders"):
    return halofeed_here(*convert_words(source, out, layout=layout, workers=1), *more)


def assert_readable(done, code: int, match: str) -> None:
    """One line, or a head line and an indented list; no traceback, no log."""
    assert done.returncode == code, done.stderr
    first, *rest = done.stderr.splitlines()
    assert re.match(rf"halofeed [a-z]+: .*{match}", first), done.stderr
    assert all(line.startswith("  ") for line in rest) and "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""


def test_a_conversion_says_what_it_did_and_exits_0(source, tmp_path):
    done = halofeed(*convert_words(source, tmp_path), "--workers", 2)
    assert done.returncode == 0 and done.stderr == ""
    assert "set 1.0.0: converted, classification, 2 classes" in done.stdout
    assert re.search(r"train +7 records", done.stdout)
    assert re.search(r"1 input rejected, see .*rejected\.jsonl", done.stdout)
    assert re.search(r"1 x decode: ", done.stdout)
    again = convert(source, tmp_path)
    assert again.returncode == 0 and "set 1.0.0: already converted" in again.stdout


def test_files_that_a_table_does_not_name_are_no_failures_in_the_summary(source, tmp_path):
    (tmp_path / "some.csv").write_text("filename,class\nhat/0002.jpg,hat\nhat/0000.jpg,hat\n")
    done = convert(tmp_path / "some.csv", tmp_path / "out", "--images", source, layout="csv")
    assert re.search(r"1 input rejected", done.stdout), "the broken one"
    assert re.search(r"2 other files left out \(not asked for\), see .*rejected\.jsonl", done.stdout)


def test_wrong_usage_exits_2_and_what_the_data_makes_impossible_1(source, tmp_path):
    for more, match in (
        (["--workers", 0], "--workers 0: expected 1 or more"),
        (["--pad-value", "1,2"], "--pad-value: expected 1 or 3 values"),
        (["--group-pattern", "("], "not a regular expression"),
        (["--split-shares", "train=0,test=1"], "--split-shares: expected each above 0"),
    ):
        assert_readable(convert(source, tmp_path / "out", *more), 2, match)
        assert not (tmp_path / "out").exists()
    assert_readable(halofeed_here("verify", "x", "--", "--runner=x"), 2, "only convert takes options")
    for more, word in ((["--over"], "--over"), (["--", "--runner=NoSuchRunner"], "NoSuchRunner")):
        done = convert(source, tmp_path / "out", *more)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()
    (tmp_path / "labels.txt").write_text("shirt\n")
    done = convert(source, tmp_path / "out", "--label-map", tmp_path / "labels.txt")
    assert_readable(done, 1, r"1 label of the data is not in")
    done = convert(source, tmp_path / "out", "--max-rejected", 0, "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("halofeed convert: inputs rejected: more than --max-rejec")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_fits_a_screen_and_shows_an_example_and_debug(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")  # the narrowest usual terminal, whatever this one is
    done = halofeed_here(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"examples?:", done.stdout) and f"  halofeed {command}" in done.stdout
    assert "--debug" in done.stdout and "--help-all" in done.stdout
    assert len(lines := done.stdout.splitlines()) <= SCREEN_LINES
    assert max(len(line) for line in lines if not line.startswith("    halofeed")) <= 120


@pytest.mark.parametrize("command", COMMANDS)
def test_the_complete_help_of_a_command_shows_every_option_in_full(command):
    short, complete = (halofeed_here(command, word) for word in ("--help", "--help-all"))
    assert complete.returncode == 0 and complete.stderr == ""
    shown = [action for action in command_parser(command)._actions if action.help != argparse.SUPPRESS]
    flags = {flag for action in shown for flag in action.option_strings if flag.startswith("--")}
    words = " ".join(complete.stdout.split())
    assert not flags - set(re.findall(r"(?<![\w-])--[a-z-]+", words))
    for action in shown:
        assert " ".join((action.help or "").replace("%%", "%").split()) in words, action
    assert set(FLAG.findall(short.stdout)) <= set(FLAG.findall(complete.stdout))
    # One line of the help has both where there is nothing more to show.
    is_shorter = len(short.stdout) < len(complete.stdout)
    assert ("-h, --help, --help-all" in short.stdout) == (not is_shorter)
    assert not is_shorter or f"show all {len(flags) - 1} options" in " ".join(short.stdout.split())


def test_the_complete_help_of_the_program_has_that_of_every_command():
    done = halofeed_here("--help-all")
    assert done.returncode == 0 and done.stderr == ""
    for command in COMMANDS:
        assert f"\n{halofeed_here(command, '--help-all').stdout}" in done.stdout, command


def test_every_option_of_convert_is_explained_and_exists():
    text, short = (halofeed_here("convert", word).stdout for word in ("--help-all", "--help"))
    offered = set(FLAG.findall(text))
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))
    # argparse's own, that of `train`, and Beam's or their beginnings
    others = {"--help", "--fold", "--runner", "--extra", "--job", "--project", "--region", "--temp"}
    assert mentioned - others <= offered, mentioned - others - offered
    assert {"--layout", "--max-rejected", "--overwrite", "--shards", "--masks"} <= offered
    listed = re.findall(r"^  (--[a-z-]+)", short, re.MULTILINE)
    assert {"--layout", "--depth", "--frames"} < set(listed) < offered and len(listed) < 35
    assert max(map(len, short.splitlines())) <= 100
    places = [short.index(f"\n{word}:") for word in ("examples", "source", "shape", "output", "running")]
    assert places == sorted(places)


def test_help_and_version_exit_0_and_nothing_exits_2():
    assert halofeed_here("--help").returncode == 0
    assert re.fullmatch(r"halofeed \d+\.\d+\.\d+\n", halofeed_here("--version").stdout)
    for wrong in ([], ["frobnicate"], ["convert", "--shards", "many"], ["convert", "--no-such-option"]):
        done = halofeed_here(*wrong)
        assert done.returncode == 2 and "Traceback" not in done.stderr, wrong


@pytest.mark.parametrize("runner", ["FnApiRunner", "DirectRunner"])
def test_options_after_the_dashes_reach_beam(source, tmp_path, runner):
    done = convert(source, tmp_path, "--", "--job_name=x", f"--runner={runner}")
    assert done.returncode == 0 and "converted" in done.stdout, done.stderr


JOB = JobOptions(source="gs://bucket/photos", out="gs://bucket/data", name="set")
STORES = (
    "--project=p --s3_endpoint_url=http://127.0.0.1:9000 --s3_region_name=eu --s3_access_key_id=a "
    "--s3_secret_access_key=b --gcp_oauth_scopes=x --no_auth --azure_connection_string=c --hdfs_host=h"
)
DATAFLOW = (
    "--runner=DataflowRunner --project a-project --region europe-west1 --temp_location gs://bucket/t "
    "--staging_location gs://bucket/s --machine_type=n1-standard-4 --worker_machine_type=n1 --num_workers 3 "
    "--max_num_workers=9 --disk_size_gb=30 --extra_package=halofeed-0.1.0.tar.gz --setup_file ./setup.py "
    "--requirements_file=r.txt --experiments=use_runner_v2 --dataflow_service_options=a --subnetwork=s "
    "--no_use_public_ips --sdk_container_image=i --save_main_session --job_name x --labels a=b"
)
FLINK = (
    "--runner=FlinkRunner --flink_master=localhost:8081 --flink_version=1.19 --environment_type=LOOPBACK "
    "--parallelism=4 --checkpointing_interval 1000 --flink_submit_uber_jar"
)
SPARK = "--runner=SparkRunner --spark_master_url=local[4] --spark_version 3 --environment_type=DOCKER"
PORTABLE = (
    "--runner=PortableRunner --job_endpoint=localhost:8099 --artifact_endpoint=localhost:8098 "
    "--environment_type=EXTERNAL --environment_config=localhost:50000 --option_of_the_job_server=1"
)


@pytest.mark.parametrize("written", ["", STORES, DATAFLOW, FLINK, SPARK, PORTABLE])
def test_options_of_real_runners_and_stores_pass(written):
    assert (choose_runner(JOB, 1, shlex.split(written), 1 << 30).options is None) == (written == "")


def test_dataflow_is_told_all_that_it_lacks_before_any_network_is_asked(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setenv("PATH", "")  # gcloud may know a region
    local = dataclasses.replace(JOB, source="photos", out="data")
    with pytest.raises(UsageError) as caught:
        choose_runner(local, 1, ["--runner=DataflowRunner", "--temp_location=bucket/t"], 1 << 30)
    said = str(caught.value)
    for words in ("project", "region", "(bucket/t)", "--source photos", "--out data", "`halofeed package`"):
        assert words in said.partition("here:")[2]
    advised = re.search("needs `(.*)`", said)[1].replace("PROJECT", "a-project").replace("BUCKET", "bucket")
    assert choose_runner(JOB, 1, ["--runner=DataflowRunner", *shlex.split(advised)], 1 << 30).template is None


@pytest.mark.parametrize("runner", [[], ["--runner=DirectRunner"], ["--runner", "DataflowRunner"]])
@pytest.mark.parametrize("unknown", ["--bogus=1", "--bogus", "bogus", "--num_worker=3", "-x"])
def test_an_option_that_nobody_knows_is_refused_by_its_name(runner, unknown, caplog):
    with pytest.raises(UsageError) as caught:
        choose_runner(JOB, 1, [*runner, "--job_name=x", unknown], 1 << 30)
    assert unknown.partition("=")[0] in str(caught.value) and "job_name" not in str(caught.value)
    assert not caplog.records
    with pytest.raises(UsageError, match=r"after --, Beam knows no --bogus 1, --other;"):
        choose_runner(JOB, 1, [*runner, "--bogus", "1", "--other"], 1 << 30)


@pytest.mark.parametrize("given", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
def test_options_by_which_beam_would_start_workers_behind_open_ports_are_refused(given):
    with pytest.raises(UsageError, match=f"{given.partition('=')[0]}: use --workers, before the --"):
        choose_runner(JOB, 1, [given], 1 << 30)


@pytest.mark.parametrize(
    ("memory", "given", "workers", "room"),
    [(100, None, 8, 10), (10, None, 4, 2), (1, None, 1, 0.8), (10, 8, 8, 1)],
)
def test_as_many_workers_start_as_memory_allows_and_they_share_it(memory, given, workers, room, monkeypatch):
    for module in (options, workers_module):
        monkeypatch.setattr(module, "machine_memory", lambda: memory << 30)
        monkeypatch.setattr(module, "available_cores", lambda: 8)
    choice = choose_runner(dataclasses.replace(JOB, workers=given), 10, [], 2 << 30)
    assert (choice.workers, choice.memory_bytes) == (workers, int(room * (1 << 30)))
    assert choice.threads * choice.workers >= 8
