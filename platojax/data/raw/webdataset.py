"""Shards of webdataset, as img2dataset writes them: tar files of images and their captions.

The members of a sample have one name and differ in what comes after its first dot: `000012.jpg`,
`000012.txt`, `000012.json`. They follow each other. The caption is the `txt` or, without one, the
`caption` in the `json`. An image has one caption, see `url_text`.
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO

from platojax.data.captions import usable_texts
from platojax.data.paths import file_name, open_bytes
from platojax.data.raw.media import MAX_PICTURE_BYTES, in_threads, usable_picture
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.raw.url_text import SOURCE
from platojax.data.rejects import LARGE_FILE, Rejected
from platojax.data.scenes import Text

IMAGE_KINDS = ("jpg", "jpeg", "png", "webp")
PICTURE_SOURCE = "web"
SPARSE = "sparse member of a tar file"
_TEXT_KINDS = ("txt", "json")
_MAX_TEXT_BYTES = 1 << 22  # of a txt or json
_MAX_HEADER_BYTES = 1 << 20  # of a member, beside its name
_HEADER_TYPES = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


def read(files: Sequence[str], split: str = "train", *, pictures: bool = False) -> RawRows:
    """Yields a scene a sample, known by its name; its text's source is "caption".

    Args:
      files: paths or URLs of `.tar` or `.tar.gz`.
      split: that they are.
      pictures: whether to take the images too, those that can be decoded, as they are, from the
        source "web".

    Raises:
      ValueError: a file is no tar file, or is cut short.
      FileNotFoundError: a file is missing.
    """
    wanted = (*_TEXT_KINDS, *(IMAGE_KINDS if pictures else ()))
    for path in files:

        def rows_of(sample: _Sample, path: str = path) -> list[RawScene | Rejected]:
            name, members = sample
            where = f"{file_name(path)} sample {name}"
            rejected = [Rejected(one, where) for one in members.values() if isinstance(one, str)]
            whole = {kind: one for kind, one in members.items() if isinstance(one, bytes)}
            texts = list[Text]()
            if not any(isinstance(members.get(kind), str) for kind in _TEXT_KINDS):
                caption = whole.get("txt") or _caption(whole.get("json", b"{}"))
                texts, unusable = usable_texts([caption], SOURCE, "", where)
                rejected += unusable
            found = [
                usable_picture(whole[kind], PICTURE_SOURCE, where)
                for kind in IMAGE_KINDS
                if kind in whole
            ]
            rejected += [one for one in found if isinstance(one, Rejected)]
            images = tuple(one for one in found if not isinstance(one, Rejected))
            return [*rejected, RawScene(name, split, tuple(texts), images)]

        for rows in in_threads(rows_of, _samples(path, wanted)):
            yield from rows


# The name, and the members by what comes after it, or the reasons why they are not read.
_Sample = tuple[str, dict[str, bytes | str]]


def _samples(path: str, wanted: Sequence[str]) -> Iterator[_Sample]:
    name, members = "", dict[str, bytes | str]()
    try:
        with open_bytes(path) as file, _open(file) as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, slash, base = member.name.rpartition("/")
                stem, _, kind = base.partition(".")
                if folder + slash + stem != name:
                    if members:
                        yield name, members
                    name, members = folder + slash + stem, {}
                if (kind := kind.lower()) in wanted:
                    members[kind] = _read(tar, member, kind)
                else:
                    members.setdefault("", b"")  # the sample is there, whatever it has
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a whole tar file ({error}); fetch it again.") from error
    if members:
        yield name, members


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str) -> bytes | str:
    """The content of a member, or the reason why it is not read."""
    if member.issparse():  # a few bytes can stand for any number
        return SPARSE
    if member.size > (_MAX_TEXT_BYTES if kind in _TEXT_KINDS else MAX_PICTURE_BYTES):
        return LARGE_FILE
    content = tar.extractfile(member)
    assert content is not None
    return content.read()


class _Member(tarfile.TarInfo):
    """A member of a file that must be whole: `tarfile` takes what it cannot read for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADER_TYPES and member.size > _MAX_HEADER_BYTES:
            raise tarfile.HeaderError(f"a header of {member.size:,} bytes, which is no proper")
        return member

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the zeros at the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error or 'no'} header") from error


def _open(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r|", tarinfo=_Member)


def _caption(content: bytes) -> str | None:
    try:
        caption = json.loads(content)["caption"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return caption if isinstance(caption, str) else None
