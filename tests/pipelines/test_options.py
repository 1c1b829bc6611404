"""Which of Beam's options are taken after `--`, which are refused before anything is written? How many workers?"""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from halofeed.pipelines import options
from halofeed.pipelines import workers as workers_module
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.options import choose_runner
from halofeed.schemas.errors import UsageError

JOB = JobOptions(source="photos", out="data", name="set")
STORES = (
    "--project=p --s3_endpoint_url=http://127.0.0.1:9000 --s3_region_name=eu --s3_access_key_id=a "
    "--s3_secret_access_key=b --gcp_oauth_scopes=x --no_auth --azure_connection_string=c --hdfs_host=h"
)
DATAFLOW = (
    "--runner=DataflowRunner --project p --region europe-west1 --temp_location gs://b/t "
    "--staging_location gs://b/s --machine_type=n1-standard-4 --worker_machine_type=n1 --num_workers 3 "
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
    assert choose_runner(JOB, 1, shlex.split(written), 1 << 30).options is not None


@pytest.mark.parametrize("runner", [[], ["--runner=DirectRunner"], ["--runner", "DataflowRunner"]])
@pytest.mark.parametrize("unknown", ["--bogus=1", "--bogus", "bogus", "--num_worker=3", "-x"])
def test_an_option_that_nobody_knows_is_refused_by_its_name(runner, unknown, caplog):
    with pytest.raises(UsageError) as caught:
        choose_runner(JOB, 1, [*runner, "--job_name=x", unknown], 1 << 30)
    assert unknown.partition("=")[0] in str(caught.value) and "job_name" not in str(caught.value)
    assert not caplog.records


def test_a_value_apart_from_its_unknown_option_is_told_with_it():
    with pytest.raises(UsageError, match=r"after --, Beam knows no --bogus 1, --other;"):
        choose_runner(JOB, 1, ["--bogus", "1", "--other"], 1 << 30)


@pytest.mark.parametrize("given", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
def test_options_by_which_beam_would_start_workers_behind_open_ports_are_refused(given):
    with pytest.raises(UsageError, match=f"{given.partition('=')[0]}: say --workers, before the --"):
        choose_runner(JOB, 1, [given], 1 << 30)


@pytest.mark.parametrize(
    ("memory", "given", "workers", "room"),
    [(100, None, 8, 10), (10, None, 4, 2), (1, None, 1, 0.8), (10, 8, 8, 1)],
)
def test_workers_are_as_many_as_may_take_their_memory_and_share_the_machines(
    memory, given, workers, room, monkeypatch
):
    for module in (options, workers_module):
        monkeypatch.setattr(module, "machine_memory", lambda: memory << 30)
        monkeypatch.setattr(module, "available_cores", lambda: 8)
    choice = choose_runner(dataclasses.replace(JOB, workers=given), 10, [], 2 << 30)
    assert (choice.workers, choice.room_bytes) == (workers, int(room * (1 << 30)))
    assert choice.threads * choice.workers >= 8
