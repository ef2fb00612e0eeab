"""Extraction with an encoder whose features are known: counts of letters, mean colours."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from platojax.data.items import Items
from platojax.evaluation import extraction
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import read_features

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass
class Letters:
    """Layer 0 counts letters; layer 1 is twice that."""

    name: str = "letters"
    modality: str = "text"
    weights_hash: str = "w"
    layers: tuple[str, ...] = ("once", "twice")
    width: int = 26
    pooling: str = "sum"
    preprocessing: str = "lower case"
    dtype: str = "float32"
    batch_size: int = 4
    libraries: tuple[str, ...] = ("pillow",)
    batches: list = dataclasses.field(default_factory=list)

    def prepare(self, observation: str) -> np.ndarray:
        ids = np.array([ord(c) - ord("a") for c in observation.lower() if c.isalpha()], np.int32)
        if not len(ids):
            raise ValueError("no letters in the text; leave it out")
        return ids

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        assert 1 <= len(batch) <= self.batch_size
        self.batches.append([len(ids) for ids in batch])
        counts = np.stack([np.bincount(ids, minlength=26) for ids in batch])
        return np.stack([counts, 2 * counts], axis=1).astype(np.float32)


@dataclasses.dataclass
class Colors(Letters):
    modality: str = "image"
    layers: tuple[str, ...] = ("mean",)
    width: int = 3

    def prepare(self, observation: Image.Image) -> np.ndarray:
        assert observation.mode == "RGB"
        return np.asarray(observation, np.float32)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([image.mean((0, 1)) for image in batch])[:, None]


def words(count):
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = tuple((letters[: 1 + i % 26], letters[i % 26] * 2)[: 1 + i % 2] for i in range(count))
    return Items("words", tuple(str(i) for i in range(count)), texts)


def expected(items):
    encoder = Letters()
    rows = [
        np.mean([encoder.encode([encoder.prepare(text)])[0] for text in texts], axis=0)
        for texts in items.texts
    ]
    return np.stack(rows)


def test_features_are_means_over_the_observations_whatever_the_batches(tmp_path):
    items = words(11)
    for batch_size in (1, 4, 64):
        encoder = Letters(batch_size=batch_size)
        assert extract(encoder, items, tmp_path / str(batch_size))
        features = read_features(tmp_path / str(batch_size))
        np.testing.assert_array_equal(features.features, expected(items))
    assert features.meta.layers == ("once", "twice")
    assert features.meta.preprocessing == "lower case"
    assert features.meta.dataset == "words (mean over up to 2 texts of an item)"
    assert {"platojax", "jax", "pillow"} <= features.meta.versions.keys()


def test_texts_of_like_length_share_a_batch(tmp_path):
    encoder = Letters()
    extract(encoder, words(26), tmp_path / "f")
    lengths = [length for batch in encoder.batches for length in batch]
    assert lengths == sorted(lengths)


def test_images_are_opened_in_order(tmp_path):
    colors = [(i, 0, 2 * i) for i in range(7)]
    for i, color in enumerate(colors):
        Image.new("RGB", (4, 4), color).save(tmp_path / f"{i}.png")
    images = tuple((tmp_path / f"{i}.png",) for i in range(7))
    extract(Colors(), Items("x", tuple("0123456"), None, images), tmp_path / "f")
    np.testing.assert_array_equal(read_features(tmp_path / "f").features[:, 0], colors)


def test_a_second_call_does_nothing_and_another_encoder_or_text_is_refused(tmp_path):
    items = words(5)
    assert extract(Letters(), items, tmp_path / "f")
    again = Letters()
    assert not extract(again, items, tmp_path / "f")
    assert again.batches == []
    with pytest.raises(FileExistsError, match=r"weights_hash is 'w', now 'v'"):
        extract(Letters(weights_hash="v"), items, tmp_path / "f")
    other = dataclasses.replace(items, texts=(("zz",), *items.texts[1:]))
    with pytest.raises(FileExistsError, match="content_hash is"):
        extract(Letters(), other, tmp_path / "f")


def test_an_observation_that_cannot_be_used_is_named_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "_SHARD_ITEMS", 4)
    items = words(10)
    broken = dataclasses.replace(items, texts=(*items.texts[:9], ("123",)))
    done = []
    with pytest.raises(ValueError, match="item 9: no letters in the text; leave it out"):
        extract(Letters(), broken, tmp_path / "f", on_progress=done.append)
    assert done == [0, 4, 8]
    assert not (tmp_path / "f").exists()

    class Fixed(Letters):
        def prepare(self, observation):
            return super().prepare(observation.replace("123", "z"))

    encoder = Fixed()
    extract(encoder, broken, tmp_path / "f", on_progress=done.append)
    assert done == [0, 4, 8, 8, 10]
    assert sum(len(batch) for batch in encoder.batches) == sum(len(t) for t in broken.texts[8:])


def test_features_that_are_not_finite_are_refused(tmp_path):
    class Broken(Letters):
        def encode(self, batch):
            return np.full_like(super().encode(batch), np.inf)

    with pytest.raises(ValueError, match=r"features is inf at item 0, layer 0"):
        extract(Broken(), words(3), tmp_path / "f")


def test_a_wrong_image_is_named(tmp_path):
    (tmp_path / "1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"item seven: .*1\.png cannot be read as an image"):
        extract(Colors(), Items("x", ("seven",), None, ((tmp_path / "1.png",),)), tmp_path / "f")


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_it_ends_with_the_same_features(tmp_path):
    program = """
import sys, time
from platojax.evaluation import extraction
from tests.evaluation.test_extraction import Letters, words
class Slow(Letters):
    def encode(self, batch):
        time.sleep(0.002)
        return super().encode(batch)
extraction._SHARD_ITEMS = 4
print("start", flush=True)
extraction.extract(Slow(), words(600), sys.argv[1])
"""
    folder = tmp_path / "f"
    rng = np.random.default_rng(0)
    kills = 0
    for attempt in range(9):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"start\n"
        try:
            # The last one is left alone, however slow the machine.
            process.wait(rng.uniform(0.02, 0.15) if attempt < 8 else None)
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            assert not folder.exists() or read_features(folder).features.shape == (600, 2, 26)
    assert kills >= 3
    np.testing.assert_array_equal(read_features(folder).features, expected(words(600)))
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
