"""Published detectors written once more in TensorFlow, from their configurations, as an oracle for the trainer's.

Sources: tensorflow/models, research/object_detection (samples/configs, models, core/losses.py, matchers, box_coders,
meta_architectures/ssd_meta_arch.py) and slim's networks; tensorflow/tpu, models/official/detection. Only the names of
the weights are those of the trainer. All of it is in float64, and norms use the moments of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Levels = list[tuple[Any, Any, NDArray[np.float64]]]
"""Of each level, finest first: logits [batch, height, width, anchor, class], codes and anchors."""


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
            y = tf.nn.depthwise_conv2d(x, kernel.transpose(0, 1, 3, 2), [1, stride, stride, 1], padding)
        else:
            y = tf.nn.conv2d(x, kernel, stride, padding)
        return y + self.arrays.get(f"{name}.bias", 0.0)

    def normalize(self, name: str, x: Any) -> Any:
        bias, scale = self.arrays[f"{name}.bias"], self.arrays[f"{name}.scale"]
        return tf.nn.batch_normalization(x, *tf.nn.moments(x, [0, 1, 2]), bias, scale, self.epsilon)

    def unit(self, name: str, x: Any, activation: Any = tf.nn.relu6, **options: int) -> Any:
        return activation(self.normalize(f"{name}.norm", self.convolve(f"{name}.convolution", x, **options)))

    def parts(self, name: str) -> Sequence[str]:
        """The names `name.0`, `name.1`, ... that there are."""
        names = (f"{name}.{number}" for number in itertools.count())
        return list(
            itertools.takewhile(lambda one: any(key.startswith(f"{one}.") for key in self.arrays), names)
        )

    def outputs(self, name: str, class_features: Any, box_features: Any) -> tuple[Any, Any]:
        logits = self.convolve(f"{name}.logits", class_features)
        codes = self.convolve(f"{name}.codes", box_features)
        return tf.reshape(logits, [*logits.shape[:3], -1, self.classes]), tf.reshape(
            codes, [*codes.shape[:3], -1, 4]
        )

    def tower(self, name: str, x: Any, level: int, activation: Any) -> Any:
        for depth, convolution in enumerate(self.parts(f"{name}.convolutions")):
            x = activation(self.normalize(f"{name}.norms.{level}.{depth}", self.convolve(convolution, x)))
        return x


def resnet(weights: Weights, image: Any, activation: Any, *, tpu: bool) -> list[Any]:
    """C3 to C5. Slim moves the stride behind a stage; tensorflow/tpu has it in the first 3x3 of a stage."""
    x = weights.unit("backbone.stem", image, activation, stride=2, pad=3)
    x, maps = tf.nn.max_pool2d(x, 3, 2, "SAME"), []
    for stage in weights.parts("backbone.stages"):
        for block, name in enumerate(weights.parts(stage)):
            stride = 2 if tpu and maps and block == 0 else 1
            shortcut = x if block else weights.unit(f"{name}.shortcut", x, tf.identity, stride=stride)
            y = weights.unit(f"{name}.reduce", x, activation)
            y = weights.unit(f"{name}.middle", y, activation, stride=stride, pad=1)
            x = tf.nn.relu(shortcut + weights.unit(f"{name}.expand", y, tf.identity))
        maps.append(x)
        x = x if tpu else x[:, ::2, ::2]
    return maps[-3:]


def mobilenet(weights: Weights, image: Any) -> dict[int, Any]:
    """The blocks' outputs by number, from 1, as slim's Conv2d_1_pointwise and so on."""
    x, maps = weights.unit("backbone.stem", image, stride=2), {}
    for number, block in enumerate(weights.parts("backbone.blocks"), 1):
        x = weights.unit(f"{block}.depthwise", x, stride=2 if number in (2, 4, 6, 12) else 1)
        maps[number] = x = weights.unit(f"{block}.pointwise", x)
    return maps


def doubled(x: Any) -> Any:
    return tf.repeat(tf.repeat(x, 2, 1), 2, 2)


def pyramid(weights: Weights, maps: Sequence[Any], *, smoothed: bool = False) -> list[Any]:
    """Of slim (`fpn_top_down_feature_maps`), or of Keras, which carries the smoothed sums down."""
    total = weights.convolve("pyramid.laterals.2", maps[2])
    levels = [total]
    for level in (1, 0):
        total = doubled(levels[0] if smoothed else total)
        total += weights.convolve(f"pyramid.laterals.{level}", maps[level])
        levels.insert(0, weights.unit(f"pyramid.smoothing.{level}", total))
    for coarser in weights.parts("pyramid.coarser"):
        levels.append(weights.unit(coarser, levels[-1], stride=2))
    return levels


def tpu_pyramid(weights: Weights, maps: Sequence[Any]) -> list[Any]:
    sums = [weights.convolve(f"pyramid.laterals.{level}", x) for level, x in enumerate(maps)]
    sums[1] += doubled(sums[2])
    sums[0] += doubled(sums[1])
    levels = [weights.convolve(f"pyramid.smoothing.{level}", x) for level, x in enumerate(sums)]
    levels.append(weights.convolve("pyramid.coarser.0", levels[-1], stride=2))
    levels.append(weights.convolve("pyramid.coarser.1", tf.nn.relu(levels[-1]), stride=2))
    return [weights.normalize(f"pyramid.norms.{level}", x) for level, x in enumerate(levels)]


def anchors_around(features: Any, stride: Any, shapes: Any, image: Sequence[int]) -> NDArray[np.float64]:
    """Anchors of scales and ratios around the middles of strides, as shares of the image's sides."""
    sizes = np.array([[scale * ratio**-0.5, scale * ratio**0.5] for scale, ratio in shapes])
    middles = [(np.arange(count) + 0.5) * by for count, by in zip(features.shape[1:3], stride, strict=True)]
    centers = np.stack(np.meshgrid(*middles, indexing="ij"), -1)[:, :, None]
    return np.concatenate([centers - sizes / 2, centers + sizes / 2], -1) / [*image, *image]


