import hashlib

import pytest
import sentencepiece

from platojax.data.scenes import EMOJI_TOKENIZER
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


@pytest.mark.parametrize("word", ["face", "animal", "Gesicht", "Tier"])
def test_the_packaged_tokenizer_knows_common_words_of_the_packaged_texts(word):
    assert len(Tokenizer(EMOJI_TOKENIZER).encode(word)) == 1


def test_a_missing_file_names_the_tool(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.model does not exist.*train_tokenizer"):
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
