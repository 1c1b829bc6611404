"""What augmentations on the device are, once more: slow, in float64, a number at a time."""

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]
MASK = 0xFFFFFFFF


def cipher(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 of 20 rounds on whole numbers."""
    schedule = [key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1]]
    left, right = (counter[0] + schedule[0]) & MASK, (counter[1] + schedule[1]) & MASK
    rotations = [13, 15, 26, 6, 17, 29, 16, 24]
    for number in range(20):
        bits = rotations[number % 8]
        left = (left + right) & MASK
        right = ((right << bits | right >> (32 - bits)) & MASK) ^ left
        if number % 4 == 3:
            turn = number // 4 + 1
            left = (left + schedule[turn % 3]) & MASK
            right = (right + schedule[(turn + 1) % 3] + turn) & MASK
    return left, right


class Drawn:
    """The numbers of one augmentation of one example."""

    def __init__(self, seed: int, identity: int, epoch: int, place: int) -> None:
        words = identity % 2**64
        example = cipher((seed >> 32, seed & MASK), (words >> 32, words & MASK))
        self.key = cipher(example, (epoch, place))

    def uniform(self, number: int) -> float:
        return (cipher(self.key, (MASK, number))[0] >> 8) / 2**24

    def between(self, bounds: tuple[float, float], number: int = 1) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * self.uniform(number)

    def normal(self, channel: int, place: int) -> float:
        first, second = ((word >> 8) / 2**24 for word in cipher(self.key, (channel, place)))
        return math.sqrt(-2 * math.log(first + 2**-25)) * math.cos(2 * math.pi * second)


def brightness(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    return image + drawn.between(given.shift) * (white - black)


def contrast(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    mean = image.reshape(-1, image.shape[-1]).mean(axis=0)
    return mean + drawn.between(given.factor) * (image - mean)


def saturation(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    gray = image @ np.array([0.299, 0.587, 0.114])
    return gray[..., None] + drawn.between(given.factor) * (image - gray[..., None])


def hue(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    to_yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    turn = cmath.exp(1j * math.radians(drawn.between(given.degrees)))
    out = np.empty_like(image)
    for place in np.ndindex(image.shape[:-1]):
        y, i, q = to_yiq @ image[place]
        turned = complex(i, q) * turn
        out[place] = np.linalg.solve(to_yiq, [y, turned.real, turned.imag])
    return out


def gamma(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    exponent = drawn.between(given.exponent)
    bent = black + (white - black) * (np.maximum(image - black, 0) / (white - black)) ** exponent
    return np.where(image > black, bent, image)


def noise(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    out, deviation = image.copy(), drawn.between(given.deviation) * (white - black)
    for place, index in enumerate(np.ndindex(image.shape[:-1])):
        for channel in range(image.shape[-1]):
            out[(*index, channel)] += deviation * drawn.normal(channel, place)
    return out


def blur(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    sigma, reach = drawn.between(given.sigma_pixels), math.ceil(3 * given.sigma_pixels[1])
    first = 0 if given.depth or image.ndim == 3 else 1
    for axis in range(first, image.ndim - 1):
        lines = np.moveaxis(image, axis, 0)
        out = np.empty_like(lines)
        for place in range(len(lines)):
            near = range(max(0, place - reach), min(len(lines), place + reach + 1))
            weights = [math.exp(-((other - place) ** 2) / (2 * sigma**2)) for other in near]
            total = sum(weight * lines[other] for weight, other in zip(weights, near, strict=True))
            out[place] = total / sum(weights)
        image = np.moveaxis(out, 0, axis)
    return image


def hu_window(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    center, width = drawn.between(given.center_hu), drawn.between(given.width_hu, 2)
    seen = np.clip(image, center - width / 2, center + width / 2)
    return black + (white - black) * (seen - (center - width / 2)) / width


def bias_field(image: Image, given: Any, drawn: Drawn, black: float, white: float) -> Image:
    axes = image.ndim - 1
    orders = [each for each in itertools.product(range(4), repeat=axes) if 0 < sum(each) <= 3]
    weights = [2 * drawn.uniform(2 + place) - 1 for place in range(len(orders))]
    strength, out = drawn.between(given.strength), np.empty_like(image)
    for place in np.ndindex(image.shape[:-1]):
        total, at = 0.0, [math.pi * (at + 0.5) / size for at, size in zip(place, image.shape, strict=False)]
        for weight, each in zip(weights, orders, strict=True):
            waves = [math.cos(order * angle) for order, angle in zip(each, at, strict=True)]
            total += weight * math.prod(waves)
        field = math.exp(strength * total / sum(map(abs, weights)))
        out[place] = given.zero + (image[place] - given.zero) * field
    return out


ORACLES: dict[str, Callable[..., Image]] = {"Brightness": brightness, "Contrast": contrast, "Gamma": gamma}
ORACLES |= {"Saturation": saturation, "Hue": hue, "GaussianBlur": blur, "GaussianNoise": noise}
ORACLES |= {"HUWindow": hu_window, "BiasField": bias_field}


def augmented(image: NDArray[Any], augmentations: Any, *, seed, identity, epoch, values) -> Image:
    """One image [..., channel] after all of them, without clipping."""
    out = image.astype(np.float64)
    for place, given in enumerate(augmentations):
        drawn = Drawn(seed, identity, epoch, place)
        if drawn.uniform(0) < given.probability:
            out = ORACLES[type(given).__name__](out, given, drawn, *values)
    return out
