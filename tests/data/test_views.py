import chex
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from platojax.data.observations import TextCodec
from platojax.data.pipeline import stack_views
from platojax.data.scenes import Scene, Text, load_emoji
from platojax.data.text_views import without_shared_words
from platojax.data.views import example_views, make_views
from tests import tiny

ENCODER = ConfigDict(dict(max_length=16, image_size=32))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def make(tokenizer, name, **fields):
    return make_views(ConfigDict(dict(name=name, **fields)), ENCODER, tokenizer)


def words(tokenizer, row):
    return tokenizer.decode(row[row != tokenizer.pad_id])


@pytest.mark.parametrize(
    ("name", "fields", "shapes", "dtype"),
    [
        ("two_texts", dict(sources=tiny.SOURCES, distinct=True), [(2, 16)], np.int32),
        ("two_masks", dict(sources=tiny.SOURCES), [(2, 16)], np.int32),
        ("two_pictures", {}, [(2, 32, 32, 3)], np.uint8),
        ("two_crops", {}, [(2, 32, 32, 3)], np.uint8),
        ("multi_crop", dict(local_size=8), [(2, 32, 32, 3), (6, 8, 8, 3)], np.uint8),
        (
            "multi_crop",
            dict(local_size=16, num_global=1, num_local=3),
            [(1, 32, 32, 3), (3, 16, 16, 3)],
            np.uint8,
        ),
    ],
)
def test_every_policy_gives_what_its_config_says_by_its_generator_alone(
    tokenizer, name, fields, shapes, dtype
):
    policy = make(tokenizer, name, **fields)
    scene = load_emoji("train")[7]

    def views(seed):
        return policy(scene, np.random.default_rng(seed))

    one = views(3)
    assert [part.shape for part in jax.tree.leaves(one)] == shapes
    assert {part.dtype for part in jax.tree.leaves(one)} == {np.dtype(dtype)}
    chex.assert_trees_all_equal(one, views(3))
    others = [jax.tree.leaves(views(seed))[-1] for seed in range(4, 9)]
    assert any(not np.array_equal(jax.tree.leaves(one)[-1], other) for other in others)
    # As it is without a scene: the same tree, shapes and dtypes.
    example = example_views(ConfigDict(dict(name=name, **fields)), ENCODER)
    chex.assert_trees_all_equal_shapes_and_dtypes(example, stack_views([one]))


def test_an_unknown_policy_has_no_example():
    with pytest.raises(ValueError, match=r"views.name 'good' names no policy"):
        example_views(ConfigDict(dict(name="good")), ENCODER)


def test_two_texts_are_never_the_same_one(tokenizer):
    views = make(tokenizer, "two_texts", sources=("cldr_en", "cldr_de"), distinct=True)
    scene = scene_with(texts=[("cldr_en", "cat", ()), ("cldr_de", "Katze", ())])
    for seed in range(20):
        pair = {words(tokenizer, row) for row in views(scene, np.random.default_rng(seed))}
        assert pair == {"cat", "Katze"}


def test_keywords_come_in_random_order_and_the_name_first(tokenizer):
    views = make(tokenizer, "two_texts", sources=("a", "b"), distinct=False)
    scene = scene_with(texts=[("a", "cat", ("pet", "fur")), ("b", "cat", ("pet", "fur"))])
    seen = {words(tokenizer, views(scene, np.random.default_rng(seed))[0]) for seed in range(30)}
    assert seen == {"cat, pet, fur", "cat, fur, pet"}


def test_distinct_sources_share_no_word_and_others_may(tokenizer):
    scene = scene_with(
        texts=[
            ("en", "Christmas tree", ("star", "pine")),
            ("de", "Christmas-Baum", ("Stern", "pine wood", "Tanne")),
        ]
    )
    for seed in range(20):
        one, two = (
            words(tokenizer, row)
            for row in make(tokenizer, "two_texts", sources=("en", "de"), distinct=True)(
                scene, np.random.default_rng(seed)
            )
        )
        second = {"star"} if "Baum" in one else {"Stern", "Tanne"}
        assert set(two.split(", ")) == second
    whole = make(tokenizer, "two_texts", sources=("en", "de"), distinct=False)
    one, two = (words(tokenizer, row) for row in whole(scene, np.random.default_rng(0)))
    assert "Christmas" in one
    assert "Christmas" in two


