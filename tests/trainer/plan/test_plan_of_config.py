"""A plan agrees with a run, refuses impossible splits, caches compiled programs and says what fits."""

import importlib.util
import json
import math
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from halofeed.errors import UsageError
from halofeed.schemas.file_layout import read_plan
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.plan import plan
from halofeed.trainer.plan.compiling import CompileCache
from halofeed.trainer.plan.document import cases, plan_config
from halofeed.trainer.plan.requests import Request, build_lowered, trace, usual_arrays, usual_facts
from halofeed.trainer.plan.topologies import devices_of, topology_named
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.training import command

FEATURES: dict[str, Any] = {"model_options": {"features": [8, 8]}, "compute_dtype": "float32"}
SMALL = TrainConfig(model="classifier", image_shape=(32, 32, 3), batch_size=8, **FEATURES)
needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU's compiler: pip install 'halofeed[plan]'",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return CompileCache(tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def on_cpu(cache):
    return plan_config(Request(config=SMALL, topology="cpu:8", classes=4), cores=(4,), cache=cache)


def test_arguments_outputs_and_donated_memory_are_those_of_a_run(on_cpu, cache):
    config = SMALL.changed(cores_per_replica=4, partition="image=1,4,1,1")
    request = Request(config=config, topology="cpu:8", classes=4)
    program, spec = build_lowered(request, jax.devices()[:8])
    step = program.step()
    state = program.new_state()
    abstract = program.abstract_batch(spec)
    zeros = {name: jax.numpy.zeros(one.shape, one.dtype) for name, one in abstract.items()}
    batch = {name: jax.device_put(zeros[name], one.sharding) for name, one in abstract.items()}
    lowered = step.lower(state, batch)
    kept = {name: batch[name] for name in ("image", "label", "valid")}
    device = jax.devices()[0]
    arguments = _bytes_on(device, (state, kept))
    donated = jax.tree.leaves(state)
    outputs = step(state, batch)
    memory = cache.lookup(request.key())["memory"]  # type: ignore[index]
    assert memory["argument"] == arguments
    assert memory["alias"] == sum(leaf.nbytes for leaf in donated if leaf.is_deleted())
    # A tuple's own table of pointers counts to the outputs on CPUs, 8 bytes an array.
    assert memory["output"] == _bytes_on(device, outputs) + 8 * len(jax.tree.leaves(outputs))
    assert trace(program, spec).lower().as_text() == lowered.as_text()


def _bytes_on(device: Any, tree: Any) -> int:
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == device
    )


def test_a_plan_names_levels_that_stay_whole_and_what_to_take(on_cpu):
    (split,) = on_cpu["splits"]
    assert split["fits"] and on_cpu["recommended"] == 4
    assert split["replicas"] == 2 and split["batch_size"] == 8
    assert split["sent_bytes"]["halos"] > 0 and split["flops"] > 0


def test_asking_again_compiles_nothing(on_cpu, cache):
    told: list[str] = []
    request = Request(config=SMALL, topology="cpu:8", classes=4)
    again = plan_config(request, cores=(4,), cache=cache, tell=told.append)
    assert again["splits"] == on_cpu["splits"] and told == []


@needs_tpu_compiler
@pytest.mark.parametrize("name", ["v3-8", pytest.param("v5e-8", marks=pytest.mark.long)])
def test_a_tpu_compiler_says_what_a_small_program_takes(name, cache):
    tiny = SMALL.changed(model_options={"features": [8]}, image_shape=[16, 16, 3])
    plan = plan_config(Request(config=tiny, topology=name, classes=2), cores=(2,), cache=cache)
    (split,) = plan["splits"]
    assert split["fits"] and split["bound"]["step"] > 0
    assert split["memory"]["padding"] > 0
    assert split["memory"]["total"] < plan["topology"]["chip"]["memory_bytes"]


@needs_tpu_compiler
@pytest.mark.parametrize("name", ["v3-64", "v4-64", "v5e-16", "v5p-128", "v6e-16"])
def test_a_mesh_lies_on_every_grid_of_chips(name):
    topology = topology_named(name)
    devices = devices_of(topology)
    assert len(devices) == topology.devices
    for cores in topology.splits():
        mesh = make_mesh(cores, devices)
        assert mesh.shape["replica"] == len(devices) // cores


@needs_tpu_compiler
@pytest.mark.long
def test_the_tpu_compiler_refuses_what_is_larger_than_a_core(cache):
    huge = SMALL.changed(image_shape=[16384, 16384, 3], model_options={"features": [256]}, batch_size=64)
    plan = plan_config(Request(config=huge, topology="v3-8"), cores=(1,), cache=cache)
    (split,) = plan["splits"]
    assert not split["fits"] and plan["recommended"] is None
    assert split["memory"]["total"] > split["memory"]["limit"] > 14 * 2**30


