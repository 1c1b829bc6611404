"""Which of Beam's options are taken after `--`, and which are refused before anything is written?"""

from __future__ import annotations

import shlex

import pytest

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
    assert choose_runner(JOB, 1, shlex.split(written)).options is not None


@pytest.mark.parametrize("runner", [[], ["--runner=DirectRunner"], ["--runner", "DataflowRunner"]])
@pytest.mark.parametrize("unknown", ["--bogus=1", "--bogus", "bogus", "--num_worker=3", "-x"])
def test_an_option_that_nobody_knows_is_refused_by_its_name(runner, unknown, caplog):
    with pytest.raises(UsageError) as caught:
        choose_runner(JOB, 1, [*runner, "--job_name=x", unknown])
    assert unknown.partition("=")[0] in str(caught.value) and "job_name" not in str(caught.value)
    assert not caplog.records


def test_a_value_apart_from_its_unknown_option_is_told_with_it():
    with pytest.raises(UsageError, match=r"after --, Beam knows no --bogus 1, --other;"):
        choose_runner(JOB, 1, ["--bogus", "1", "--other"])
