"""Reader of keras.applications weights for backbones, without Keras.

It reads .h5 (weights or a complete model, Keras 2 and 3), .weights.h5 and .keras files (Keras 3). Keras' ResNet has
biases before its norms; the running mean minus the bias gives the same outputs.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from halofeed.storage.atomic_files import open_regular
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.models import mobilenet, resnet
from halofeed.trainer.models.layers import ConvolutionNorm
from halofeed.trainer.models.mobilenet import MobileNet
from halofeed.trainer.models.norm import BatchNorm
from halofeed.trainer.models.resnet import ResNet

KERAS_CACHE = "keras"
"""Value instead of a path: the file that Keras has downloaded."""

Weights = Mapping[str, list[NDArray[Any]]]
Assignment = tuple[nnx.Variable[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """Names of a backbone in keras.applications.

    Args:
        layers: function that yields Keras' names of a convolution and its norm, and our unit of both.
        files: function that returns matching file names in Keras' cache, the best first.
        top: name of the layer that computes the logits.
        normalization: normalization of the training images: "caffe" is BGR minus ImageNet's mean, "tf" is -1 to 1.
        function: function of keras.applications that downloads the weights.
    """

    layers: Callable[[Any], Iterator[tuple[str, str, ConvolutionNorm]]]
    files: Callable[[Any], list[str]]
    top: str
    normalization: str
    function: str


def load_backbone(model: nnx.Module, path: str | Path = KERAS_CACHE, *, top: bool = False) -> Path:
    """Load weights of keras.applications into a model's backbone, in place: parameters and norm statistics.

    Each array keeps the dtype and the devices of the one that it replaces. If an array does not fit, nothing changes.

    Args:
        model: model with a `backbone` that is a `ResNet` or a `MobileNet`; or such a backbone.
        path: path of a .h5, .weights.h5 or .keras file; "keras" searches Keras' cache, ~/.keras/models (or models in
            $KERAS_HOME).
        top: load the classifier's head too; its classes must be those of the file.

    Returns:
        The file that was read.

    Raises:
        UsageError: the file does not exist, Keras did not write it, or a layer is missing or has another shape.
    """
    backbone = getattr(model, "backbone", model)
    published = _published(backbone)
    file = _cached(backbone, published) if str(path) == KERAS_CACHE else Path(path).expanduser()
    weights = _read(file)
    assignments: list[Assignment] = []
    for convolution, norm, unit in published.layers(backbone):
        assignments += _unit(file, weights, convolution, norm, unit)
    if top:
        head = getattr(model, "head", None)
        if not isinstance(head, nnx.Linear):
            raise UsageError(f"{type(model).__name__}: has no head for the top layer; pass top=False")
        kernel, bias = _layer(file, weights, published.top, 2)
        assignments += [
            _fitted(file, f"{published.top}, kernel", head.kernel, kernel.reshape(kernel.shape[-2:])),
            _fitted(file, f"{published.top}, bias", head.bias, bias),
        ]
    for variable, array in assignments:
        old = variable[...]
        variable[...] = jax.device_put(array.astype(old.dtype), old.sharding)
    return file


def keras_normalization(model: nnx.Module) -> str:
    """Return the normalization of images for a model's pretrained backbone: "caffe" or "tf".

    >>> from halofeed.trainer.models.layers import Layers
    >>> keras_normalization(nnx.eval_shape(lambda: MobileNet(Layers(rngs=nnx.Rngs(0)), width=8, blocks=5)))
    'tf'
    """
    return _published(getattr(model, "backbone", model)).normalization


def _published(backbone: Any) -> Published:
    for backbone_type, published in PUBLISHED.items():
        if isinstance(backbone, backbone_type):
            return published
    known = ", ".join(backbone_type.__name__ for backbone_type in PUBLISHED)
    raise UsageError(
        f"backbone {type(backbone).__name__}: keras.applications' weights are loaded into {known}"
    )


def _resnet_layers(backbone: ResNet) -> Iterator[tuple[str, str, ConvolutionNorm]]:
    yield "conv1_conv", "conv1_bn", backbone.stem
    for stage, blocks in enumerate(backbone.stages, 2):
        for index, block in enumerate(blocks, 1):
            units = (block.shortcut, block.reduce, block.middle, block.expand)
            for number, unit in enumerate(units):
                name = f"conv{stage}_block{index}_{number}"
                if unit is not None:
                    yield f"{name}_conv", f"{name}_bn", unit


def _mobilenet_layers(backbone: MobileNet) -> Iterator[tuple[str, str, ConvolutionNorm]]:
    yield "conv1", "conv1_bn", backbone.stem
    for index, block in enumerate(backbone.blocks, 1):
        for name, unit in ((f"conv_dw_{index}", block.depthwise), (f"conv_pw_{index}", block.pointwise)):
            yield name, f"{name}_bn", unit


def _resnet_files(backbone: ResNet) -> list[str]:
    blocks = tuple(len(stage) for stage in backbone.stages)
    # Only the published width and depth have weights.
    if (backbone.channels[0], blocks) != (resnet.EXPANSION * resnet.RESNET_WIDTH, resnet.RESNET_BLOCKS):
        return []
    return [f"resnet50_weights_tf_dim_ordering_tf_kernels{top}.h5" for top in ("", "_notop")]


def _mobilenet_files(backbone: MobileNet) -> list[str]:
    width = backbone.stem.convolution.out_features
    alpha = {mobilenet.MOBILENET_WIDTH * quarters // 4: text for quarters, text in _ALPHAS.items()}.get(width)
    sizes = (224, 192, 160, 128) if alpha else ()
    return [f"mobilenet_{alpha}_{size}_tf{top}.h5" for size in sizes for top in ("", "_no_top")]


_ALPHAS = {4: "1_0", 3: "7_5", 2: "5_0", 1: "2_5"}

PUBLISHED: dict[type[nnx.Module], Published] = {
    ResNet: Published(
        layers=_resnet_layers,
        files=_resnet_files,
        top="predictions",
        normalization="caffe",
        function="ResNet50",
    ),
    MobileNet: Published(
        layers=_mobilenet_layers,
        files=_mobilenet_files,
        top="conv_preds",
        normalization="tf",
        function="MobileNet",
    ),
}


def _cached(backbone: Any, published: Published) -> Path:
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"
    names = published.files(backbone)
    if not names:
        raise UsageError(
            f"{type(backbone).__name__}: keras.applications has no weights of this width and depth; name a file"
        )
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(
        f"{folder}: expected {' or '.join(names[:2])}, found neither; where Keras is installed, "
        f"python -c \"import keras; keras.applications.{published.function}(weights='imagenet')\" downloads it; "
        "or name another file"
    )


def _read(file: Path) -> Weights:
    """Return the arrays of every layer with weights, by the layer's name, in Keras' order."""
    import h5py

    try:
        open_regular(file).close()
    except OSError as error:
        cause = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UsageError(
            f"{file}: {cause}; expected weights of keras.applications (.h5, .weights.h5, .keras)"
        ) from error
    try:
        # A zip file with the configuration and the weights of a model of Keras 3.
        if file.suffix == ".keras":
            with zipfile.ZipFile(file) as archive:
                source: Any = io.BytesIO(archive.read("model.weights.h5"))
        else:
            source = file
        with h5py.File(source) as root:
            # Keras 3 groups its layers there; a complete model of Keras 2 has them in model_weights.
            if "layers" in root:
                return _read_keras_3(root["layers"])
            return _read_keras_2(root.get("model_weights", root))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{file}: cannot be read as weights that Keras saved ({error}); expected those of keras.applications (.h5, "
            ".weights.h5, .keras); backbone_weights=keras takes them from Keras' cache"
        ) from error


def _read_keras_3(layers: Any) -> Weights:
    """Read the layers of Keras 3, which have the layer's own name in an attribute."""
    found: dict[str, list[NDArray[Any]]] = {}
    for name, layer in layers.items():
        arrays: Any = layer.get("vars", {})
        if len(arrays):
            layer_name = str(arrays.attrs.get("name", name))
            found[layer_name] = [arrays[str(index)][()] for index in range(len(arrays))]
    return found


