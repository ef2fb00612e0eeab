"""Video files that the tests write."""

import tempfile
from collections.abc import Sequence

import av
import numpy as np


def write_clip(
    frames: Sequence[np.ndarray],
    *,
    form: str = "mp4",
    codec: str = "mpeg4",
    keys: int = 12,
    rotation: int = 0,
    **options: str,
) -> bytes:
    """A clip of `[H, W, 3]` uint8 frames, ten a second, with a key frame every so many."""
    # To put the index first (movflags faststart), FFmpeg must open the file again by its name.
    with tempfile.NamedTemporaryFile() as file:
        with av.open(file.name, "w", format=form, options=options) as container:
            stream = container.add_stream(codec, rate=10)
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = "yuv420p"
            stream.bit_rate = 4_000_000
            stream.codec_context.gop_size = keys
            if rotation:
                stream.set_display_rotation(rotation)
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
        return file.read()


def brightening(count: int = 40, height: int = 48, width: int = 64) -> list[np.ndarray]:
    """Frames whose brightness says which one they are: 5 times its number, plus 20."""
    return [np.full((height, width, 3), 20 + 5 * i, np.uint8) for i in range(count)]
