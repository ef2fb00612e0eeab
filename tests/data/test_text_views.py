"""View policies of texts: what each takes of a scene."""

import math

import numpy as np
import pytest
from ml_collections import ConfigDict

from platojax.data.scenes import MissingObservationsError, Scene, Text
from platojax.data.views import make_views
from tests import tiny

TOKENIZER = tiny.tokenizer()
LONG = "a small red bus waits at the corner of two wet streets while people walk under the trees"
SCENE = Scene(
    "1",
    texts=(
        Text("en", "en", "a bus"),
        Text("en", "en", "the red bus"),
        Text("de", "de", "ein Bus"),
        Text("web", "en", "bus, 1987"),
    ),
)


def make(name, max_length=16, **fields):
    encoder = ConfigDict(dict(max_length=max_length))
    return make_views(ConfigDict(dict(name=name, **fields)), encoder, TOKENIZER)


def inner(row):
    """The token ids between both ends."""
    ids = row[row != TOKENIZER.pad_id].tolist()
    assert (ids[0], ids[-1]) == (TOKENIZER.bos_id, TOKENIZER.eos_id)
    return ids[1:-1]


def pairs(policy, scene=SCENE, count=200):
    """Ids of both views, by many generators."""
    return [
        tuple(inner(row) for row in policy(scene, np.random.default_rng(seed)))
        for seed in range(count)
    ]


def text_pairs(policy):
    return {tuple(TOKENIZER.decode(ids) for ids in pair) for pair in pairs(policy)}


# ---- Two texts -----------------------------------------------------------------------------


def test_any_two_texts_are_a_pair_in_either_order():
    names = [text.name for text in SCENE.texts]
    assert text_pairs(make("two_texts")) == {(a, b) for a in names for b in names if a != b}


def test_two_texts_of_chosen_sources():
    assert text_pairs(make("two_texts", sources=("en",))) == {
        ("a bus", "the red bus"),
        ("the red bus", "a bus"),
    }


@pytest.mark.parametrize("field", ["source", "language"])
def test_two_texts_that_differ_in_a_field(field):
    value = {text.name: getattr(text, field) for text in SCENE.texts}
    found = text_pairs(make("two_texts", apart=field))
    assert found == {(a, b) for a in value for b in value if value[a] != value[b]}


@pytest.mark.parametrize(
    ("fields", "lacking"),
    [
        (dict(sources=("de",)), r"1 of the 2 texts of views.sources \('de',\)"),
        (dict(sources=("en",), apart="source"), "no two texts that differ in source"),
        (dict(sources=("en", "web"), apart="language"), "no two texts that differ in language"),
    ],
)
def test_scenes_that_lack_them_say_what(fields, lacking):
    for seed in range(5):  # whatever is drawn first
        with pytest.raises(MissingObservationsError, match=lacking):
            make("two_texts", **fields)(SCENE, np.random.default_rng(seed))


# ---- Parts of one text ---------------------------------------------------------------------

IDS = TOKENIZER.encode(LONG)
ONE = Scene("1", texts=(Text("en", "en", LONG),))


def starts(part):
    """Where the text has this part."""
    return [
        start for start in range(len(IDS)) if IDS[start : start + len(part)] == part and len(part)
    ]


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_spans_are_crops_of_the_text_anywhere(ratio):
    found = pairs(make("two_spans", max_length=64, ratio=ratio), ONE)
    spans = [span for pair in found for span in pair]
    assert {len(span) for span in spans} == {round(ratio * len(IDS))}
    assert all(starts(span) for span in spans)
    places = {starts(span)[0] for span in spans}
    assert len(places) == len(IDS) - round(ratio * len(IDS)) + 1
    if ratio < 1:
        assert np.mean([one == two for one, two in found]) < 0.3  # drawn on their own


def test_prefix_and_continuation_are_the_text_cut_anywhere_but_near_its_ends():
    found = pairs(make("prefix_continuation", max_length=64, min_share=0.25), ONE)
    assert all(prefix + continuation == IDS for prefix, continuation in found)
    lengths = {len(prefix) for prefix, _ in found}
    least = math.ceil(0.25 * len(IDS))
    assert lengths == set(range(least, len(IDS) - least + 1))


@pytest.mark.parametrize("number", [2, 3, 5, 6, 7])
@pytest.mark.parametrize("share", [0.25, 0.3, 0.5])
def test_each_of_the_two_has_its_share(number, share):
    scene = Scene("1", texts=(Text("en", "en", "", ids=np.arange(10, 10 + number)),))
    for pair in pairs(make("prefix_continuation", max_length=64, min_share=share), scene):
        assert min(map(len, pair)) >= min(share * number, number // 2)
        assert sum(map(len, pair)) == number


def test_of_a_long_text_they_are_what_is_nearest_to_the_cut():
    for prefix, continuation in pairs(make("prefix_continuation", max_length=7), ONE):
        assert len(prefix) == len(continuation) == 5
        assert starts(prefix + continuation)


def test_a_span_is_no_longer_than_a_view():
    for pair in pairs(make("two_spans", max_length=7, ratio=0.9), ONE):
        assert {len(span) for span in pair} == {5}


@pytest.mark.parametrize("name", ["two_masks", "two_spans", "prefix_continuation"])
def test_one_token_is_enough(name):
    scene = Scene("1", texts=(Text("en", "en", "face"),))
    assert len(TOKENIZER.encode("face")) == 1
    for pair in pairs(make(name), scene, count=5):
        assert {len(ids) for ids in pair} == {1}


@pytest.mark.parametrize("name", ["two_masks", "two_spans", "prefix_continuation"])
def test_a_scene_without_a_text_is_named(name):
    with pytest.raises(MissingObservationsError, match=r"scene 2 has 0 of the 1 texts that the"):
        make(name)(Scene("2"), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("two_texts", dict(apart="word"), "views.apart must be one of .* got 'word'"),
        ("two_masks", dict(mask_ratio=1.0), r"views.mask_ratio must be in \[0, 1\); got 1.0"),
        ("two_spans", dict(ratio=0.0), r"views.ratio must be in \(0, 1\]; got 0.0"),
        ("prefix_continuation", dict(min_share=0.6), r"views.min_share must be in \[0, 0.5\]"),
    ],
)
def test_impossible_fields_are_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make(name, **fields)
