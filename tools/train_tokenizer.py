"""Trains the tokenizer of the embedded data on its training scenes.

    python tools/train_tokenizer.py

The descriptions of held-out scenes are not read. The default sources are those that
configs/emoji.py trains on: each further script would cost tokens that these need. Two runs write
the same file; its SHA-256, which checkpoints record, is printed.
"""

import argparse
from pathlib import Path

from platojax.data.scenes import EMOJI_TOKENIZER, load_emoji
from platojax.data.tokenizer import Tokenizer, train_tokenizer

_SOURCES = ("cldr_en", "cldr_de", "cldr_fr", "cldr_es", "cldr_it", "cldr_pt", "emojilib")


def main() -> None:
    """Reads the arguments, trains, and prints the hash."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--sources", nargs="+", default=_SOURCES)
    parser.add_argument("--out", type=Path, default=EMOJI_TOKENIZER)
    args = parser.parse_args()
    texts = [
        phrase
        for scene in load_emoji("train")
        for text in scene.texts
        if text.source in args.sources
        for phrase in (text.name, *text.keywords)
    ]
    train_tokenizer(texts, args.out, vocab_size=args.vocab_size)
    tokenizer = Tokenizer(args.out)
    print(f"{args.out}: {tokenizer.vocab_size} tokens, SHA-256 {tokenizer.hash}")


if __name__ == "__main__":
    main()
