"""A script ends soon after its last line, however it ends and whatever stream is still alive.

tf.data's parallel map waits in its destructor for the loader's calls, which a thread cannot make once the interpreter
shuts down. Most large batches were in flight then, and the script never ended.
"""

import re
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.level_rows import levels

OPENING = """
import atexit, os, signal, sys, threading, time
last = []
# Python leaves SIGINT ignored in a job that a shell started in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Registered first, so it runs after the other handlers.
atexit.register(lambda: print("handlers", time.monotonic() - last[0], flush=True))
from halofeed.loader import Loader
def load(**options):
    return Loader(sys.argv[1], **{"batch_size": 32, "seed": 1, **options})
def take(stream):
    for _ in range(5):
        next(stream)
def end():
    last.append(time.monotonic())
loader = load()
"""
KERAS = """
import keras
from keras import layers
model = keras.Sequential([layers.Rescaling(1 / 255), layers.GlobalAveragePooling2D(), layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""
WAYS = {
    "dataset": "stream = iter(loader.dataset(repeat=True)); take(stream); end()",
    "as_numpy_iterator": "stream = loader.dataset(repeat=True).as_numpy_iterator(); take(stream); end()",
    "two loaders": """
a, b = iter(loader.dataset(repeat=True)), iter(load(seed=2).dataset(repeat=True)); take(a); take(b); end()""",
    "operations": """
stream = iter(loader.dataset(repeat=True).unbatch().shuffle(99).batch(8).prefetch(4)); take(stream); end()""",
    "errors ignored": "stream = iter(loader.dataset(repeat=True).ignore_errors().prefetch(4)); take(stream); end()",
    "exception": "stream = iter(loader.dataset(repeat=True)); take(stream); end(); raise ValueError('mine')",
    "exit": "stream = iter(loader.dataset(repeat=True)); take(stream); end(); sys.exit(7)",
    "interrupt": """
stream = iter(loader.dataset(repeat=True)); take(stream); end()
os.kill(os.getpid(), signal.SIGINT); time.sleep(9)""",
    "exit in a thread": """
stream = iter(loader.dataset(repeat=True)); take(stream)
thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join(); end()""",
    "a thread that still reads": """
def read():
    try:
        for batch in loader.dataset(repeat=True):
            assert batch["image"].shape[0] == 32 and batch["valid"].numpy().all()
        print("ended as if complete")
    except Exception as error:
        print("error", flush=True)
thread = threading.Thread(target=read, daemon=True); thread.start(); time.sleep(2); end()""",
    "a store that does not answer": """
rows, slow = Loader._rows, threading.Event()
Loader._rows = lambda self, *of: (slow.is_set() and time.sleep(60), rows(self, *of))[1]
stream = iter(loader.dataset(repeat=True))
next(stream); time.sleep(1); slow.set(); next(stream); time.sleep(0.5); end()""",
    "batches of a store that does not answer": """
rows, slow = Loader._rows, threading.Event()
Loader._rows = lambda self, *of: (slow.is_set() and time.sleep(60), rows(self, *of))[1]
stream = loader.batches(); next(stream); slow.set()
threading.Thread(target=take, args=(stream,), daemon=True).start(); time.sleep(1); end()""",
    "records of a store that does not answer": """
from halofeed.loader.filling import Filler
fill, slow = Filler._fill_rows, threading.Event()
def fill_rows(self, *of):
    if slow.is_set():
        self._for_each(__import__("collections").deque([(0,)] * 9), lambda position: time.sleep(60))
    return fill(self, *of)
Filler._fill_rows = fill_rows
stream = loader.batches(); next(stream); slow.set()
threading.Thread(target=take, args=(stream,), daemon=True).start(); time.sleep(1); end()""",
    "Keras": KERAS + "model.fit(load(num_epochs=1).dataset(as_supervised=True), verbose=0); end()",
    "Keras, epoch by epoch": KERAS
    + "model.fit(loader.dataset(as_supervised=True), epochs=2, verbose=0); end()",
    "epochs": "stream = iter(loader.dataset()); next(stream); end()",
    "Keras with steps": KERAS
    + """
