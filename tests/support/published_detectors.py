"""Published detectors written once more in TensorFlow, from their configurations, as an oracle for the trainer's.

Sources: tensorflow/models, research/object_detection (samples/configs, models, core/losses.py, matchers, box_coders,
meta_architectures/ssd_meta_arch.py) and slim's networks; tensorflow/tpu, models/official/detection. Only the names of the
weights are those of the trainer. All of it is in float64, and norms use the moments of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Levels = list[tuple[Any, Any, NDArray[np.float64]]]
"""Of each level, finest first: logits [batch, height, width, anchor, class], codes and anchors."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a configuration says about its loss, and the function that computes its network."""

    network: Callable[[Weights, Any], Levels]
    alpha: float = 0.25
    gamma: float = 2.0
    delta: float = 1.0
    box_weight: float = 1.0
    scales: Sequence[float] = (10.0, 10.0, 5.0, 5.0)
    plus_one: bool = False


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The trainer's weights by their paths, such as `backbone.stem.convolution.kernel`."""

    arrays: Mapping[str, NDArray[np.float64]]
    epsilon: float
    classes: int

    def convolve(self, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
        kernel, padding = self.arrays[f"{name}.kernel"], "VALID" if pad else "SAME"
        x = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
        if kernel.shape[2] == 1 < x.shape[3]:
            turned = kernel.transpose(0, 1, 3, 2)
            y = tf.nn.depthwise_conv2d(x, turned, [1, stride, stride, 1], padding)
        else:
            y = tf.nn.conv2d(x, kernel, stride, padding)
        return y + self.arrays.get(f"{name}.bias", 0.0)

    def normalize(self, name: str, x: Any) -> Any:
        moments = tf.nn.moments(x, [0, 1, 2])
        bias, scale = self.arrays[f"{name}.bias"], self.arrays[f"{name}.scale"]
        return tf.nn.batch_normalization(x, *moments, bias, scale, self.epsilon)

    def unit(self, name: str, x: Any, activation: Any = tf.nn.relu6, **options: int) -> Any:
        return activation(self.normalize(f"{name}.norm", self.convolve(f"{name}.convolution", x, **options)))

    def count(self, name: str) -> int:
        """How many parts `name.0`, `name.1`, ... there are."""
        return next(n for n in itertools.count() if not any(key.startswith(f"{name}.{n}.") for key in self.arrays))

    def outputs(self, name: str, class_features: Any, box_features: Any) -> tuple[Any, Any]:
        pairs = (("logits", class_features, self.classes), ("codes", box_features, 4))
        logits, codes = (
            tf.reshape(y, [*y.shape[:3], -1, last])
            for y, last in ((self.convolve(f"{name}.{part}", x), last) for part, x, last in pairs)
        )
        return logits, codes

    def tower(self, name: str, x: Any, level: int, activation: Any) -> Any:
        for depth in range(self.count(f"{name}.convolutions")):
            x = self.convolve(f"{name}.convolutions.{depth}", x)
            x = activation(self.normalize(f"{name}.norms.{level}.{depth}", x))
        return x


def resnet(weights: Weights, image: Any, activation: Any, *, tpu: bool) -> list[Any]:
    """C3 to C5. Slim moves the stride behind a stage; tensorflow/tpu has it in the first 3x3 of a stage."""
    x = weights.unit("backbone.stem", image, activation, stride=2, pad=3)
    x, maps = tf.nn.max_pool2d(x, 3, 2, "SAME"), []
    for stage in range(weights.count("backbone.stages")):
        for block in range(weights.count(f"backbone.stages.{stage}")):
            name, strided = f"backbone.stages.{stage}.{block}", tpu and stage > 0 and block == 0
            how = {"stride": 2} if strided else {}
            shortcut = x if block else weights.unit(f"{name}.shortcut", x, tf.identity, **how)
            y = weights.unit(f"{name}.reduce", x, activation)
            y = weights.unit(f"{name}.middle", y, activation, **how, pad=1)
            x = tf.nn.relu(shortcut + weights.unit(f"{name}.expand", y, tf.identity))
        maps.append(x)
        x = x if tpu else x[:, ::2, ::2]
    return maps[-3:]


def mobilenet(weights: Weights, image: Any) -> dict[int, Any]:
    """The blocks' outputs by number, from 1, as slim's Conv2d_1_pointwise and so on."""
    x, maps = weights.unit("backbone.stem", image, stride=2), {}
    for block in range(weights.count("backbone.blocks")):
        x = weights.unit(f"backbone.blocks.{block}.depthwise", x, stride=2 if block in (1, 3, 5, 11) else 1)
        maps[block + 1] = x = weights.unit(f"backbone.blocks.{block}.pointwise", x)
    return maps


def doubled(x: Any) -> Any:
    return tf.repeat(tf.repeat(x, 2, 1), 2, 2)


def slim_pyramid(weights: Weights, maps: Sequence[Any]) -> list[Any]:
    total = weights.convolve("pyramid.laterals.2", maps[2])
    levels = [total]
    for level in (1, 0):
        total = doubled(total) + weights.convolve(f"pyramid.laterals.{level}", maps[level])
        levels.insert(0, weights.unit(f"pyramid.smoothing.{level}", total))
    for level in (0, 1):
        levels.append(weights.unit(f"pyramid.coarser.{level}", levels[-1], stride=2))
    return levels


def tpu_pyramid(weights: Weights, maps: Sequence[Any]) -> list[Any]:
    sums = [weights.convolve(f"pyramid.laterals.{level}", x) for level, x in enumerate(maps)]
    sums[1] += doubled(sums[2])
    sums[0] += doubled(sums[1])
    levels = [weights.convolve(f"pyramid.smoothing.{level}", x) for level, x in enumerate(sums)]
    levels.append(weights.convolve("pyramid.coarser.0", levels[-1], stride=2))
    levels.append(weights.convolve("pyramid.coarser.1", tf.nn.relu(levels[-1]), stride=2))
    return [weights.normalize(f"pyramid.norms.{level}", x) for level, x in enumerate(levels)]


def multiscale(levels: Sequence[Any], image: Any, octave: int) -> list[NDArray[np.float64]]:
    """Anchors of 4 strides at 1, 2 and 1/2, scales varying fastest, around the middles of the strides."""
    anchors = []
    for level, features in enumerate(levels, 3):
        sizes = [
            (4 * 2**level * 2 ** (scale / octave) * np.array([ratio**-0.5, ratio**0.5]))
            for ratio in (1.0, 2.0, 0.5)
            for scale in range(octave)
        ]
        middles = [(np.arange(count) + 0.5) * 2**level for count in features.shape[1:3]]
        anchors.append(around(middles, sizes, image.shape[1:3]))
    return anchors


def ssd_anchors(levels: Sequence[Any], lowest: float, *, reduced: bool) -> list[NDArray[np.float64]]:
    """Anchors of six levels of square images, as shares of a side."""
    scales = [*(lowest + (0.95 - lowest) * level / 5 for level in range(6)), 1.0]
    anchors = []
    for level, features in enumerate(levels):
        shapes = [(scales[level], ratio) for ratio in (1.0, 2.0, 0.5, 3.0, 0.3333)]
        shapes.append((np.sqrt(scales[level] * scales[level + 1]), 1.0))
        if level == 0 and reduced:
            shapes = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        sizes = [scale * np.array([ratio**-0.5, ratio**0.5]) for scale, ratio in shapes]
        middles = [(np.arange(count) + 0.5) / count for count in features.shape[1:3]]
        anchors.append(around(middles, sizes, (1, 1)))
    return anchors


def around(middles: Sequence[Any], sizes: Sequence[Any], sides: Sequence[int]) -> NDArray[np.float64]:
    centers = np.stack(np.meshgrid(*middles, indexing="ij"), -1)[:, :, None]
    return np.concatenate([centers - np.array(sizes) / 2, centers + np.array(sizes) / 2], -1) / [*sides, *sides]


def retinanet(weights: Weights, image: Any, levels: list[Any], activation: Any, octave: int) -> Levels:
    found: Levels = []
    for level, (x, anchors) in enumerate(zip(levels, multiscale(levels, image, octave), strict=True)):
        towers = [weights.tower(f"{name}_tower", x, level, activation) for name in ("class", "box")]
        found.append((*weights.outputs("outputs", *towers), anchors))
    return found


def slim_retinanet(weights: Weights, image: Any) -> Levels:
    levels = slim_pyramid(weights, resnet(weights, image, tf.nn.relu6, tpu=False))
    return retinanet(weights, image, levels, tf.nn.relu6, 2)


def mobilenet_retinanet(weights: Weights, image: Any) -> Levels:
    maps = mobilenet(weights, image)
    return retinanet(weights, image, slim_pyramid(weights, [maps[5], maps[11], maps[13]]), tf.nn.relu6, 2)


def tpu_retinanet(weights: Weights, image: Any) -> Levels:
    levels = tpu_pyramid(weights, resnet(weights, image, tf.nn.relu, tpu=True))
    return retinanet(weights, image, levels, tf.nn.relu, 3)


def ssd(weights: Weights, image: Any) -> Levels:
    maps = mobilenet(weights, image)
    levels = [maps[11], maps[13]]
    for extra in range(4):
        levels.append(weights.unit(f"extra.{extra}.reduce", levels[-1]))
        levels[-1] = weights.unit(f"extra.{extra}.shrink", levels[-1], stride=2)
    anchors = ssd_anchors(levels, 0.2, reduced=True)
    return [(*weights.outputs(f"outputs.{i}", x, x), anchors[i]) for i, x in enumerate(levels)]


def pooling_ssd(weights: Weights, image: Any) -> Levels:
    levels = [mobilenet(weights, image)[11]]
    for _ in range(5):
        levels.append(tf.nn.max_pool2d(levels[-1], 2, 2, "SAME"))
    anchors, found = ssd_anchors(levels, 0.15, reduced=False), []
    for level, x in enumerate(levels):
        tower = weights.tower("tower", x, level, tf.nn.relu6)
        found.append((*weights.outputs("outputs", tower, tower), anchors[level]))
    return found


def targets_of(anchors: NDArray[Any], boxes: NDArray[Any], scales: Sequence[float]) -> tuple[Any, Any]:
    """The box of each anchor, -1 below an overlap of 0.5, each box's best anchor forced, and the codes of the boxes."""
    low, high = (np.maximum, np.minimum)
    common = high(anchors[:, None, 2:], boxes[:, 2:]) - low(anchors[:, None, :2], boxes[:, :2])
    common = np.maximum(common, 0).prod(-1)
    areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (anchors, boxes)]
    overlap = common / (areas[0][:, None] + areas[1] - common)
    matches = np.where(overlap.max(1) < 0.5, -1, overlap.argmax(1))
    for box in reversed(range(len(boxes))):
        matches[overlap[:, box].argmax()] = box
    (center, side), (middle, own) = (
        ((one[:, :2] + one[:, 2:]) / 2, one[:, 2:] - one[:, :2] + 1e-8) for one in (boxes[matches], anchors)
    )
    return matches, np.concatenate([(center - middle) / own, np.log(side / own)], -1) * scales


