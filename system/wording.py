"""Words of messages: a count with its noun, and the name that a misspelled or foreign one may mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_WORDS_OF_OTHERS: Final = {
    # options and settings
    "backbone-weights": "pretrained",
    "batch-size": "batch bs train-batch-size",
    "checkpoint": "ckpt resume weights",
    "classes": "nc num-classes",
    "compute-dtype": "amp fp16 mixed-precision precision",
    "frame-rate": "fps",
    "height": "image-height image-size img-size imgsz input-size resolution size target-size",
    "images": "image-dir image-folder image-path image-root images-dir img-dir img-prefix",
    "jpeg-quality": "quality",
    "label-map": "class-list class-names labels names",
    "layout": "annotation-format annotation-type dataset-format dataset-type label-mode",
    "learning-rate": "base-lr eta lr lr0",
    "limit": "max-images max-samples num-images num-samples",
    "optimizer": "opt",
    "out": "dest dst outdir output output-dir save-dir",
    "overwrite": "clobber exist-ok force replace",
    "shards": "num-shards",
    "source": "ann-file annotation-file annotations data data-dir dataset input input-dir src train-dir",
    "split-seed": "random-state seed",
    "split-shares": "split split-ratio splits test-size test-split val-size val-split validation-split",
    "steps": "epochs iterations iters max-epochs max-iter num-epochs",
    "workers": "jobs num-workers processes",
    "width": "image-width",
    # values
    "fixed-shape": "fixed stretch warp",
    "folders": "classfolders directory image-dataset-from-directory imagefolder imagenet",
    "jsonl": "hf huggingface parquet",
    "keep-aspect": "contain fit keep-ratio letterbox",
    "msd": "decathlon",
    "tf1-area": "area",
    "tf2-bicubic": "bicubic",
    "tf2-bilinear": "bilinear",
    "tf2-lanczos3": "lanczos lanczos3",
    "tf2-nearest": "nearest",
    "tfrecord": "tfds tfrecords",
    "voc": "pascal pascal-voc pascalvoc",
    "webdataset": "tar wds",
    "yolo": "darknet ultralytics",
    # commands
    "configs": "list models recipes",
    "convert": "build create import ingest prepare",
    "evaluate": "eval score test val",
    "inspect": "describe info stats",
    "predict": "classify detect infer inference segment",
    "show": "plot preview view visualize",
    "train": "fine-tune finetune fit",
    "verify": "check validate",
    # augmentations
    "flipleftright": "fliplr horizontalflip randomfliplr randomhorizontalflip randomflip",
    "flipupdown": "flipud randomverticalflip verticalflip",
    "randomcrop": "randomcropd randspatialcrop",
    "scalejitter": "randomaffine randomresizedcrop randomscale",
    # parameters of the Python API
    "augment": "augmentation augmentations transform transforms",
    "draw-by": "class-weight sample-weight sampler weights",
    "drop-remainder": "drop-last",
    "include": "columns features fields",
    "num-epochs": "epochs repeat",
    "probability": "p prob",
    "shard-count": "num-replicas num-shards process-count world-size",
    "shard-index": "index process-index rank",
    "where": "filter indices subset",
}
"""Names of Keras, torch, Ultralytics, nnU-Net and others by ours: options, parameters, commands and values."""


def meanings_of(name: str) -> list[str]:
    """Return our names, words joined by -, that another tool's name means.

    >>> meanings_of("--num_shards"), meanings_of("batch"), meanings_of("height")
    (['shards', 'shard-count'], ['batch-size'], [])
    """
    return [ours for ours, others in _WORDS_OF_OTHERS.items() if _words(name) in others.split()]


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun.

    >>> plural(1, "box", "boxes"), plural(1200, "record")
    ('1 box', '1,200 records')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a misspelled or foreign one, in either case; None if none is like it.

    >>> nearest_name("Yola", ["coco", "yolo"]), nearest_name("liver", ["spleen"]), nearest_name("lr", ["learning_rate"])
    ('yolo', None, 'learning_rate')
    """
    from difflib import get_close_matches  # it takes 3 ms to import, and most commands need no correction

    by_folded = {one.casefold().strip("-"): one for one in map(str, known)}
    for meant in meanings_of(str(name)):
        if same := [one for one in by_folded.values() if _words(one) == meant]:
            return same[0]
    near = get_close_matches(str(name).casefold().strip("-"), by_folded, 1)
    return by_folded[near[0]] if near else None


def _words(name: str) -> str:
    return name.strip("-").replace("_", "-").casefold()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the nearest known name, with a blank at its end; "" if none is near.

    >>> did_you_mean("yola", ["coco", "yolo"])
    'did you mean yolo? '
    """
    near = nearest_name(name, known)
    return "" if near is None else f"did you mean {near}? "


def printable(text: str) -> str:
    """Return text that can be written as UTF-8; undecodable bytes of a file name become \\xNN.

    >>> printable("a" + chr(0xDCFF))
    'a\\\\xff'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
