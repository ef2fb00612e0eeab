"""What holds for every view policy, on prepared data that has all that they ask for."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from platojax.data.pipeline import make_pipeline
from platojax.data.preparation import write_prepared
from platojax.data.prepared import PreparedScenes
from platojax.data.raw.scene import Encoded, RawScene
from platojax.data.scenes import Text
from platojax.data.text_views import TextViews
from platojax.data.views import IMAGE_POLICIES, TEXT_POLICIES, VIDEO_POLICIES, make_views
from tests import tiny
from tests.data.pictures import encode, pixels

pytest.importorskip("av")

from tests.data.clips import write_clip

SCENES, BATCH = 6, 2
EPOCH = SCENES // BATCH
FIELDS = {
    "multi_crop": dict(local_size=8, num_local=2),
    "two_segments": dict(frames=2),
}
NAMES = (*TEXT_POLICIES, *IMAGE_POLICIES, *VIDEO_POLICIES)
WORDS = ("a", "small", "red", "bus", "waits", "at", "the", "corner", "of", "two", "wet", "streets")


@dataclasses.dataclass(frozen=True)
class Several:
    """The scene's number, then the views of each policy, from one generator."""

    policies: tuple

    def __call__(self, scene, rng):
        views = [part for policy in self.policies for part in jax.tree.leaves(policy(scene, rng))]
        return (np.full(1, int(scene.scene_id)), *views)


@dataclasses.dataclass(frozen=True)
class Single:
    """A policy of which the pipeline knows nothing but that it can be called."""

    policy: TextViews

    def __call__(self, scene, rng):
        return self.policy(scene, rng)


def raw_scene(number):
    rng = np.random.default_rng(number)
    texts = [Text(f"by {i}", "en", " ".join(rng.permutation(WORDS))) for i in range(5)]
    pictures = [Encoded("photo", encode(pixels(40, 40, 10 * number + i))) for i in range(3)]
    frames = [pixels(32, 32, 100 * number + i) for i in range(12)]
    clip = Encoded("clip", write_clip(frames, keys=4))
    return RawScene(str(number), "train", tuple(texts), tuple(pictures), (clip,))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    out = tmp_path_factory.mktemp("policies") / "all"
    write_prepared(map(raw_scene, range(SCENES)), out, name="all", source={}, settings={})
    return PreparedScenes(out, "train")


@pytest.fixture(scope="module")
def views():
    encoder = ConfigDict(dict(max_length=16, image_size=16))
    config = [ConfigDict(dict(name=name, **FIELDS.get(name, {}))) for name in NAMES]
    return Several(tuple(make_views(one, encoder, tiny.tokenizer()) for one in config))


@pytest.fixture(scope="module")
def whole(scenes, views):
    return batches(scenes, views, 2 * EPOCH)


def batches(scenes, views, count, **fields):
    iterator = make_pipeline(scenes, views, batch_size=BATCH, seed=3, **fields)
    found = [next(iterator) for _ in range(count)]
    iterator.close()
    return found


def assert_same(some, others):
    jax.tree.map(np.testing.assert_array_equal, some, others)


@pytest.mark.parametrize("workers", [1, 3])
def test_views_are_the_same_for_any_number_of_workers(scenes, views, whole, workers):
    assert_same(batches(scenes, views, len(whole), num_workers=workers), whole)


def test_views_are_the_same_on_resumption(scenes, views, whole):
    assert_same(batches(scenes, views, len(whole) - 2, first_batch=2), whole[2:])


def test_views_are_the_same_for_any_number_of_processes(scenes, views, whole):
    parts = [batches(scenes, views, EPOCH, process_index=i, process_count=2) for i in range(2)]
    for batch, *split in zip(whole, *parts):  # noqa: B905  (whole has a second epoch)
        together = jax.tree.map(lambda *some: np.concatenate(some, axis=1), *split)
        assert_same(together, batch)


def test_views_of_every_policy_differ_in_every_epoch(whole):
    epochs = []
    for epoch in (whole[:EPOCH], whole[EPOCH:]):
        number, *views = (np.concatenate(parts, axis=1) for parts in zip(*epoch, strict=True))
        order = np.argsort(number[0])
        np.testing.assert_array_equal(number[0, order], range(SCENES))
        epochs.append([view[:, order] for view in views])
    for one, two in zip(*epochs, strict=True):
        same = [np.array_equal(one[:, i], two[:, i]) for i in range(SCENES)]
        assert np.mean(same) < 0.5


@pytest.mark.parametrize("name", TEXT_POLICIES)
def test_texts_of_a_batch_are_tokenised_together_and_are_the_same(scenes, name):
    encoder = ConfigDict(dict(max_length=9))
    policy = make_views(ConfigDict(dict(name=name)), encoder, tiny.tokenizer())
    for workers in (0, 1):
        together, one_by_one = (
            make_pipeline(scenes, views, batch_size=60, seed=3, num_workers=workers)
            for views in (policy, Single(policy))
        )
        for _ in range(2):
            assert_same(next(together), next(one_by_one))
        together.close()
        one_by_one.close()


def test_policies_can_be_sent_to_worker_processes(scenes, views):
    again = pickle.loads(pickle.dumps(views))
    assert_same(
        again(scenes[0], np.random.default_rng(0)), views(scenes[0], np.random.default_rng(0))
    )
