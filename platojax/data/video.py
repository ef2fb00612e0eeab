"""Frames of encoded video clips, decoded with PyAV where they are wanted."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image

# A container's duration may be that of a longer sound track.
_MAY_LACK = 0.1  # of the duration, at its end


def read_frames(content: bytes, moments: Sequence[float]) -> list[Image.Image]:
    """The frames that are seen at some moments of a clip, in RGB and upright.

    Only the stretches between a moment and the key frame before it are decoded.

    Args:
      content: a video file: MP4, WebM and whatever else FFmpeg reads.
      moments: as shares of the duration, in [0, 1), ascending.

    Raises:
      ValueError: it is no video, or is truncated.
      ImportError: PyAV is not installed.
    """
    av = _load_av()
    try:
        with av.open(io.BytesIO(content)) as container:
            return list(_frames_at(container, moments))
    except Exception as error:  # PyAV has kinds of its own, and trips over what is damaged
        raise ValueError(
            f"a clip of {len(content)} bytes cannot be read as a video: {error}; replace it"
        ) from error


def _load_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError("video clips need PyAV: pip install 'platojax[video]'") from error
    return av


def _frames_at(container: Any, moments: Sequence[float]) -> Iterator[Image.Image]:
    if not container.streams.video:
        raise ValueError("it has no picture")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise ValueError("nothing here decodes it")
    limit = Image.MAX_IMAGE_PIXELS
    if limit and stream.width * stream.height > limit:
        raise ValueError(f"{stream.width} x {stream.height} pixels are more than {limit:,}")
    stream.codec_context.thread_count = 1  # the pipeline's workers take the other cores
    begin = stream.start_time or 0
    duration = stream.duration
    if duration is None and container.duration is not None:
        duration = container.duration / 1e6 / stream.time_base
    if not duration:
        raise ValueError("it does not say how long it is")
    frames = _shown(container, stream)
    frame = following = next(frames, None)
    if frame is None:
        raise ValueError("it has no frame")
    for moment in moments:
        wanted = begin + int(moment * duration)
        key = _key_frame(stream, wanted)
        if key is not None and following is not None and key > following.pts:
            container.seek(key, stream=stream)
            frames = _shown(container, stream)
            frame = following = next(frames, None)
        while following is not None and following.pts <= wanted:
            frame, following = following, next(frames, None)
        if frame is None or frame.pts < wanted - _MAY_LACK * duration:
            raise ValueError("frames are missing; it is truncated or damaged")
        yield _upright(frame)


def _shown(container: Any, stream: Any) -> Iterator[Any]:
    """The frames from here on. Damage within a clip costs the frames it is in."""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except ValueError:  # of which PyAV's InvalidDataError is one
            continue
        yield from (frame for frame in frames if frame.pts is not None)


def _key_frame(stream: Any, wanted: int) -> int | None:
    """Where decoding may begin to get to this time: in units of the stream; None if not known."""
    index = stream.index_entries
    if not len(index):
        return None
    # Entries have the times of decoding, which are earlier than those of showing.
    delay = max(0, (stream.start_time or 0) - index[0].timestamp)
    found = index.search_timestamp(wanted - delay, backward=True)
    return None if found < 0 else index[found].timestamp


def _upright(frame: Any) -> Image.Image:
    image = frame.to_image()
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