def losses(published: Published, levels: Levels, boxes: Any, labels: Any, num_boxes: Any) -> tuple[float, float]:
    """The losses of classes and boxes over a batch, normalized, the second by the codes too, and not yet weighted."""
    logits, codes = (
        np.concatenate([np.reshape(level[part], (len(boxes), -1, last)) for level in levels], 1)
        for part, last in ((0, levels[0][0].shape[-1]), (1, 4))
    )
    anchors = np.concatenate([level[2].reshape(-1, 4) for level in levels])
    class_loss = box_loss = matched = 0.0
    for row, count in enumerate(num_boxes):
        matches, codes_of = targets_of(anchors, boxes[row, :count], published.scales)
        is_matched = matches >= 0
        truth = is_matched[:, None] * np.eye(logits.shape[-1])[labels[row, matches] - 1]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(truth, logits[row]).numpy()
        probability = tf.sigmoid(logits[row]).numpy()
        of_truth = np.where(truth > 0, probability, 1 - probability)
        weight = np.where(truth > 0, published.alpha, 1 - published.alpha)
        class_loss += float((weight * (1 - of_truth) ** published.gamma * entropy).sum())
        far = np.abs(codes[row] - codes_of)[is_matched]
        huber = np.where(far <= published.delta, far**2 / 2, published.delta * (far - published.delta / 2))
        box_loss += float(huber.sum())
        matched += int(is_matched.sum())
    normalizer = matched + 1 if published.plus_one else max(matched, 1)
    return class_loss / normalizer, box_loss / (4 * normalizer)


PUBLISHED = {
    "retinanet_resnet50_fpn_640": Published(network=slim_retinanet),
    "retinanet_mobilenet_v1_fpn_640": Published(network=mobilenet_retinanet),
    "ssd_mobilenet_v1_300": Published(network=ssd, alpha=0.75),
    "ssd_mobilenet_v1_ppn_300": Published(network=pooling_ssd, alpha=0.75, box_weight=1.5),
    "retinanet_resnet50_fpn_1280": Published(
        network=tpu_retinanet, gamma=1.5, delta=0.1, box_weight=50.0, scales=(1, 1, 1, 1), plus_one=True
    ),
}
PUBLISHED["retinanet_resnet50_fpn_2560_8way"] = PUBLISHED["retinanet_resnet50_fpn_1280"]
"""By the name of the recipe that follows it."""
