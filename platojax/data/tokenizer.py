"""The tokenizer: sentencepiece, with the special tokens that the text arms need."""

import hashlib
import os
import pathlib
from collections.abc import Iterable

import sentencepiece

_MASK = "<mask>"


class Tokenizer:
    """A sentencepiece model.

    Attributes:
      vocab_size: number of tokens.
      pad_id: padding.
      bos_id: before a text.
      eos_id: after a text.
      mask_id: stands for a masked token.
      hash: SHA-256 of the model file. A checkpoint records it and refuses another tokenizer.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads a model file made by `train_tokenizer`.

        Raises:
          FileNotFoundError: if there is no such file.
          ValueError: if it is no such file, or lacks one of the special tokens.
        """
        path = pathlib.Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"tokenizer {path} does not exist; train one with tools/train_tokenizer.py."
            )
        model = path.read_bytes()
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{path} is no sentencepiece model; train one with tools/train_tokenizer.py."
            ) from error
        self.hash = hashlib.sha256(model).hexdigest()
        self.vocab_size = self._processor.vocab_size()
        self.pad_id = self._processor.pad_id()
        self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        self.mask_id = self._processor.piece_to_id(_MASK)
        special = {"pad": self.pad_id, "bos": self.bos_id, "eos": self.eos_id}
        missing = [name for name, token in special.items() if token < 0]
        if self.mask_id == self._processor.unk_id():
            missing.append(_MASK)
        if missing:
            raise ValueError(
                f"tokenizer {path} lacks the special tokens {missing}; "
                "train one with tools/train_tokenizer.py."
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens vanish, but for the mask."""
        return self._processor.decode([int(i) for i in ids])


def train_tokenizer(texts: Iterable[str], path: str | os.PathLike[str], *, vocab_size: int) -> None:
    """Trains a unigram model with byte fallback, and writes it to `path`.

    The same texts in the same order give the same file, byte by byte.

    Args:
      texts: the corpus, one text each; at most some millions, the trainer holds them in memory.
      path: of the model file.
      vocab_size: number of tokens, special ones and 256 bytes included.
    """
    with pathlib.Path(path).open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="unigram",
            byte_fallback=True,
            character_coverage=0.9995,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            user_defined_symbols=[_MASK],
            num_threads=1,  # more would make the result depend on the machine
            minloglevel=2,
        )