def test_shapes_that_do_not_divide_are_refused_with_those_that_do():
    config = SMALL.changed(image_shape=[301, 301, 3])
    request = Request(config=config, topology="cpu:8")
    (case,) = cases(request, topology_named("cpu:8"), (301, 301, 3), (4,), None)
    assert case.request is None and "divides by 4" in case.refused
    assert (300, 301, 3) in [shape for shape, _ in case.nearest]


def test_a_damaged_file_of_the_cache_counts_as_none(tmp_path):
    cache = CompileCache(tmp_path)
    cache.store_program("key", {"memory": {}})
    cache.store_request("request", "key", {"batch": 4})
    for file in (tmp_path / "programs/key.json.gz", tmp_path / "asked/request.json"):
        whole = file.read_bytes()
        for at in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[at // 8] ^= 1 << at % 8
            file.write_bytes(damaged)
            assert cache.lookup("request") in (None, {"memory": {}, "batch": 4})
        file.write_bytes(whole)
        other = file.with_name(f"other{''.join(file.suffixes)}")
        file.rename(other)
        assert cache.lookup("request") is cache.lookup("other") is cache.lookup_program("other") is None
        other.rename(file)
    for document in ("[1]", '"x"', "null", "3"):
        (tmp_path / "asked/request.json").write_text(document)
        assert cache.lookup("request") is None


def test_the_arrays_of_a_config_alone_are_those_that_its_task_reads():
    facts = usual_facts(SMALL)
    arrays = usual_arrays(SMALL, facts)
    assert facts.classes == 1000 and arrays["image"] == ((8, 32, 32, 3), "uint8")
    assert {"label", "valid"} <= set(arrays)


def test_a_step_of_ones_own_is_planned_on_a_mesh_of_its_own_axes():
    mesh = AbstractMesh((2, 2), ("data", "rows"))
    split = NamedSharding(mesh, PartitionSpec("data", "rows"))
    image = jax.ShapeDtypeStruct((4, 16, 16, 3), "float32", sharding=split)
    kernel = jax.ShapeDtypeStruct((3, 3, 3, 8), "float32")

    def step(kernel: jax.Array, image: jax.Array) -> jax.Array:
        order = ("NHWC", "HWIO", "NHWC")
        made = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=order)
        return kernel - jax.grad(lambda k: (made * k.sum()).mean())(kernel)

    (found,) = plan(step, [kernel, image], ["cpu:8"], remember=False)
    assert found["fits"] and found["memory"]["batch"] == 3 * 3 * 3 * 8 * 4 + 2 * 8 * 16 * 3 * 4
    assert found["sent_bytes"]["halos"] == 2 * 2 * 1 * 16 * 3 * 4
    with pytest.raises(UsageError, match="has 2 cores, the mesh of the shapes 4"):
        plan(step, [kernel, image], ["cpu:2"])


@pytest.fixture
def _cached(cache, monkeypatch):
    """Let the command line use the cache of this file."""
    monkeypatch.setenv("HALOFEED_PLAN_CACHE", str(cache.folder))


@pytest.mark.usefixtures("_cached")
def test_the_command_prints_writes_and_says_by_its_status_whether_anything_fits(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "classifier"\nimage_shape = [32, 32, 3]\nbatch_size = 8\ncompute_dtype = "float32"\n'
        "[model_options]\nfeatures = [8, 8]\n"
    )
    words = ("--config", config, "--topology", "cpu:8", "--cores-per-replica", "4", "--classes", "4")
    files = ("--json", tmp_path / "plan.json", "--html", tmp_path / "plan.html")
    output = command("plan", *words, *files)
    assert "4-way 1,4,1,1  compiles" in output and "Use 4-way" in output
    assert f"halofeed train FOLDER --config {config} --cores-per-replica 4" in output
    assert json.loads((tmp_path / "plan.json").read_text())["recommended"] == 4
    assert "Memory by number of cores" in (tmp_path / "plan.html").read_text()
    assert "cpu:8 has 8 cores" in command("plan", *words[:-4], "--cores-per-replica", 3, code=2)
    odd = ("--set", "image_shape=[31,31,3]", "--images-per-replica", 3, "--cores-per-replica", 8)
    assert "nearest possible size: 32 x 31 x 3" in command("plan", *words[:4], *odd, code=1)


@pytest.mark.long
@pytest.mark.usefixtures("_cached")
def test_a_data_set_is_planned_with_its_own_arrays_and_keeps_the_plan(tmp_path):
    examples = draw_examples("classification", {"train": 8})
    folder = write_dataset(tmp_path / "drawn" / "1.0.0", examples, task="classification")
    words = ("--set", "model.features=[8, 8]", "--images-per-replica", 4, "--cores-per-replica", 1)
    command("plan", folder, *words, "--topology", "cpu:1")
    made = read_plan(folder)
    assert made is not None
    (split,) = made["splits"]
    size = math.prod(made["image_shape"])
    # uint8 pixels, an int32 label and a flag of each of four.
    assert split["batch_size"] == 4 and split["memory"]["batch"] == 4 * (size + 4 + 1)
