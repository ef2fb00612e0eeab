import collections
import hashlib
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data.corpus import sample_texts
from platojax.data.preparation import write_prepared
from platojax.data.raw.scene import RawScene
from platojax.data.scenes import EMOJI_TOKENIZER, Text
from platojax.data.tokenizer import Tokenizer, train_tokenizer

CORPUS = [f"the cat number {i} sat on mat {i % 7}" for i in range(400)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tiny.model"
    train_tokenizer(CORPUS, path, vocab_size=300)
    return path


def test_training_twice_gives_the_same_file(trained, tmp_path):
    train_tokenizer(CORPUS, tmp_path / "again.model", vocab_size=300)
    assert trained.read_bytes() == (tmp_path / "again.model").read_bytes()


def test_special_tokens_are_distinct_and_the_hash_is_the_files(trained):
    tokenizer = Tokenizer(trained)
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id}
    assert len(special) == 4
    assert tokenizer.vocab_size == 300
    assert tokenizer.hash == hashlib.sha256(trained.read_bytes()).hexdigest()


@pytest.mark.parametrize("text", ["the cat sat", "Ωmega 猫 🐈 never seen", "قطة"])
def test_any_text_comes_back(trained, text):
    tokenizer = Tokenizer(trained)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("count", [0, 1, 500])
def test_texts_have_the_same_tokens_together_as_alone(trained, count):
    tokenizer = Tokenizer(trained)
    texts = ([*CORPUS, "", "Ωmega 猫"] * 2)[-count:] if count else []
    found = tokenizer.encode_all(texts)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize("word", ["face", "animal", "Gesicht", "Tier"])
def test_the_packaged_tokenizer_knows_common_words_of_the_packaged_texts(word):
    assert len(Tokenizer(EMOJI_TOKENIZER).encode(word)) == 1


