"""Where the pictures of a data set lie."""

import os
import pathlib

from platojax.data.images import IMAGE_SUFFIXES
from platojax.data.raw.media import usable_picture
from platojax.data.raw.scene import Encoded
from platojax.data.rejects import SEVERAL_FILES, Rejected


class Pictures:
    """The image files below a folder, by their names."""

    def __init__(self, folder: pathlib.Path | None, source: str) -> None:
        """Looks for them.

        Args:
          folder: of the files; None where scenes are to have no pictures.
          source: of the pictures.

        Raises:
          FileNotFoundError: there is no such folder.
          ValueError: it holds no image.
        """
        self._source, self._folder = source, folder
        self._paths: dict[str, pathlib.Path] = {}
        self._several: set[str] = set()  # names of which one means any of them
        if folder is None:
            return
        if not folder.is_dir():
            raise FileNotFoundError(f"--images {folder} is no folder.")
        for parent, _, names in os.walk(folder, followlinks=True):
            for name in names:
                if name.lower().endswith(IMAGE_SUFFIXES):
                    if name in self._paths:
                        self._several.add(name)
                    self._paths[name] = pathlib.Path(parent, name)
        if not self._paths:
            raise ValueError(f"--images {folder} holds no image; unpack the images there.")

    def read(self, name: str) -> tuple[tuple[Encoded, ...], list[Rejected]]:
        """The picture in the file of this name, or why there is none; nothing without a folder."""
        if self._folder is None:
            return (), []
        if name in self._several:
            return (), [Rejected(SEVERAL_FILES, f"{name} in {self._folder}")]
        found = usable_picture(self._paths.get(name), self._source, f"{name} in {self._folder}")
        return ((), [found]) if isinstance(found, Rejected) else ((found,), [])