def test_two_captions_of_one_image_are_whole_and_cut_to_length(tokenizer):
    views = make(tokenizer, "two_texts", sources=("org_caption", "re_caption"), distinct=False)
    long = "a small red bus waits at the corner of a street in the rain " * 3
    scene = Scene(
        "web.parquet:3",
        texts=(Text("org_caption", "", "Bus, 1987"), Text("re_caption", "en", long)),
    )
    orders = set()
    for seed in range(20):
        pair = views(scene, np.random.default_rng(seed))
        assert pair.shape == (2, 16)
        one, two = sorted((words(tokenizer, row) for row in pair), key=len)
        assert one == "Bus, 1987"
        assert long.startswith(two)
        assert np.all(pair[[words(tokenizer, row) == two for row in pair]] != tokenizer.pad_id)
        orders.add(words(tokenizer, pair[0]))
    assert len(orders) == 2


def test_every_training_scene_has_distinct_descriptions_in_the_languages_of_the_experiment():
    languages = ("cldr_en", "cldr_de", "cldr_fr", "cldr_es", "cldr_it", "cldr_pt")
    for scene in load_emoji("train"):
        phrases = [[t.name, *t.keywords] for t in scene.texts if t.source in languages]
        for first in phrases:
            others = (phrase for phrase in phrases if phrase is not first)
            assert any(without_shared_words(second, first) for second in others), scene.name


def test_masks_are_independent_and_of_one_description(tokenizer):
    views = make(tokenizer, "two_masks", sources=("cldr_en", "cldr_de"), mask_ratio=0.5)
    scene = load_emoji("train")[0]
    shares = []
    for seed in range(200):
        one, two = views(scene, np.random.default_rng(seed))
        both_open = (one != tokenizer.mask_id) & (two != tokenizer.mask_id)
        np.testing.assert_array_equal(one[both_open], two[both_open])
        valid = (one != tokenizer.pad_id) & (one != tokenizer.bos_id) & (one != tokenizer.eos_id)
        shares.append([np.mean(one[valid] == tokenizer.mask_id), np.mean(both_open[valid])])
    masked, both_open = np.mean(shares, axis=0)
    assert 0.45 < masked < 0.55
    assert 0.2 < both_open < 0.3  # .25 if the two are independent


def test_too_few_texts_name_the_scene_and_what_it_has(tokenizer):
    views = make(tokenizer, "two_texts", sources=("cldr_en", "nowhere"), distinct=True)
    scene = scene_with(texts=[("cldr_en", "cat", ())])
    with pytest.raises(ValueError, match=r"scene 1f408 has .* it has \['cldr_en'\]"):
        views(scene, np.random.default_rng(0))


def test_an_unknown_policy_is_refused_with_the_known_ones(tokenizer):
    with pytest.raises(ValueError, match=r"views.name must be one of .*two_texts.*got 'good'"):
        make(tokenizer, "good")


def test_long_and_empty_texts_fit(tokenizer):
    codec = TextCodec(tokenizer, 8)
    long = codec.encode_all(["a very long name" + ", and many, more words" * 50])[0]
    assert long[0] == tokenizer.bos_id
    assert long[-1] == tokenizer.eos_id
    empty = codec.encode_all([""])[0]
    np.testing.assert_array_equal(empty[:2], [tokenizer.bos_id, tokenizer.eos_id])
    assert np.all(empty[2:] == tokenizer.pad_id)


def scene_with(texts):
    return Scene(
        scene_id="1f408",
        emoji="🐈",
        name="cat",
        group="Animals & Nature",
        subgroup="animal-mammal",
        texts=tuple(Text(source, "xx", name, keywords) for source, name, keywords in texts),
    )
