"""The tokenizer: sentencepiece, with the special tokens that the text arms need."""

import hashlib
import io
import os
import pathlib
import re
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

from platojax.files import write_whole

MIN_VOCAB_SIZE = 262  # 256 bytes, 5 special tokens, and one that texts are made of
_MASK = "<mask>"
_MANY = 32  # texts; a call for several starts a thread, one for each text has its own overhead


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
                f"tokenizer {path} does not exist; train one with `platojax prepare tokenizer`."
            )
        model = path.read_bytes()
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{path} is no sentencepiece model; train one with `platojax prepare tokenizer`."
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
                "train one with `platojax prepare tokenizer`."
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return self._processor.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode` of each, but quicker for many: int32 arrays that are read-only."""
        if len(texts) < _MANY:
            return [self._processor.encode(text, return_type="numpy") for text in texts]
        return self._processor.encode(list(texts), return_type="numpy", num_threads=1)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens vanish, but for the mask."""
        return self._processor.decode([int(i) for i in ids])


def check_settings(vocab_size: int, model_type: str) -> None:
    """Raises ValueError where no texts could give such a tokenizer; see `train_tokenizer`."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at least {MIN_VOCAB_SIZE}; got {vocab_size}.")
    if model_type not in ("unigram", "bpe"):
        raise ValueError(f"model must be 'unigram' or 'bpe'; got {model_type!r}.")


def _explain(error: str) -> str:
    """What sentencepiece says, in terms of `vocab_size`."""
    if most := re.search(r"set it to a value <= (\d+)", error):
        return f"vocab_size must be at most {most[1]} for them; lower it, or give more texts."
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (
            f"vocab_size must be at least {least[1]} for them, which is that of their characters."
        )
    return error


def train_tokenizer(
    texts: Iterable[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int,
    model_type: str = "unigram",
) -> None:
    """Trains a model with byte fallback, and writes it to `path`.

    The same texts in the same order give the same file, byte by byte.

    Args:
      texts: the corpus, one text each; at most some millions, the trainer holds them in memory
        (some 7 GB for a million captions). It ignores texts of more than 4,192 bytes.
      path: of the model file.
      vocab_size: number of tokens, special ones and 256 bytes included.
      model_type: "unigram" or "bpe".

    Raises:
      ValueError: the texts are too few for so many tokens, their characters too many for so few,
        or the model type is unknown.
    """
    check_settings(vocab_size, model_type)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
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
    except RuntimeError as error:
        raise ValueError(
            f"no tokenizer with vocab_size {vocab_size} can be trained on these texts: "
            + _explain(str(error))
        ) from error
    write_whole(pathlib.Path(path), model.getvalue())
