"""How tests draw clips: a square that moves to the left or the right, as video, animation or folder of frames."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH, SIDE, RATE = 48, 64, 12, 10
BACKGROUND, SQUARE = 40, (220, 120, 60)


def moving_square(direction: str, frames: int, generator: np.random.Generator) -> list[NDArray[np.uint8]]:
    """Frames uint8 [HEIGHT, WIDTH, 3] in which a square goes 2 pixels a frame, from a side where it has room."""
    top = int(generator.integers(0, HEIGHT - SIDE))
    left = int(generator.integers(0, WIDTH - SIDE - 2 * frames + 1))
    drawn = []
    for frame in range(frames):
        picture = np.full((HEIGHT, WIDTH, 3), BACKGROUND, np.uint8)
        at = left + 2 * (frame if direction == "right" else frames - 1 - frame)
        picture[top : top + SIDE, at : at + SIDE] = SQUARE
        drawn.append(picture)
    return drawn


def write_video(path: Path, frames: Sequence[NDArray[np.uint8]], rate: float = RATE) -> None:
    """An MP4 of MPEG-4 video, or an AVI of JPEGs, by the extension."""
    codec = {".mp4": "mp4v", ".avi": "MJPG"}[path.suffix]
    size = (frames[0].shape[1], frames[0].shape[0])
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, size)
    for frame in frames:
        writer.write(frame[..., ::-1])
    writer.release()


def write_gif(path: Path, frames: Sequence[NDArray[np.uint8]]) -> None:
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=1000 // RATE)


def write_folder(path: Path, frames: Sequence[NDArray[np.uint8] | Image.Image]) -> None:
    path.mkdir(parents=True)
    for number, frame in enumerate(frames):
        image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
        image.save(path / f"{number}.png")


def write_clip(path: Path, kind: str, frames: Sequence[NDArray[np.uint8]]) -> None:
    """A folder of frames, or a file that has its kind, gif or mp4, for an extension."""
    write = {"folder": write_folder, "gif": write_gif, "mp4": write_video}[kind]
    write(path if kind == "folder" else path.with_suffix(f".{kind}"), frames)


def write_class_folders(root: Path, each: int, frames: int = 20) -> Path:
    """`left` and `right`, in each as many clips: videos, animations and folders of frames in turn."""
    generator = np.random.default_rng(0)
    for direction in ("left", "right"):
        folder = root / direction
        folder.mkdir(parents=True)
        for number in range(each):
            kind = ("mp4", "gif", "folder")[number % 3]
            name = f"walk{number}" if kind == "folder" else f"{number}"
            write_clip(folder / name, kind, moving_square(direction, frames, generator))
    return root