data = loader.dataset(as_supervised=True)
model.fit(data, steps_per_epoch=2, epochs=2, verbose=0); end()""",
    "Keras, epoch unfinished": KERAS
    + """
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            end(); sys.exit(7)
model.fit(loader.dataset(as_supervised=True, repeat=True), steps_per_epoch=9, verbose=0, callbacks=[Stop()])""",
    "distributed": """
import tensorflow as tf
processor = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
stream = iter(loader.distributed(strategy, repeat=True)); take(stream); end()""",
    "batches": "stream = loader.batches(); take(stream); end()",
    "on_mesh": """
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
stream = loader.on_mesh(make_mesh(1), Partition(cores_per_replica=1, dims={"image": [1, 1, 1, 1]})); take(stream); end()
""",
    "torch workers": """
from torch.utils.data import DataLoader
stream = iter(DataLoader(loader.records, batch_size=8, num_workers=2)); take(stream)
other = iter(loader.dataset(repeat=True)); take(other); end()""",
    "forked child": """
stream = iter(loader.dataset(repeat=True)); take(stream)
if not (child := os.fork()):
    end(); sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
end()""",
    "complete data set": """
rows = sum(int(batch["valid"].numpy().sum()) for batch in load(num_epochs=2).dataset())
assert rows == 2 * loader.num_records; end()""",
    "a handler that reads": """
atexit.register(lambda: print(loader.batch(0)["image"].shape))
stream = iter(loader.dataset(repeat=True)); take(stream); end()""",
}
CODES = {"exception": 1, "exit": 7, "interrupt": -2, "Keras, epoch unfinished": 7}
LAST_LINES = {"exception": "ValueError: mine", "interrupt": "KeyboardInterrupt"}
SIDES = {"large": (640, 640, 3), "small": (16, 16, 3)}
QUICK = [("dataset", "large"), ("exception", "large")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, shape in SIDES.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = write_dataset(
            folder / "d", draw_examples("classification", {"train": 64}, shape=shape), task="classification"
        )
    return made


@pytest.mark.parametrize(
    ("way", "size"),
    levels(*QUICK, long=[(way, size) for size in SIDES for way in WAYS if (way, size) not in QUICK]),
)
def test_a_script_ends_after_its_last_line(folders, way, size):
    if "torch" in way:
        pytest.importorskip("torch")
    command = [sys.executable, "-c", OPENING + WAYS[way], str(folders[size])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == CODES.get(way, 0), err[-2000:]
    # What TensorFlow itself takes to shut down, 1 to 3 s on a busy machine, is not the loader's.
    assert all(float(seconds) < 20 for seconds in re.findall("handlers (.*)", out)) and "handlers" in out
    assert "complete" not in out
    lines = [
        line for line in err.splitlines() if line and not re.match(r"[WIE]\d{4} |WARNING|To enable", line)
    ]
    if way in LAST_LINES:
        assert lines[0].startswith("Traceback") and lines[-1] == LAST_LINES[way]
    elif not err.count("error"):
        assert "Traceback" not in err
    assert _processes_of(process.pid) == []


def _processes_of(session: int) -> list[str]:
    """Return the running processes that a script has left, with their states and commands.

    A busy machine takes seconds to end a process, and one that has ended is listed until its parent asks for it; in a
    container that may be never. What a script leaves behind runs on, so it is found after any wait.
    """
    deadline = time.monotonic() + 10
    while True:
        listed = subprocess.run(
            ["ps", "-o", "pid=,stat=,args=", "-g", str(session)], capture_output=True, text=True, check=False
        )
        found = [line for line in listed.stdout.splitlines() if not line.split()[1].startswith("Z")]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
