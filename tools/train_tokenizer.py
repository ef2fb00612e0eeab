"""Trains the tokenizer of the embedded data, or one for files of captions.

    python tools/train_tokenizer.py
    python tools/train_tokenizer.py --files 'DIR/*.parquet' --vocab-size 32000 --out recap.model

The first reads the descriptions of the training scenes, never those of held-out ones. The default
sources are those that configs/emoji.py trains on: each further script would cost tokens that these
need. The second reads a random sample of bounded size: the trainer holds its texts in memory (some
7 GB for a million) and runs on one core. Two runs write the same file; its SHA-256, which
checkpoints record, is printed.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from platojax.data.recap import RecapScenes
from platojax.data.scenes import EMOJI_TOKENIZER, load_emoji
from platojax.data.tokenizer import Tokenizer, train_tokenizer

_SOURCES = ("cldr_en", "cldr_de", "cldr_fr", "cldr_es", "cldr_it", "cldr_pt", "emojilib")
_OPEN_FILES = 64  # the sample comes from so many files, drawn at random


def emoji_texts(sources: list[str]) -> list[str]:
    """Names and keywords of the training scenes."""
    return [
        phrase
        for scene in load_emoji("train")
        for text in scene.texts
        if text.source in sources
        for phrase in (text.name, *text.keywords)
    ]


def sample_captions(files: str, count: int) -> Iterator[str]:
    """About `count` texts of random rows: both of each row, all rows where there are fewer."""
    scenes = RecapScenes.find(files, open_files=_OPEN_FILES)
    rows = min(count // 2, sum(scenes.num_rows))
    blocks = iter(scenes.blocks(1, seed=0))
    for _ in range(rows):
        [(key, scene)] = next(blocks)
        if key[0] > 0:  # all were read once, but for those that cannot be used
            break
        yield from (text.name for text in scene.texts)
    blocks.close()


def main() -> None:
    """Reads the arguments, trains, and prints the hash."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--sources", nargs="+", default=_SOURCES)
    parser.add_argument("--files", help="a pattern of Parquet files, instead of the embedded data")
    parser.add_argument("--sample", type=int, default=1_000_000, help="texts at most, of --files")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.files and not args.out:
        parser.error("--files needs --out, the model file to write")
    out = args.out or EMOJI_TOKENIZER
    texts = sample_captions(args.files, args.sample) if args.files else emoji_texts(args.sources)
    train_tokenizer(texts, out, vocab_size=args.vocab_size)
    tokenizer = Tokenizer(out)
    print(f"{out}: {tokenizer.vocab_size} tokens, SHA-256 {tokenizer.hash}")


if __name__ == "__main__":
    main()
