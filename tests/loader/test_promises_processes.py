"""Loaders keep their promises when processes are killed, run long or share a batch."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from tests.support.level_rows import others
from tests.support.scripts import run_script
from tests.support.training import run_processes
from tests.support.volume_writer import draw_scans, write_scans

CONSUMER = """
import hashlib, json, sys
from pathlib import Path
from halofeed.loader import *
folder, place = sys.argv[1], Path(sys.argv[2])
loader = Loader(folder, batch_size=6, seed=4, num_epochs=2, augment=[FlipLeftRight(), RandomCrop(16, 16)])
start = loader.restore(json.loads(place.read_text())) if place.exists() else 0
for step, batch in enumerate(loader.batches(start), start):
    if sys.argv[3:]:
        sys.stdin.readline()  # the test allows so many steps
    digest = hashlib.sha256(b"".join(array.tobytes() for array in batch.values())).hexdigest()
    ids = join_id(batch["id"][batch["valid"]]).tolist()
    print(json.dumps([step, digest, ids]), flush=True)
    # The state is saved with what came of the batch; a batch whose state was not saved is consumed again.
    beside = place.with_suffix(".new")
    beside.write_text(json.dumps(loader.state(step + 1)))
    beside.rename(place)
"""


def digest_of(batch):
    return hashlib.sha256(b"".join(array.tobytes() for array in batch.values())).hexdigest()


def test_a_killed_and_resumed_consumer_sees_exactly_the_rest(draw, write, tmp_path):
    folder, place = write(draw(40)), tmp_path / "state.json"
    loader = Loader(folder, batch_size=6, seed=4, num_epochs=2, augment=[FlipLeftRight(), RandomCrop(16, 16)])
    expected = [digest_of(batch) for batch in loader.batches()]
    consumed = {}
    for lines in (2, 4, 3):  # killed after so many, somewhere in the next
        command = [sys.executable, "-c", CONSUMER, str(folder), str(place), "step by step"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            start = json.loads(place.read_text())["step"] if place.exists() else 0
            process.stdin.write("\n" * (lines + 1))
            process.stdin.flush()
            found = [json.loads(process.stdout.readline()) for _ in range(lines)]
            time.sleep(0.005 * lines)
            process.send_signal(signal.SIGKILL)
            found += [json.loads(line) for line in process.stdout if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        assert [step for step, _, _ in found] == list(range(start, start + len(found)))
        saved = json.loads(place.read_text())["step"]
        assert start < saved < len(expected)
        consumed |= {step: (digest, ids) for step, digest, ids in found if step < saved}
    rest = [json.loads(line) for line in run_script(CONSUMER, folder, place).splitlines()]
    assert [step for step, _, _ in rest] == list(range(saved, len(expected)))
    consumed |= {step: (digest, ids) for step, digest, ids in rest}
    assert [consumed[step][0] for step in range(len(expected))] == expected
    seen = [identity for step in range(len(expected)) for identity in consumed[step][1]]
    assert len(seen) == 80 and len(set(seen[:40])) == len(set(seen[40:])) == 40


GROWTH = """
import sys
from pathlib import Path
from halofeed.loader import *
def anonymous():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])
augment = eval(sys.argv[2])
loader = Loader(sys.argv[1], batch_size=2, augment=augment, verify="always")
held = []
for step, batch in enumerate(loader.batches()):
    if step % 500 == 0:
        held.append(anonymous())
    if step == 5500:
        break
print(held)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["raw", "packed", "jpeg", "volumes"])
def test_five_thousand_steps_take_no_more_memory(draw, write, tmp_path, kind):
    if kind == "volumes":
        folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 30}))
        augment = "[FlipDepth(), RandomCrop(4, 5, 6, foreground=0.5)]"
    else:
        folder = write(draw(30, frame=(12, 16)), frame=(12, 16), encoding=kind, pad=kind != "jpeg")
        augment = "[FlipLeftRight(), RandomCrop(8, 8)]"
    held = json.loads(run_script(GROWTH, folder, augment))
    assert len(held) == 12 and max(held[1:]) - held[1] < 512, f"KiB at every 500th step: {held}"


ON_MESH = """
import hashlib, json, sys
import numpy as np, jax
coordinator, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
folder, cores, devices = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", devices)
jax.distributed.initialize(coordinator, count, number)
from halofeed.loader import *
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
partition = Partition(cores_per_replica=cores, dims={"image": [1, cores, 1, 1]})
options = dict(batch_size=12, seed=7, augment=[FlipLeftRight(), RandomCrop(16, 16)])
rows_of, asked = Loader._rows_in_order, set()
Loader._rows_in_order = lambda self, step, start, stop: asked.add((start, stop)) or rows_of(self, step, start, stop)
stream = Loader(folder, **options).on_mesh(make_mesh(cores), partition, 3)
whole, held = Loader(folder, **options), []
for step, placed in zip(range(3, 6), stream):
    batch = whole.batch(step)
    assert set(placed) == set(batch)
    for name, array in placed.items():
        assert array.shape == batch[name].shape, name
        for shard in array.addressable_shards:
            assert np.array_equal(shard.data, batch[name][shard.index]), (name, shard.index)
    held.append([[side.indices(size)[:2] for side, size in zip(shard.index, placed["image"].shape)]
                 for shard in placed["image"].addressable_shards])
rows = {slab[0] for slabs in held for slab in slabs}
assert asked == {(min(start for start, _ in rows), max(stop for _, stop in rows))}, "no row of another process"
print(json.dumps(held))
"""
CASES = [(2, 4, 2), (2, 2, 2), (4, 4, 1), (4, 2, 1)]


@pytest.mark.long
@pytest.mark.parametrize(("processes", "cores", "devices"), others(CASES, CASES[:2], pytest.mark.exhaustive))
def test_processes_hold_the_slabs_of_one_global_batch(draw, write, processes, cores, devices):
    folder = write(draw(20))
    outputs = run_processes(ON_MESH, processes, str(folder), str(cores), str(devices))
    for slabs in zip(*map(json.loads, outputs), strict=True):
        held = [tuple(map(tuple, slab)) for part in slabs for slab in part]
        replicas = processes * devices // cores
        rows, height = 12 // replicas, 16 // cores
        expected = {
            ((row * rows, row * rows + rows), (top * height, top * height + height), (0, 16), (0, 3))
            for row in range(replicas)
            for top in range(cores)
        }
        assert len(held) == len(expected) and set(held) == expected