def retinanet(weights: Weights, image: Any, levels: list[Any], activation: Any, octave: int) -> Levels:
    """With anchors of 4 strides and more at 1, 2 and 1/2. In tensorflow/tpu the ratios vary fastest, here scales."""
    found: Levels = []
    for level, x in enumerate(levels):
        stride = 2 ** (level + 3)
        scales = [4 * stride * 2 ** (scale / octave) for scale in range(octave)]
        shapes = [(scale, ratio) for ratio in (1.0, 2.0, 0.5) for scale in scales]
        towers = [weights.tower(f"{name}_tower", x, level, activation) for name in ("class", "box")]
        anchors = anchors_around(x, (stride, stride), shapes, image.shape[1:3])
        found.append((*weights.outputs("outputs", *towers), anchors))
    return found


def slim_retinanet(weights: Weights, image: Any) -> Levels:
    maps = resnet(weights, image, tf.nn.relu6, tpu=False)
    return retinanet(weights, image, pyramid(weights, maps), tf.nn.relu6, 2)


def mobilenet_retinanet(weights: Weights, image: Any, *, smoothed: bool = False) -> Levels:
    maps = mobilenet(weights, image)
    levels = pyramid(weights, [maps[5], maps[11], maps[13]], smoothed=smoothed)
    return retinanet(weights, image, levels, tf.nn.relu6, 2)


def tpu_retinanet(weights: Weights, image: Any) -> Levels:
    levels = tpu_pyramid(weights, resnet(weights, image, tf.nn.relu, tpu=True))
    return retinanet(weights, image, levels, tf.nn.relu, 3)


def ssd_anchors(levels: Sequence[Any], lowest: float, *, reduced: bool) -> list[NDArray[np.float64]]:
    """Anchors of six levels of square images."""
    scales = [*(lowest + (0.95 - lowest) * level / 5 for level in range(6)), 1.0]
    found = []
    for level, x in enumerate(levels):
        shapes = [(scales[level], ratio) for ratio in (1.0, 2.0, 0.5, 3.0, 0.3333)]
        shapes.append((np.sqrt(scales[level] * scales[level + 1]), 1.0))
        if level == 0 and reduced:
            shapes = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        found.append(anchors_around(x, 1 / np.array(x.shape[1:3]), shapes, (1, 1)))
    return found


def ssd(weights: Weights, image: Any) -> Levels:
    maps = mobilenet(weights, image)
    levels = [maps[11], maps[13]]
    for extra in weights.parts("extra"):
        reduced = weights.unit(f"{extra}.reduce", levels[-1])
        levels.append(weights.unit(f"{extra}.shrink", reduced, stride=2))
    anchors = ssd_anchors(levels, 0.2, reduced=True)
    return [(*weights.outputs(f"outputs.{i}", x, x), anchors[i]) for i, x in enumerate(levels)]


