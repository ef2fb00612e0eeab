"""`platojax prepare tokenizer`: a sentencepiece model of a sample of texts."""

import pathlib
from collections.abc import Sequence

from rich.console import Console

from platojax.data.corpus import sample_texts
from platojax.data.tokenizer import Tokenizer, check_settings, train_tokenizer
from platojax.files import check_writable, to_json, write_whole
from platojax.hashing import hash_items


def run(
    data: str,
    out: pathlib.Path,
    *,
    vocab_size: int,
    model: str,
    sample: int,
    sources: Sequence[str],
    split: str,
    seed: int,
) -> None:
    """Trains a tokenizer, and writes beside it, as `OUT.json`, what it was trained on.

    Args:
      data: see `corpus.sample_texts`, as `sample`, `sources`, `split` and `seed`.
      out: the model file.
      vocab_size: number of tokens.
      model: "unigram" or "bpe".
      sample: texts at most; the trainer holds them in memory.
      sources: of the texts; all where empty.
      split: of prepared data.
      seed: of the sample.

    Raises:
      ValueError, OSError: as `sample_texts` and `train_tokenizer`, or `out` cannot be written.
    """
    console = Console()
    check_settings(vocab_size, model)  # before the texts are read
    check_writable(out, [data])
    texts = sample_texts(data, sample, sources=sources, split=split, seed=seed)
    console.print(f"{len(texts):,} texts of {data}", markup=False)
    train_tokenizer(texts, out, vocab_size=vocab_size, model_type=model)
    tokenizer = Tokenizer(out)
    made_of = {
        "hash": tokenizer.hash,
        "vocab_size": vocab_size,
        "model": model,
        "data": data,
        "sources": list(sources),
        "split": split,
        "seed": seed,
        "texts": len(texts),
        "texts_hash": hash_items(texts),
    }
    write_whole(out.with_name(out.name + ".json"), to_json(made_of))
    console.print(
        f"{out}: {vocab_size} tokens, SHA-256 {tokenizer.hash}", markup=False, soft_wrap=True
    )