def test_a_missing_file_names_the_tool(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.model does not exist.*prepare tokenizer"):
        Tokenizer(tmp_path / "nothing.model")


def test_a_model_without_the_mask_is_refused(tmp_path):
    path = tmp_path / "plain.model"
    with path.open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=model,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    with pytest.raises(ValueError, match=r"lacks the special tokens \['pad', '<mask>'\]"):
        Tokenizer(path)


def test_other_models_differ_and_unknown_ones_are_refused(trained, tmp_path):
    train_tokenizer(CORPUS, tmp_path / "bpe.model", vocab_size=300, model_type="bpe")
    tokenizer = Tokenizer(tmp_path / "bpe.model")
    assert tokenizer.hash != Tokenizer(trained).hash
    assert tokenizer.decode(tokenizer.encode("Ωmega 猫 🐈 never seen")) == "Ωmega 猫 🐈 never seen"
    with pytest.raises(ValueError, match="model must be 'unigram' or 'bpe'; got 'word'"):
        train_tokenizer(CORPUS, tmp_path / "x.model", vocab_size=300, model_type="word")


def test_too_few_texts_for_the_vocabulary_leave_no_file(tmp_path):
    with pytest.raises(
        ValueError, match=r"vocab_size 9000 .*: vocab_size must be at most \d{3} for them"
    ):
        train_tokenizer(CORPUS, tmp_path / "x.model", vocab_size=9000)
    assert not list(tmp_path.iterdir())


# ---- platojax prepare tokenizer ------------------------------------------------------------


def prepare(*arguments):
    result = CliRunner().invoke(app, ["prepare", "tokenizer", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_the_embedded_tokenizer_is_made_again_byte_by_byte(tmp_path):
    languages = [f"cldr_{code}" for code in ("en", "de", "fr", "es", "it", "pt")]
    sources = [part for name in (*languages, "emojilib") for part in ("--source", name)]
    out = tmp_path / "again.model"
    code, output = prepare("emoji", *sources, "--vocab-size", 4000, "--out", out)
    assert code == 0, output
    assert f"4000 tokens, SHA-256 {Tokenizer(EMOJI_TOKENIZER).hash}" in output
    assert out.read_bytes() == EMOJI_TOKENIZER.read_bytes()
    made_of = json.loads((tmp_path / "again.model.json").read_text())
    assert made_of["hash"] == Tokenizer(out).hash


def sources_of_texts(folder):
    """The same 200 texts in each format, and two that nobody can use."""
    texts = [f"the cat number {i} sat on the mat" for i in range(200)]
    (folder / "a.txt").write_bytes("\n".join(texts[:90]).encode() + b"\n \n")
    (folder / "b.txt").write_bytes("\n".join(texts[90:]).encode() + b"\n\xff\xfe\n")
    table = pa.table({"caption": [*texts[:50], None], "url": ["u"] * 51})
    pq.write_table(table, folder / "a.parquet", row_group_size=10)
    table = pa.table({"caption": [*texts[50:], ""], "url": ["u"] * 151})
    pq.write_table(table, folder / "b.parquet", row_group_size=10)
    write_prepared(
        (
            RawScene(str(i), "train", tuple(Text("en", "en", text) for text in texts[i : i + 5]))
            for i in range(0, 200, 5)
        ),
        folder / "prepared",
        name="cats",
        source={},
        settings={},
    )
    return texts, {
        "text": (str(folder / "*.txt"), ()),
        "parquet": (str(folder / "*.parquet"), ("caption",)),
        "prepared": (str(folder / "prepared"), ()),
    }


@pytest.mark.parametrize("kind", ["text", "parquet", "prepared"])
def test_a_sample_is_bounded_random_and_the_seeds(tmp_path, kind):
    texts, specs = sources_of_texts(tmp_path)
    spec, sources = specs[kind]
    assert sorted(sample_texts(spec, 1000, sources=sources)) == sorted(texts)
    some = sample_texts(spec, 50, sources=sources)
    assert len(set(some)) == 50
    assert set(some) < set(texts)
    assert some == sample_texts(spec, 50, sources=sources)
    assert some != sample_texts(spec, 50, sources=sources, seed=1)
    drawn = collections.Counter(
        text for seed in range(80) for text in sample_texts(spec, 50, sources=sources, seed=seed)
    )
    # Each of 200 texts is drawn with probability 1/4: 20 times of 80, deviation 3.9.
    assert min(drawn[text] for text in texts) >= 3
    assert max(drawn.values()) <= 40
    assert np.mean([drawn[text] for text in texts[:100]]) == pytest.approx(20, abs=2.5)


def test_the_command_trains_on_prepared_scenes_twice_alike(tmp_path):
    _, specs = sources_of_texts(tmp_path)
    models = []
    for name in ("a.model", "b.model"):
        code, output = prepare(
            *(specs["prepared"][0], "--vocab-size", 290, "--model", "bpe", "--sample", 150),
            *("--out", tmp_path / name),
        )
        assert code == 0, output
        assert "150 texts of" in output
        models.append((tmp_path / name).read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere/*.txt"], "matches no file, and is no prepared data"),
        (["emoji", "--source", "klingon"], "emoji has no usable texts of the sources ('klingon',)"),
        (["emoji", "--sample", "0"], "sample must be at least 1; got 0"),
        (["emoji", "--vocab-size", "300"], "vocab_size must be at least"),
        (["/nowhere", "--vocab-size", "0"], "vocab_size must be at least 262; got 0"),
        (["/nowhere", "--vocab-size", "-5"], "vocab_size must be at least 262; got -5"),
        (["/nowhere", "--model", "word"], "model must be 'unigram' or 'bpe'; got 'word'"),
    ],
)
def test_impossible_tokenizers_are_refused_in_one_line(tmp_path, arguments, message):
    code, output = prepare(*arguments, "--out", tmp_path / "x.model")
    assert code == 2
    assert message in output
    assert not list(tmp_path.iterdir())


def test_texts_of_a_source_that_few_scenes_have_are_all_found(tmp_path):
    write_prepared(
        (
            RawScene(
                str(i),
                "train",
                (Text("en", "en", f"a {i}"), Text("de", "de", f"ein {i}"))[: 1 + (i % 10 == 0)],
            )
            for i in range(600)
        ),
        tmp_path / "out",
        name="cats",
        source={},
        settings={},
    )
    rare = sample_texts(str(tmp_path / "out"), 50, sources=["de"])
    assert len(rare) == len(set(rare)) == 50
    every = sample_texts(str(tmp_path / "out"), 300, sources=["de"])
    assert sorted(every) == sorted(f"ein {i}" for i in range(0, 600, 10))


def test_a_kill_while_the_model_is_written_leaves_no_half_one(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(CORPUS, tmp_path / "a.model", vocab_size=300)
    assert not (tmp_path / "a.model").exists()


def test_tokens_are_no_texts(tmp_path):
    write_prepared(
        [RawScene("1", "train", (Text("en", "en", "a cat"),))],
        tmp_path / "ids",
        name="cats",
        source={},
        settings={},
        tokenizer=Tokenizer(EMOJI_TOKENIZER),
    )
    with pytest.raises(ValueError, match="tokenised when it was prepared: its words are gone"):
        sample_texts(str(tmp_path / "ids"), 10)
