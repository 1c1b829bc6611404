"""Which loaders `benchmarks/loading.py` compares, and what it asks of each.

Each is a module of this package with two functions: `write(source, folder)` writes the data of `source` in the
loader's own format with its own writer, and `batches(folder, case, **setting)` reads it, shuffling over all records,
without end; it gives dicts with `image`, of volumes also `label`, and `number`, that of the record in the source. Of
several settings the fastest in a trial is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A row of the table: which module of this package, of which packages, how it is called, with which settings."""

    module: str
    packages: tuple[str, ...]
    command: str
    settings: tuple[dict[str, Any], ...] = ({},)
    is_ours: bool = False
    warm_batches: int = 4
    """Batches that are taken before the clock starts, so that nothing that was made ahead is counted."""


def _ways(*ways: str) -> tuple[dict[str, Any], ...]:
    return tuple({"way": way} for way in ways)


MEMCPY, DECODE, OURS = "memcpy, one thread", "bare decoding, all cores", "halofeed, batches()"
WINDOWS, FAST = "bare windows, all cores", 'halofeed, decode="fast"'
PACKED, PACKED_FIRST = "halofeed, packed, batches()", "halofeed, packed, first pass"
WORKERS = ({"num_workers": 0}, {"num_workers": 2})
PEERS = {
    MEMCPY: Peer("ceilings", ("numpy",), "np.copyto(warm, batch)", _ways("memcpy")),
    DECODE: Peer("ceilings", ("simplejpeg",), "simplejpeg.decode_jpeg(data, buffer=warm)", _ways("decode")),
    WINDOWS: Peer(
        "ceilings", ("numpy",), "halofeed's View.copy(map, warm) of windows drawn before", _ways("windows")
    ),
    OURS: Peer("ours", ("halofeed",), "Loader(...).batches()", _ways("batches"), is_ours=True),
    FAST: Peer("ours", ("halofeed",), 'Loader(..., decode="fast").batches()', _ways("fast"), is_ours=True),
    "halofeed, dataset()": Peer(
        "ours",
        ("halofeed", "tensorflow"),
        "Loader(...).dataset(repeat=True).as_numpy_iterator()",
        _ways("dataset"),
        is_ours=True,
    ),
    "halofeed, on_mesh": Peer(
        "ours", ("halofeed", "jax"), "Loader(...).on_mesh(make_mesh(1), ...)", _ways("on_mesh"), is_ours=True
    ),
    "halofeed, verified first pass": Peer(
        "ours",
        ("halofeed",),
        'Loader(..., verify="first").batches(), the first epoch',
        _ways("first"),
        is_ours=True,
        warm_batches=2,  # one is used while the next is made: after two no memory is new
    ),
    PACKED: Peer(
        "ours", ("halofeed",), "Loader(...).batches() of packed records", _ways("packed"), is_ours=True
    ),
    PACKED_FIRST: Peer(
        "ours",
        ("halofeed",),
        'Loader(..., verify="first").batches() of packed records, the first epoch',
        _ways("packed_first"),
        is_ours=True,
        warm_batches=2,
    ),
    "tf.data, as tutorials write it": Peer(
        "tf_data",
        ("tensorflow",),
        "TFRecordDataset(files).shuffle(all).map(parse to float32).batch().prefetch()",
        _ways("tutorial"),
    ),
    "tf.data, tuned": Peer(
        "tf_data",
        ("tensorflow",),
        "files.interleave(TFRecordDataset).shuffle(all).map(parse to uint8, AUTOTUNE).batch().prefetch(), "
        "not deterministic",
        _ways("tuned"),
    ),
    "TFDS": Peer(
        "tfds_builder",
        ("tensorflow-datasets", "tensorflow"),
        "builder.as_dataset(shuffle_files=True).shuffle(all).map(AUTOTUNE).batch().prefetch()",
    ),
    "Grain + ArrayRecord": Peer(
        "grain_array_record",
        ("grain", "array_record"),
        "MapDataset.source(ArrayRecordDataSource).shuffle().map().to_iter_dataset(ReadOptions).batch()",
        (*({"threads": threads} for threads in (0, 2, 16)), {"threads": 2, "processes": 2}),
    ),
    "torch DataLoader, NumPy memmap": Peer(
        "torch_memmap",
        ("torch", "numpy"),
        "DataLoader(memmap, shuffle=True, num_workers)",
        WORKERS,
    ),
    "MosaicML Streaming": Peer(
        "mosaic", ("mosaicml-streaming", "torch"), "DataLoader(StreamingDataset(shuffle=True))", WORKERS
    ),
    "webdataset": Peer(
        "webdataset_tar",
        ("webdataset", "torch"),
        "WebDataset(shards, shardshuffle).shuffle(all).map().batched() in WebLoader",
        WORKERS,
    ),
    "LitData": Peer(
        "litdata_chunks",
        ("litdata", "torch"),
        "StreamingDataLoader(StreamingDataset(shuffle=True))",
        WORKERS,
    ),
}
