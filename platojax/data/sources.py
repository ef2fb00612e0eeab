"""What an experiment is trained on, by the name in its config."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from platojax.data.mixture import MixedStream, Mixture, Scenes, check_weights
from platojax.data.prepared import PreparedScenes, read_info, sample_scenes
from platojax.data.recap import RecapScenes
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, SceneStream, load_emoji
from platojax.data.tokenizer import Tokenizer

_EMOJI, _RECAP, _PREPARED, _MIXTURE = "emoji", "recap", "prepared", "mixture"
_NAMES = (_EMOJI, _RECAP, _PREPARED, _MIXTURE)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Scenes and the tokenizer of their texts.

    Attributes:
      train: the training scenes: random access to all, a mixture of such, or a stream.
      heldout: of the emoji, scenes that are never trained on; else empty.
      tokenizer: of the texts.
      sample: training scenes that show what all are like: all that are in memory, one of each kind
        of prepared ones, one of a stream; of a mixture, those of its parts.
    """

    train: Scenes
    heldout: Sequence[Scene]
    tokenizer: Tokenizer
    sample: Sequence[Scene]


def load_source(data: ConfigDict) -> Source:
    """Opens the data of an experiment, and finds what is wrong with it.

    Args:
      data: `config.data`: `name` "emoji"; or "recap" with `files` (a pattern), `tokenizer`,
        `vocabulary` and the other fields of `recap.RecapScenes`, see configs/recap_940m.py; or
        "prepared" with `folder`, the split `train`, `tokenizer`,
        `vocabulary` and `max_bad_fraction`, see configs/multi30k.py; or "mixture" with `parts`, by
        name, each of which has the fields of one of these and a `weight`. What all have in common,
        such as `tokenizer` and `vocabulary`, stands beside `parts`.

    Raises:
      ValueError: a field is impossible, or a file cannot be used; the message names it.
      FileNotFoundError: a file is missing.
    """
    tokenizer = load_tokenizer(data)
    if data.name == _EMOJI:
        scenes = load_emoji("train")
        return Source(scenes, load_emoji("heldout"), tokenizer, scenes)
    if data.name == _PREPARED:
        return _prepared(data, tokenizer)
    if data.name == _MIXTURE:
        return _mixture(data, tokenizer)
    fields = {k: v for k, v in data.items() if k not in ("name", "tokenizer", "vocabulary")}
    if not fields.get("files"):
        raise ValueError("data.files names no files; give a pattern such as 'data/*.parquet'.")
    stream = RecapScenes.find(fields.pop("files"), **fields)
    return Source(stream, (), tokenizer, [stream.first()])


def _prepared(data: ConfigDict, tokenizer: Tokenizer) -> Source:
    if not data.folder:
        raise ValueError("data.folder names no folder; make one with `platojax prepare`.")
    folder = pathlib.Path(data.folder)
    known = read_info(folder).tokenizer
    if known and known["hash"] != tokenizer.hash:
        raise ValueError(
            f"the texts in data.folder {folder} are tokens of the tokenizer {known['hash'][:12]}, "
            f"but data.tokenizer {data.tokenizer} is {tokenizer.hash[:12]}; give theirs, or "
            "prepare the data again."
        )
    train = PreparedScenes(folder, data.train)
    return Source(train, (), tokenizer, sample_scenes(train))


def _mixture(data: ConfigDict, tokenizer: Tokenizer) -> Source:
    shared = {k: v for k, v in data.items() if k not in ("name", "parts")}
    parts: dict[str, Source] = {}
    weights: dict[str, float] = {}
    for name, part in data.parts.items():
        if part.get("name") == _MIXTURE:
            raise ValueError(f"data.parts.{name} is a mixture itself; name its parts here instead.")
        if part.get("name") == _PREPARED and "max_bad_fraction" in part:
            raise ValueError(
                f"data.parts.{name}.max_bad_fraction does not count; set data.max_bad_fraction, "
                "for all parts."
            )
        if "weight" not in part:
            raise ValueError(f"data.parts.{name} has no weight; 1 for all is equal shares.")
        fields = {**shared, **part}
        weights[name] = fields.pop("weight")
        try:
            parts[name] = load_source(ConfigDict(fields))
        except ValueError as error:
            raise ValueError(f"data.parts.{name}: {error}") from error
        if parts[name].tokenizer.hash != tokenizer.hash:
            raise ValueError(f"data.parts.{name} has another tokenizer than {data.tokenizer}.")
    check_weights(weights)
    streams = {n: one.train for n, one in parts.items() if isinstance(one.train, SceneStream)}
    others = {n: one.train for n, one in parts.items() if isinstance(one.train, Sequence)}
    if max(len(streams), len(others)) < len(parts):
        raise ValueError(
            f"data.parts must all be streams or all have random access; {[*streams]} are streams, "
            f"{[*others]} have random access. Prepare the streams' files (`platojax prepare`), and "
            "give the parts of a mixture instead of it."
        )
    mixed = MixedStream(streams, weights) if streams else Mixture(others, weights)
    return Source(
        mixed,
        [scene for part in parts.values() for scene in part.heldout],
        tokenizer,
        [scene for part in parts.values() for scene in part.sample],
    )


def load_vocabulary(data: ConfigDict) -> Any:
    """What building a step needs to know of the texts, see `arm.Vocabulary`.

    `data.vocabulary` where it says so, and then no file is read; else the tokenizer.

    Args:
      data: see `load_source`.

    Raises:
      ValueError, FileNotFoundError: see `load_tokenizer`.
    """
    return data.get("vocabulary") or load_tokenizer(data)


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
    if data.name not in _NAMES:
        names = ", ".join(map(repr, _NAMES))
        raise ValueError(f"data.name must be one of {names}; got {data.name!r}.")
    if not data.tokenizer:
        raise ValueError(
            "data.tokenizer names no file; train one with `platojax prepare tokenizer "
            f"{data.get('folder') or data.get('files') or 'DATA'} --vocab-size "
            f"{data.vocabulary.get('vocab_size', 8000)} --out FILE`."
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