def _read_keras_2(layers: Any) -> Weights:
    found: dict[str, list[NDArray[Any]]] = {}
    for name, layer in layers.items():
        names = [
            as_bytes.decode() if isinstance(as_bytes, bytes) else str(as_bytes)
            for as_bytes in layer.attrs.get("weight_names", ())
        ]
        if names:
            found[name] = [layer[weight][()] for weight in names]
    return found


def _unit(
    file: Path, weights: Weights, convolution: str, norm: str, unit: ConvolutionNorm
) -> list[Assignment]:
    # Other norms have no running mean and variance to load.
    if not isinstance(unit.norm, BatchNorm):
        raise UsageError(
            f"{file}: {norm} is a batch norm, the model has {type(unit.norm).__name__}; build it with batch norm"
        )
    kernel, *bias = _layer(file, weights, convolution, 1)
    # Keras stores depthwise kernels as [height, width, channel, multiplier].
    if unit.convolution.feature_group_count > 1:
        kernel = np.swapaxes(kernel, 2, 3)
    scale, offset, mean, variance = _layer(file, weights, norm, 4)
    return [
        _fitted(file, f"{convolution}, kernel", unit.convolution.kernel, kernel),
        _fitted(file, f"{norm}, gamma", unit.norm.scale, scale),
        _fitted(file, f"{norm}, beta", unit.norm.bias, offset),
        _fitted(file, f"{norm}, moving mean", unit.norm.mean, mean - bias[0] if bias else mean),
        _fitted(file, f"{norm}, moving variance", unit.norm.variance, variance),
    ]


def _layer(file: Path, weights: Weights, name: str, least: int) -> list[NDArray[Any]]:
    if name not in weights:
        listed = ", ".join(sorted(weights)[:4]) or "none"
        raise UsageError(
            f"{file}: no layer {name}; it has {plural(len(weights), 'layer')} with weights: {listed} ...; "
            "expected those of "
            "keras.applications"
        )
    arrays = weights[name]
    if len(arrays) < least or not all(np.issubdtype(array.dtype, np.floating) for array in arrays):
        kinds = [f"{array.dtype}{list(array.shape)}" for array in arrays]
        raise UsageError(f"{file}: layer {name}: expected {least} or more arrays of floats, found {kinds}")
    return arrays


def _fitted(file: Path, name: str, variable: Any, array: NDArray[Any]) -> Assignment:
    expected = tuple(variable[...].shape)
    if expected != array.shape:
        raise UsageError(
            f"{file}: layer {name}: the model expects the shape {expected}, the file has {array.shape}; build the "
            "model with the file's width, blocks, image channels and classes"
        )
    return variable, array
