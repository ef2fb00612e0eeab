"""What feature extraction needs to know of a frozen encoder, whatever library runs it."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

Modality = Literal["text", "image"]


class FrozenEncoder(Protocol):
    """An encoder that is only evaluated.

    Attributes:
      name: of the encoder, as its authors spell it or as its folder is called.
      modality: what it observes: texts (`str`) or images (`PIL.Image.Image` in RGB).
      weights_hash: SHA-256 (hexadecimal) of its weights.
      layers: name of each layer, in the order of axis 1 of what `encode` returns.
      width: D.
      pooling: how tokens became one vector, in words.
      preprocessing: what `prepare` does, in words complete enough to tell two apart.
      dtype: number format of the computation, such as "float32".
      batch_size: the most observations that `encode` takes at a time.
      libraries: the packages that compute, as they are called on PyPI; their versions are kept.
    """

    # Properties, because an implementation may compute what nobody changes.
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def modality(self) -> Modality: ...  # noqa: D102
    @property
    def weights_hash(self) -> str: ...  # noqa: D102
    @property
    def layers(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def pooling(self) -> str: ...  # noqa: D102
    @property
    def preprocessing(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def libraries(self) -> tuple[str, ...]: ...  # noqa: D102

    def prepare(self, observation: Any) -> np.ndarray:
        """Turns one text or image into what `encode` takes; on the host, in several threads.

        A text becomes `[T]` int32 token ids, unpadded; an image becomes an array of one shape.
        """
        ...

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Encodes 1 to `batch_size` prepared observations: `[B, L, D]` float32.

        Token sequences may have several lengths; padding is the encoder's own business, and must
        not change the result.
        """
        ...
