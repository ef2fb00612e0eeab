import io

import numpy as np
import pytest
from ml_collections import ConfigDict

from platojax.data.scenes import Clip, Scene
from platojax.data.video import read_frames
from platojax.data.video_views import TwoSegments
from platojax.data.views import make_views
from tests.shared import real

av = pytest.importorskip("av")

from tests.data.clips import brightening, write_clip  # noqa: E402

PLAIN = dict(jitter=(0.0, 0.0, 0.0, 0.0))


def numbers(frames):
    """Which frames of `brightening` these are."""
    return [round((np.asarray(frame).mean() - 20) / 5) for frame in frames]


# ---- Decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi", "mpegts"])
@pytest.mark.parametrize("keys", [3, 100])
def test_frames_are_those_of_their_moments(form, keys):
    clip = write_clip(brightening(40), form=form, keys=keys)
    moments = [0.0, 0.001, 0.26, 0.51, 0.52, 0.99]
    assert numbers(read_frames(clip, moments)) == [0, 0, 10, 20, 20, 39]
    for moment in (0.1, 0.6, 0.97):
        assert numbers(read_frames(clip, [moment])) == [int(moment * 40)]


@pytest.mark.parametrize("name", ["bikes", "carphone_distorted"])
def test_real_frames_are_those_of_decoding_everything(name):
    content = real(f"video/{name}.mp4").read_bytes()
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        duration = stream.duration
        frames = [(frame.pts, frame.to_image()) for frame in container.decode(stream)]
    moments = np.sort(np.random.default_rng(0).random(6))
    for moment, found in zip(moments, read_frames(content, moments), strict=True):
        wanted = [image for pts, image in frames if pts <= moment * duration][-1]
        np.testing.assert_array_equal(found, wanted)


def test_a_camera_held_upright_gives_upright_frames():
    left_is_light = np.zeros((48, 64, 3), np.uint8)
    left_is_light[:, :32] = 200
    [frame] = read_frames(write_clip([left_is_light] * 5, rotation=90), [0.5])
    assert frame.size == (48, 64)
    top, bottom = np.asarray(frame)[:32].mean(), np.asarray(frame)[32:].mean()
    assert abs(top - bottom) > 150
    [frame] = read_frames(write_clip([left_is_light] * 5, rotation=180), [0.5])
    assert np.asarray(frame)[:, 32:].mean() > np.asarray(frame)[:, :32].mean() + 150


def truncated(form, share, **options):
    clip = write_clip(brightening(), form=form, **options)
    return clip[: int(len(clip) * share)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a video" * 100,
        truncated("mp4", 0.7),  # its index, at the end, is lost
        truncated("mp4", 0.7, movflags="faststart"),
        truncated("matroska", 0.6),
    ],
    ids=["empty", "text", "mp4", "mp4-faststart", "matroska"],
)
def test_what_is_no_whole_video_is_refused(content):
    with pytest.raises(ValueError, match=r"cannot be read as a video: .*; replace it"):
        read_frames(content, [0.1, 0.5, 0.95])


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi", "mpegts"])
def test_damaged_clips_give_frames_or_are_refused(form):
    rng = np.random.default_rng(0)
    whole = write_clip(brightening(10), form=form)
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for place in rng.integers(len(content), size=rng.integers(1, 20)):
            content[place] = rng.integers(256)
        try:
            assert len(read_frames(bytes(content), [0.1, 0.5, 0.9])) == 3
        except ValueError:
            refused += 1
    assert 0 < refused < 60


def test_a_clip_that_is_only_sound_and_one_of_huge_pictures_are_refused(monkeypatch):
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    with pytest.raises(ValueError, match="it has no picture"):
        read_frames(file.getvalue(), [0.0])
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 64 * 48 - 1)
    with pytest.raises(ValueError, match="64 x 48 pixels are more than"):
        read_frames(write_clip(brightening(3)), [0.0])


# ---- Views -------------------------------------------------------------------------------------


def segments(clip, seed, **fields):
    views = make_views(
        ConfigDict(dict(name="two_segments", **fields)), ConfigDict(dict(image_size=16)), None
    )
    return views(Scene("video7", clips=(Clip("msrvtt", clip),)), np.random.default_rng(seed))


def test_two_segments_do_not_overlap_and_are_sampled_all_along():
    clip = write_clip(brightening(40))
    earlier_first = []
    for seed in range(20):
        both = segments(clip, seed, frames=4, length=0.4, **PLAIN)
        assert both.shape == (2, 4, 16, 16, 3)
        assert both.dtype == np.uint8
        one, two = numbers(both[0]), numbers(both[1])
        earlier_first.append(one[0] < two[0])
        early, late = (one, two) if earlier_first[-1] else (two, one)
        assert early == sorted(early)
        assert late == sorted(late)
        assert early[-1] <= late[0]
        assert 7 <= early[-1] - early[0] <= 16  # three of four stretches of 4 frames, or all
    assert {True, False} == set(earlier_first)


def test_moments_are_drawn_from_each_stretch():
    policy = TwoSegments(size=16, frames=5, length=0.3)
    moments = np.array([policy.moments(np.random.default_rng(seed)) for seed in range(500)])
    assert moments.min() >= 0
    assert moments.max() < 1
    assert moments.min() < 0.02
    assert moments.max() > 0.98
    assert np.all(np.diff(moments.reshape(500, 10), axis=1) >= 0)
    length = moments[:, :, -1] - moments[:, :, 0]
    assert np.all((length > 0.3 * 3 / 5) & (length < 0.3))


def test_all_frames_of_a_segment_are_changed_alike():
    rng = np.random.default_rng(0)
    still = np.kron(rng.integers(0, 256, (3, 4, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    clip = write_clip([still] * 40)
    one, two = segments(clip, 0, min_scale=0.3, jitter=(0.4, 0.4, 0.4, 0.1)).astype(int)
    assert max(abs(one[0] - frame).mean() for frame in one) < 4
    assert abs(one[0] - two[0]).mean() > 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(frames=0), "views.frames must be at least 1; got 0"),
        (dict(length=0.6), r"views.length .* in \(0, .5\]; got 0.6"),
        (dict(jitter=(0.1,)), "views.jitter must be"),
    ],
)
def test_impossible_segments_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        segments(b"", 0, **fields)


def test_a_scene_without_clips_is_named():
    with pytest.raises(ValueError, match=r"scene video7 has 0 of the 1 clips of .*web"):
        segments(b"", 0, sources=("web",))