def pooling_ssd(weights: Weights, image: Any) -> Levels:
    levels = [mobilenet(weights, image)[11]]
    for _ in range(5):
        levels.append(tf.nn.max_pool2d(levels[-1], 2, 2, "SAME"))
    towers = [weights.tower("tower", x, level, tf.nn.relu6) for level, x in enumerate(levels)]
    anchors = ssd_anchors(levels, 0.15, reduced=False)
    return [(*weights.outputs("outputs", x, x), anchors[i]) for i, x in enumerate(towers)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The function that computes a configuration's network, and what the configuration says about its loss."""

    network: Callable[[Weights, Any], Levels]
    alpha: float = 0.25
    gamma: float = 2.0
    delta: float = 1.0
    box_weight: float = 1.0
    scales: Sequence[float] = (10.0, 10.0, 5.0, 5.0)
    tpu: bool = False

    def targets(
        self, anchors: NDArray[Any], boxes: NDArray[Any], labels: NDArray[Any]
    ) -> tuple[Any, Any, Any]:
        """Of each anchor its class (0 below an overlap of 0.5), the codes of its box, and the weight of these.

        Each box's best anchor is forced.
        """
        if not len(boxes):
            return np.zeros(len(anchors), int), np.zeros(anchors.shape), np.zeros(len(anchors))
        sides = np.minimum(anchors[:, None, 2:], boxes[:, 2:]) - np.maximum(
            anchors[:, None, :2], boxes[:, :2]
        )
        common = np.maximum(sides, 0).prod(-1)
        areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (anchors, boxes)]
        overlap = common / (areas[0][:, None] + areas[1] - common)
        matches = np.where(overlap.max(1) < 0.5, -1, overlap.argmax(1))
        for box in reversed(range(len(boxes))):
            matches[overlap[:, box].argmax()] = box
        (center, side), (middle, own) = (
            ((one[:, :2] + one[:, 2:]) / 2, one[:, 2:] - one[:, :2] + 1e-8)
            for one in (boxes[matches], anchors)
        )
        codes = np.concatenate([(center - middle) / own, np.log(side / own)], -1) * self.scales
        weights = np.where(matches < 0, 0, 1)
        return weights * labels[matches], weights[:, None] * codes, weights

    def losses(self, levels: Levels, boxes: Any, labels: Any, num_boxes: Any) -> tuple[float, float]:
        """The losses of classes and boxes over a batch, normalized, the second by the codes too, without weights."""
        logits, codes, anchors = (
            np.concatenate(
                [np.reshape(level[part], (rows, -1, level[part].shape[-1])) for level in levels], 1
            )
            for part, rows in enumerate((len(boxes), len(boxes), 1))
        )
        class_loss = box_loss = matched = 0.0
        for row, count in enumerate(num_boxes):
            classes, codes_of, weights = self.targets(anchors[0], boxes[row, :count], labels[row, :count])
            truth = np.eye(logits.shape[-1] + 1)[classes][:, 1:]
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(truth, logits[row]).numpy()
            probability = tf.sigmoid(logits[row]).numpy()
            of_truth = np.where(truth > 0, probability, 1 - probability)
            weight = np.where(truth > 0, self.alpha, 1 - self.alpha)
            class_loss += float((weight * (1 - of_truth) ** self.gamma * entropy).sum())
            far = np.abs(codes[row] - codes_of)
            huber = np.where(far <= self.delta, far**2 / 2, self.delta * (far - self.delta / 2))
            box_loss += float((huber.sum(-1) * weights).sum())
            matched += int(weights.sum())
        normalizer = matched + 1 if self.tpu else max(matched, 1)
        return class_loss / normalizer, box_loss / (4 * normalizer)


TPU = {"gamma": 1.5, "delta": 0.1, "box_weight": 50.0, "scales": (1.0, 1.0, 1.0, 1.0), "tpu": True}
PUBLISHED = {
    ("retinanet_resnet50_fpn_640", "slim"): Published(network=slim_retinanet),
    ("retinanet_mobilenet_v1_fpn_640", "slim"): Published(network=mobilenet_retinanet),
    ("retinanet_mobilenet_v1_fpn_640", "keras"): Published(
        network=partial(mobilenet_retinanet, smoothed=True)
    ),
    ("ssd_mobilenet_v1_300", ""): Published(network=ssd, alpha=0.75),
    ("ssd_mobilenet_v1_ppn_300", ""): Published(network=pooling_ssd, alpha=0.75, box_weight=1.5),
    ("retinanet_resnet50_fpn_1280", "tpu"): Published(network=tpu_retinanet, **TPU),
    ("retinanet_resnet50_fpn_2560_8way", "tpu"): Published(network=tpu_retinanet, **TPU),
}
"""By the recipe that follows it and its variant."""
