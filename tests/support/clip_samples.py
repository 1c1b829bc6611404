"""Drawn clips that OpenCV cannot write, and sound, in files beside this module; see `clip_writer`."""

from pathlib import Path

_FILES = Path(__file__).with_name("clips")

H264_VARIABLE = (_FILES / "h264_variable.mp4").read_bytes()
"""20 frames, each decoded after later ones, the index first."""
H264_FRAGMENTS = (_FILES / "h264_fragments.mp4").read_bytes()
"""20 frames at 25 a second, a fragment for every five."""
AV1 = (_FILES / "av1.webm").read_bytes()
"""20 frames that the FFmpeg of OpenCV cannot decode."""
VARIABLE_MS = (
    *(0, 40, 240, 280, 1280, 1360, 1400, 1500, 1533, 1566),
    *(1600, 1700, 1900, 2000, 2010, 2020, 2500, 2600, 2700, 2800),
)
MIRRORED = (_FILES / "mirrored.webm").read_bytes()
"""3 frames of VP8, stored as `draw` draws them, shown mirrored and then turned by a quarter."""
INTERLACED = (_FILES / "interlaced.mp4").read_bytes()
"""2 frames of H.264, each made of two."""
OUT_OF_ORDER = (_FILES / "out_of_order.avi").read_bytes()
"""9 frames of MPEG-4 at 25 a second, some decoded after later ones, which AVI gives no times."""
TRANSPARENT_VP9 = (_FILES / "transparent_vp9.webm").read_bytes()
"""2 frames of VP9 with alpha in the container."""
TRANSPARENT_PRORES = (_FILES / "transparent_prores.mov").read_bytes()
"""A frame of ProRes 4444."""
SOUND_WEBM = (_FILES / "sound_webm.webm").read_bytes()
"""Opus alone."""
SOUND_MP4 = (_FILES / "sound_mp4.mp4").read_bytes()
"""AAC alone."""
WIDE_PIXELS = (_FILES / "wide_pixels.webm").read_bytes()
"""A frame of VP8 whose pixels are wider than high."""
