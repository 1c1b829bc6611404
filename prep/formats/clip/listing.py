"""Which clips lie below a folder: videos, animations, and folders whose pictures are the frames of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from posixpath import splitext

from halofeed.prep.formats.clip.frame_folder import moves, natural_order
from halofeed.prep.sources.files import SourceFiles, Stamp
from halofeed.prep.sources.listing import Listing
from halofeed.prep.sources.names import is_image_name, is_video_name
from halofeed.prep.sources.reference import Reference
from halofeed.schemas.errors import SourceError

_CAN_MOVE = frozenset((".png", ".apng", ".webp"))
_HEAD_BYTES = 1 << 12


def list_clips(files: SourceFiles) -> Listing:
    """The clips of a folder.

    A video file is a clip, and so are GIF files, and WebP and PNG files where the first of their folder, the last or
    the one in the middle is seen to move. All other pictures of one folder are the frames of one clip, called by the
    folder, unless clips in files of their own lie beside them: then they are no clips.
    """
    clips = _ClipFiles(files)
    return Listing(files=clips, takes=clips.takes, takes_scan=clips.takes, complete=clips.complete)


class _ClipFiles:
    """The files below a folder, with a folder of frames in the place of its frames."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        # What is asked of a single file or folder needs no clips.
        self.root, self.read, self.open, self.head = files.root, files.read, files.open, files.head
        self.faults, self.refusal, self.has_folder = files.faults, files.refusal, files.has_folder

    @cached_property
    def _clips(self) -> Mapping[str, tuple[str, ...]]:
        """The frames of each clip by its path; of a clip in one file none."""
        by_folder: dict[str, list[str]] = {}
        for path in self._files.sizes():
            if is_video_name(path) or is_image_name(path) or path.lower().endswith(".apng"):
                by_folder.setdefault(path.rpartition("/")[0], []).append(path)
        clips: dict[str, tuple[str, ...]] = {}
        for folder, paths in by_folder.items():
            moving = self._moving_extensions(paths)
            whole = [path for path in paths if is_video_name(path) or splitext(path)[1].lower() in moving]
            clips |= dict.fromkeys(whole, ())
            if not whole and folder:
                clips[folder] = tuple(natural_order(paths))
        return clips

    def _moving_extensions(self, paths: list[str]) -> set[str]:
        """The extensions whose pictures move in a folder, as three of each show."""
        by_extension: dict[str, list[str]] = {}
        for path in paths:
            by_extension.setdefault(splitext(path)[1].lower(), []).append(path)
        moving = {".gif"} & by_extension.keys()
        for extension in _CAN_MOVE & by_extension.keys():
            alike = by_extension[extension]
            if any(self._moves(alike[at]) for at in {0, len(alike) // 2, len(alike) - 1}):
                moving.add(extension)
        return moving

    def _moves(self, path: str) -> bool:
        try:
            return moves(self._files.head(path, _HEAD_BYTES))
        except SourceError:
            return False

    def takes(self, path: str) -> bool:
        """Whether a path is that of a clip."""
        return path in self._clips

    def complete(self, reference: Reference) -> Reference:
        """The reference with the frames of its clip, and of its masks, that are folders."""
        frames = self._clips.get(reference.source, ())
        masks = tuple((path, found) for path in reference.mask_paths if (found := self._clips.get(path)))
        return replace(reference, members=frames, mask_members=masks) if frames or masks else reference

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        inner = self._files.sizes()
        frames = {path for members in self._clips.values() for path in members}
        listed = {path: size for path, size in inner.items() if path not in frames}
        folders = {
            path: sum(inner[frame] for frame in members) for path, members in self._clips.items() if members
        }
        return dict(sorted({**listed, **folders}.items()))

    @cached_property
    def _by_folder(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self._sizes:
            found.setdefault(path.rpartition("/")[0], []).append(path)
        return found

    def sizes(self) -> Mapping[str, int]:
        return self._sizes

    def size(self, path: str) -> int | None:
        size = self._files.size(path)
        return self._sizes.get(path) if size is None else size

    def stamp(self, path: str) -> Stamp | None:
        return self._files.stamp(path)

    def files_in(self, folder: str) -> list[str]:
        return self._by_folder.get(folder, [])
