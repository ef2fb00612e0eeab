"""What an experiment is trained on, by the name in its config."""

import dataclasses
from collections.abc import Sequence

from ml_collections import ConfigDict

from platojax.data.recap import RecapScenes
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, SceneStream, load_emoji
from platojax.data.tokenizer import Tokenizer

_EMOJI = "emoji"


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Scenes and the tokenizer of their texts.

    Attributes:
      train: the training scenes: random access to all, or a stream.
      heldout: scenes that are never trained on; may be empty.
      tokenizer: of the texts.
      sample: training scenes that show what all are like: all of a sequence, one of a stream.
    """

    train: Sequence[Scene] | SceneStream
    heldout: Sequence[Scene]
    tokenizer: Tokenizer
    sample: Sequence[Scene]


def load_source(data: ConfigDict) -> Source:
    """Opens the data of an experiment, and finds what is wrong with it.

    Args:
      data: `config.data`: `name` "emoji"; or "recap" with `files` (a pattern), `tokenizer`,
        `vocabulary` and the other fields of `recap.RecapScenes`, see configs/recap_940m.py.

    Raises:
      ValueError: a field is impossible, or a file cannot be used; the message names it.
      FileNotFoundError: a file is missing.
    """
    tokenizer = load_tokenizer(data)
    if data.name == _EMOJI:
        scenes = load_emoji("train")
        return Source(scenes, load_emoji("heldout"), tokenizer, scenes)
    fields = {k: v for k, v in data.items() if k not in ("name", "tokenizer", "vocabulary")}
    stream = RecapScenes.find(fields.pop("files"), **fields)
    return Source(stream, (), tokenizer, [stream.first()])


def load_tokenizer(data: ConfigDict) -> Tokenizer:
    """The tokenizer of an experiment's texts; no other file is read.

    Args:
      data: see `load_source`.

    Raises:
      ValueError: the name is unknown, no tokenizer is named, or it does not fit `vocabulary`.
      FileNotFoundError: the tokenizer's file is missing.
    """
    if data.name == _EMOJI:
        return Tokenizer(EMOJI_TOKENIZER)
    if data.name != "recap":
        raise ValueError(f"data.name must be 'emoji' or 'recap'; got {data.name!r}.")
    if not data.tokenizer:
        raise ValueError(
            "data.tokenizer names no file; train one with tools/train_tokenizer.py --files "
            f"{data.files or 'PATTERN'!r} --vocab-size {data.vocabulary.vocab_size} --out FILE."
        )
    # A name rather than a path: the same in the config of every machine.
    tokenizer = Tokenizer(EMOJI_TOKENIZER if data.tokenizer == _EMOJI else data.tokenizer)
    for field, wanted in data.vocabulary.items():
        if getattr(tokenizer, field) != wanted:
            raise ValueError(
                f"tokenizer {data.tokenizer} has {field} {getattr(tokenizer, field)}, but "
                f"data.vocabulary.{field} is {wanted}; set it, or give another data.tokenizer."
            )
    return tokenizer
