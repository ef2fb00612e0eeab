"""What becomes of bad pictures and clips: kept as they should look, or counted by the reason."""

import gzip
import io
import os
import pathlib
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from platojax.data import rejects
from platojax.data.images import image_size
from platojax.data.preparation import write_prepared
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw import bounded
from platojax.data.raw.bounded import read_whole
from platojax.data.raw.media import in_threads, usable_clip, usable_picture
from platojax.data.raw.scene import Encoded, RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import Picture
from tests.data.pictures import encode, pixels, turned

PHOTO = pixels(60, 40)
JPEG = encode(PHOTO, quality=95)


def gif():
    frames = [Image.fromarray(pixels(60, 40, seed)) for seed in (0, 1, 2)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


def bomb(side):
    """A PNG of some bytes that says it is huge."""
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def sixteen_bits():
    grey = np.asarray(Image.fromarray(PHOTO).convert("L")).astype(np.uint16) * 257
    return encode(Image.fromarray(grey), "PNG")


GREY = np.asarray(Image.fromarray(PHOTO).convert("L").convert("RGB"))
CLEAR = np.dstack([PHOTO, np.where(np.arange(60) < 30, 0, 255)[None].repeat(40, 0)])
KEPT = {
    "JPEG": (JPEG, PHOTO),
    "CMYK JPEG": (encode(Image.fromarray(PHOTO).convert("CMYK"), quality=95), PHOTO),
    "grey JPEG": (encode(Image.fromarray(PHOTO).convert("L"), quality=95), GREY),
    "16-bit PNG": (sixteen_bits(), GREY),
    "palette PNG": (encode(Image.fromarray(PHOTO).quantize(256), "PNG"), PHOTO),
    "clear PNG": (
        encode(Image.fromarray(CLEAR.astype(np.uint8), "RGBA"), "PNG"),
        np.where(np.arange(60)[None, :, None] < 30, 255, PHOTO),
    ),
    "animated GIF": (gif(), PHOTO),
    "JPEG turned by a quarter": (turned(PHOTO, 6), np.rot90(PHOTO, -1)),
    "JPEG turned by a half": (turned(PHOTO, 3), np.rot90(PHOTO, 2)),
}
REFUSED = {
    "truncated JPEG": (JPEG[: len(JPEG) // 2], rejects.BAD_PICTURE),
    "JPEG without its end": (JPEG[:-40], rejects.BAD_PICTURE),
    "truncated PNG": (encode(PHOTO, "PNG")[:-40], rejects.BAD_PICTURE),
    "zero bytes": (b"", rejects.EMPTY_FILE),
    "a page about an error": (b"<html>404</html>", rejects.BAD_PICTURE),
    "floating-point TIFF": (
        encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
        rejects.BAD_PICTURE,
    ),
    "PostScript": (encode(PHOTO, "EPS"), rejects.BAD_PICTURE),
    "a format of few": (encode(PHOTO, "PCX"), rejects.BAD_PICTURE),
    "decompression bomb": (bomb(10_000), rejects.LARGE_PICTURE),
    "larger decompression bomb": (bomb(30_000), rejects.LARGE_PICTURE),
    "nothing": (None, rejects.MISSING_FILE),
}


@pytest.mark.parametrize("name", KEPT)
def test_unusual_pictures_are_kept_and_look_as_they_should(name):
    content, expected = KEPT[name]
    picture = usable_picture(content, "photo", name)
    assert isinstance(picture, Encoded)
    assert picture.content == content
    seen = Picture("photo", picture.content).image
    assert image_size(content) == expected.shape[1::-1]
    assert seen.shape == expected.shape
    assert np.mean(abs(seen.astype(float) - expected)) < 12  # of 255: lossy, or 256 colours


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_bad_pictures_are_rejected_by_their_reason(name):
    content, reason = REFUSED[name]
    assert usable_picture(content, "photo", name) == Rejected(reason, name)


@pytest.mark.parametrize("form", ["JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_all_formats_of_photographs_are_read(form):
    assert usable_picture(encode(PHOTO, form), "photo", "here").content


def test_files_that_are_missing_or_cannot_be_read_are_missing(tmp_path):
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "none.jpg", tmp_path / "lost", tmp_path):
        assert usable_picture(path, "photo", "here") == Rejected(rejects.MISSING_FILE, "here")
    (tmp_path / "a.jpg").write_bytes(JPEG)
    assert usable_picture(tmp_path / "a.jpg", "photo", "here").content == JPEG


def test_pipes_and_devices_are_no_pictures(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zeros.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zeros.jpg"):
        found = usable_picture(tmp_path / name, "photo", "here")
        assert found == Rejected(rejects.MISSING_FILE, "here")


def test_files_that_are_too_large_are_rejected_and_not_read_whole(tmp_path):
    path = tmp_path / "a.jpg"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no disk
    assert usable_picture(path, "photo", "here") == Rejected(rejects.LARGE_FILE, "here")


def test_compressed_annotations_are_not_unpacked_without_end(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 5000 + b"]"))
    assert read_whole(path, limit=5002) == b"[" + b" " * 5000 + b"]"
    with pytest.raises(ValueError, match=r"a.json.gz holds more than 5,001 bytes"):
        read_whole(path, limit=5001)
    with pytest.raises(FileNotFoundError, match="/dev/zero"):
        read_whole(pathlib.Path("/dev/zero"))


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_lines_are_those_of_the_file_but_for_what_is_too_long(monkeypatch, size):
    monkeypatch.setattr(bounded, "_CHUNK", size)
    content = b"one\n\n" + b"x" * 11 + b"\ntwo\r\n" + b"y" * 10 + b"\nthree"
    expected = [b"one", b"", None, b"two\r", b"y" * 10, b"three"]
    assert list(bounded.read_lines(io.BytesIO(content), limit=10)) == expected
    assert list(bounded.read_lines(io.BytesIO(content + b"\n"), limit=10)) == expected
    assert list(bounded.read_lines(io.BytesIO(b"z" * 30), limit=10)) == [None]


def test_bad_clips_are_rejected_by_their_reason():
    pytest.importorskip("av")
    from tests.data.clips import brightening, write_clip

    clip = write_clip(brightening(20))
    early = write_clip(brightening(20), movflags="faststart")
    assert usable_clip(clip, "web", "here").content == clip
    for content, reason in (
        (clip[: len(clip) // 2], rejects.BAD_CLIP),
        (early[: len(early) // 2], rejects.BAD_CLIP),
        (JPEG[:100], rejects.BAD_CLIP),
        (b"", rejects.EMPTY_FILE),
        (None, rejects.MISSING_FILE),
    ):
        assert usable_clip(content, "web", "here") == Rejected(reason, "here")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_pictures_are_counted_and_skipped_up_to_the_limit(tmp_path):
    table = [*[content for content, _ in KEPT.values()], *[bad for bad, _ in REFUSED.values()]]

    def rows():
        for number, content in enumerate(table):
            found = usable_picture(content, "photo", f"picture {number}")
            bad = isinstance(found, Rejected)
            yield found if bad else RawScene(str(number), "train", pictures=(found,))

    fields = dict(name="table", source={}, settings={})
    with pytest.raises(ValueError, match=r"11 of 20 of what was read cannot be used.*unreadable"):
        write_prepared(rows(), tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()
    write_prepared(rows(), tmp_path / "out", max_bad_fraction=0.6, **fields)
    info = read_info(tmp_path / "out")
    assert info.rejected == {
        rejects.BAD_PICTURE: 7,
        rejects.EMPTY_FILE: 1,
        rejects.LARGE_PICTURE: 2,
        rejects.MISSING_FILE: 1,
    }
    assert info.first_rejected[rejects.EMPTY_FILE] == "picture 12"
    assert len(PreparedScenes(tmp_path / "out", "train")) == len(KEPT)


def test_threads_keep_the_order_and_read_only_a_little_ahead():
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = in_threads(lambda number: number * 2, items())
    assert [next(results) for _ in range(10)] == list(range(0, 20, 2))
    assert len(taken) < 100
    assert list(results) == list(range(20, 2000, 2))


def test_an_error_in_a_thread_is_raised():
    def fail(number):
        raise OSError(f"disk {number}")

    with pytest.raises(OSError, match="disk 0"):
        list(in_threads(fail, range(3)))
