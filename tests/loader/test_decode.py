"""Are JPEG pixels those of the decoder's accurate or fast options, as asked for?"""

import numpy as np
import pytest
import simplejpeg

from halofeed.loader import FlipLeftRight, Loader
from halofeed.schemas.errors import UsageError

OPTIONS = {
    "accurate": {"fastdct": False, "fastupsample": False},
    "fast": {"fastdct": True, "fastupsample": True},
}


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(12), encoding="jpeg")


@pytest.mark.parametrize("decode", OPTIONS)
@pytest.mark.parametrize("flips", [False, True])
def test_pixels_are_those_of_the_decoders_options(folder, decode, flips):
    augment = [FlipLeftRight(1.0)] if flips else []
    loader = Loader(folder, batch_size=12, training=False, decode=decode, augment=augment, include=["size"])
    batch = loader.batch(0)
    for number, (height, width) in enumerate(batch["size"].tolist()):
        (file,) = loader.stored(number).features(frozenset(["image/encoded"]))["image/encoded"]
        expected = simplejpeg.decode_jpeg(bytes(file), **OPTIONS[decode])[:height, :width]
        assert np.array_equal(loader[number]["image"][:height, :width], expected)
        seen = expected[:, ::-1] if flips else expected
        assert np.array_equal(batch["image"][number, :height, :width], seen)


def test_fast_pixels_differ_and_their_stream_is_another(folder):
    accurate, fast = (Loader(folder, batch_size=4, decode=decode) for decode in OPTIONS)
    assert not np.array_equal(accurate.batch(0)["image"], fast.batch(0)["image"])
    assert fast.restore(fast.state(2)) == 2
    for one, other in ((accurate, fast), (fast, accurate)):
        with pytest.raises(UsageError, match="decode"):
            one.restore(other.state(1))
    with pytest.raises(UsageError, match="decode: expected one of accurate, fast, got 'quick'"):
        Loader(folder, batch_size=4, decode="quick")
