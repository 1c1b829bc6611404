"""Answers of torchvision, computed in another process: torch and TensorFlow crash in one.

The process imports torch once and answers every question of the session; it ends when its input is closed.
"""

import atexit
import functools
import importlib.util
import pickle
import subprocess
import sys
import traceback

import pytest


@functools.cache
def _process():
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, process)
    return process


def _end(process):
    process.stdin.close()
    process.stdout.close()
    process.kill()
    process.wait()


def ask(question, **values):
    """Return what the function `question` of this file gives for `values`; skip the test without torchvision."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision, the other implementation, is not installed")
    process = _process()
    pickle.dump((question, values), process.stdin)
    process.stdin.flush()
    answer, error = pickle.load(process.stdout)
    assert error is None, error
    return answer


def _serve(questions, answers):
    while True:
        try:
            question, values = pickle.load(questions)
        except EOFError:
            return
        try:
            answer = globals()[question](**values), None
        except Exception:
            answer = None, traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


def retinanet_anchors(feature, stride, sizes, aspect_ratios):
    import torch
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    generator = AnchorGenerator(sizes=(sizes,), aspect_ratios=(aspect_ratios,))
    return generator.grid_anchors([feature], [[torch.tensor(stride), torch.tensor(stride)]])[0].numpy()


def ssd_anchors(image, features, scales, aspect_ratios):
    import torch
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.image_list import ImageList

    generator = DefaultBoxGenerator([aspect_ratios] * len(features), scales=scales, clip=False)
    images = ImageList(torch.zeros(1, 3, *image), [image])
    return generator(images, [torch.zeros(1, 1, *feature) for feature in features])[0].numpy()


def box_codes(boxes, anchors, codes, weights):
    import torch
    from torchvision.models.detection._utils import BoxCoder

    coder = BoxCoder(weights)
    encoded = coder.encode_single(torch.tensor(boxes), torch.tensor(anchors))
    return encoded.numpy(), coder.decode_single(torch.tensor(codes), torch.tensor(anchors)).numpy()


def matches(boxes, anchors, high, low):
    """The boxes' own best anchors, then each anchor's box by RetinaNet's rule and by SSD's."""
    import torch
    from torchvision.models.detection._utils import Matcher, SSDMatcher
    from torchvision.ops import box_iou

    table = box_iou(torch.tensor(boxes), torch.tensor(anchors))
    return (table.argmax(1).tolist(), Matcher(high, low)(table).tolist(), SSDMatcher(high)(table).tolist())


def focal_loss(logits, targets, alpha, gamma):
    import torch
    from torchvision.ops import sigmoid_focal_loss

    return sigmoid_focal_loss(torch.tensor(logits), torch.tensor(targets).float(), alpha, gamma).numpy()


def box_losses(difference, delta):
    import torch

    there = torch.tensor(difference)
    zero = torch.zeros_like(there)
    smooth = torch.nn.functional.smooth_l1_loss(there, zero, beta=delta, reduction="none")
    return smooth.numpy(), torch.nn.functional.huber_loss(there, zero, delta=delta, reduction="none").numpy()


def suppression(boxes, scores, classes, threshold):
    import torch
    from torchvision.ops import batched_nms

    return batched_nms(torch.tensor(boxes), torch.tensor(scores), torch.tensor(classes), threshold).tolist()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
