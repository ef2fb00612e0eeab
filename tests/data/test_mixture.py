import collections
import json
import pickle

import numpy as np
import pytest
from ml_collections import ConfigDict

from platojax.data.mixture import MixedStream, Mixture, _place, _shares
from platojax.data.pipeline import make_pipeline
from platojax.data.preparation import write_prepared
from platojax.data.prepared import PreparedScenes
from platojax.data.raw.scene import RawScene
from platojax.data.recap import RecapScenes
from platojax.data.scenes import Scene, SceneStream, Text, hash_scenes
from platojax.data.sources import load_source
from platojax.data.usable import count_lacking, usable_scenes
from platojax.data.views import make_views
from tests import tiny
from tests.data import recap_files

# grain orders few scenes slowly: a share of one in so many is what it takes to find the next.
SIZES = {"one": 3_000, "two": 2_000}
WEIGHTS = {"one": 0.7, "two": 0.3}


def views(scene, rng):
    """A part, a number in it, and randomness."""
    part, number = scene.texts[0].name.split()
    return np.stack([[part == "two", int(number), rng.integers(1 << 30)]] * 2)


def part(name):
    return [Scene(f"{name} {i}", (Text("a", "", f"{name} {i}"),)) for i in range(SIZES[name])]


@pytest.fixture(scope="module")
def mixture():
    return Mixture({name: part(name) for name in SIZES}, WEIGHTS)


def batches(scenes, count, **changes):
    iterator = make_pipeline(scenes, views, **dict(batch_size=20, seed=0) | changes)
    found = [next(iterator) for _ in range(count)]
    iterator.close()
    return found


# ---- Random access -------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(1,), (1, 1), (7, 3), (1, 1000), (5, 1, 3, 2)])
def test_every_stretch_has_its_share_of_each_part(shares):
    total = 3 * sum(shares)
    places = [_place(index, shares) for index in range(total)]
    for number, share in enumerate(shares):
        mine = [place for part, place in places if part == number]
        assert mine == list(range(3 * share))  # one after the other, none left out
        counted = np.cumsum([part == number for part, _ in places])
        exact = np.arange(1, total + 1) * share / sum(shares)
        assert np.abs(counted - exact).max() < len(shares)


@pytest.mark.parametrize("weights", [[0.7, 0.3], [1 / 3, 2 / 3], [1e-5, 1], [3, 1, 1]])
def test_weights_are_kept_to_a_millionth(weights):
    shares = np.array(_shares(weights, 1 << 20))
    assert shares.sum() == 1 << 20
    np.testing.assert_allclose(shares / (1 << 20), np.array(weights) / sum(weights), atol=1e-6)


def test_each_part_is_shuffled_anew_whenever_it_is_through(mixture):
    seen = np.concatenate(batches(mixture, 1000), axis=1)[0]
    two = seen[seen[:, 0] == 1, 1]
    assert abs(len(two) - 6_000) <= 1
    epochs = [two[start : start + 2_000] for start in (0, 2_000)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(2_000))
    assert not np.array_equal(*epochs)
    assert len(set(seen[:, 2].tolist())) > 0.999 * len(seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_goes_on_exactly(mixture, workers):
    whole = batches(mixture, 9)
    rest = batches(mixture, 6, first_batch=3, num_workers=workers)
    np.testing.assert_array_equal(rest, whole[3:])


def test_processes_make_disjoint_stretches_of_the_same_batches(mixture):
    parts = [batches(mixture, 5, process_index=i, process_count=4) for i in range(4)]
    together = [np.concatenate(several, axis=1) for several in zip(*parts, strict=True)]
    np.testing.assert_array_equal(together, batches(mixture, 5))


def test_nothing_of_a_mixture_is_saved(mixture):
    iterator = make_pipeline(mixture, views, batch_size=20, seed=0)
    assert (iterator.iterator, iterator.layout, iterator.skipped()) == (None, {}, {})


def test_the_hash_knows_parts_and_weights(mixture):
    other = Mixture(mixture.parts, {"one": 0.6, "two": 0.4})
    renamed = Mixture({"three": part("one"), "two": part("two")}, {"three": 0.7, "two": 0.3})
    assert len({hash_scenes(one) for one in (mixture, other, renamed)}) == 3
    assert hash_scenes(pickle.loads(pickle.dumps(mixture))) == hash_scenes(mixture)


# ---- As the data of an experiment ----------------------------------------------------------


def prepare(out, captions):
    """Scenes with as many captions each as the list says."""
    scenes = [
        RawScene(f"{out.name} {i}", "train", tuple(Text("c", "", f"{j} {i}") for j in range(n)))
        for i, n in enumerate(captions)
    ]
    write_prepared(scenes, out, name="tiny", source={}, settings={})
    return str(out)


def data_config(**parts):
    return ConfigDict(
        dict(
            name="mixture",
            tokenizer="emoji",
            vocabulary=dict(vocab_size=4000, pad_id=0),
            max_bad_fraction=0.2,
            parts=parts,
        )
    )


def prepared(folder, weight=1.0):
    return dict(name="prepared", folder=folder, train="train", weight=weight)


def test_parts_of_a_config_share_what_stands_beside_them(tmp_path):
    source = load_source(
        data_config(
            a=prepared(prepare(tmp_path / "a", [2] * 9), 3.0), emoji=dict(name="emoji", weight=1)
        )
    )
    assert isinstance(source.train, Mixture)
    assert dict(source.train.weights) == {"a": 3.0, "emoji": 1}
    assert isinstance(source.train.parts["a"], PreparedScenes)
    assert {len(scene.texts) for scene in source.sample} > {2}
    assert len(source.heldout) == 304


def test_scenes_that_lack_what_views_need_are_left_out_of_their_part(tmp_path):
    one = prepare(tmp_path / "one", [2] * 9 + [1])
    two = prepare(tmp_path / "two", [2] * 10)
    policy = make_views(
        ConfigDict(dict(name="two_texts")), ConfigDict(dict(max_length=8)), tiny.tokenizer()
    )
    source = load_source(data_config(one=prepared(one), two=prepared(two)))
    usable = usable_scenes(source.train, policy, 0.2)
    assert {name: len(scenes) for name, scenes in usable.parts.items()} == {"one": 9, "two": 10}
    assert sum(count_lacking(usable).values()) == 1
    assert hash_scenes(usable) == hash_scenes(source.train)
    alone = load_source(data_config(one=prepared(prepare(tmp_path / "alone", [1] * 9))))
    with pytest.raises(ValueError, match="9 of 9 scenes of train cannot give the views"):
        usable_scenes(alone.train, policy, 0.2)


def recap(pattern, weight=1.0):
    return dict(name="recap", files=pattern, open_files=2, window=12, weight=weight)


def test_impossible_mixtures_are_refused(tmp_path):
    folder = prepare(tmp_path / "a", [2] * 9)
    files = recap_files.write_files(tmp_path, files=1, rows=20)
    for parts, message in (
        ({}, "data.parts is empty"),
        (dict(a=dict(name="mixture", parts={}, weight=1)), "data.parts.a is a mixture itself"),
        (dict(a=dict(name="emoji")), "data.parts.a has no weight"),
        (
            dict(a=dict(prepared(folder), max_bad_fraction=0.1)),
            "data.parts.a.max_bad_fraction does not count",
        ),
        (dict(a=prepared(folder, 0.0)), r"data.parts.a.weight must be positive; got 0"),
        (dict(a=prepared(folder), b=prepared(folder, 1e-9)), r"data.parts.b.weight .* millionth"),
        (dict(a=prepared("")), r"data.parts.a: data.folder names no folder"),
        (dict(a=prepared(folder), b=recap(files)), r"\['b'\] are streams, \['a'\] have random"),
    ):
        with pytest.raises(ValueError, match=message):
            load_source(data_config(**parts))


# ---- Streams -------------------------------------------------------------------------------


def stream_views(scene, rng):
    number = int(scene.texts[0].name.split()[-1])
    return np.stack([[number, rng.integers(1 << 30)]] * 2)


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """20 rows with numbers below 60 in each of three files, and two files of numbers above."""
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    config = data_config(
        small=recap(recap_files.write_files(small, files=4, rows=15), 3.0),
        large=recap(recap_files.write_files(large, files=4, rows=10, first=60), 1.0),
    )
    mixed = load_source(config).train
    assert isinstance(mixed, MixedStream)
    assert isinstance(mixed, SceneStream)
    return mixed


def stream_batches(streams, count, state=None, **changes):
    arguments = dict(batch_size=8, seed=0) | changes
    iterator = make_pipeline(streams, stream_views, **arguments)
    if state is not None:
        iterator.iterator.set_state(state)
    found = [next(iterator) for _ in range(count)]
    state, skipped = iterator.iterator.get_state(), iterator.skipped()
    iterator.close()
    return found, state, skipped


def test_each_batch_of_streams_has_its_share_of_each_part(streams):
    found, _, skipped = stream_batches(streams, 20)
    for batch in found:
        assert [n >= 60 for n in batch[0, :, 0]].count(True) == 2
        assert batch[0, 0, 0] < 60 <= batch[0, 1, 0]  # evenly spread
    small = [n for batch in found for n in batch[0, :, 0].tolist() if n < 60]
    assert collections.Counter(small) == dict.fromkeys(range(60), 2)  # two epochs
    assert sum(skipped.values()) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_mixed_streams_go_on_exactly(streams, workers):
    whole, _, _ = stream_batches(streams, 11)
    first, state, _ = stream_batches(streams, 4, num_workers=workers)
    rest, _, _ = stream_batches(streams, 7, json.loads(json.dumps(state)), num_workers=workers)
    np.testing.assert_array_equal([*first, *rest], whole)


def test_processes_read_disjoint_files_of_all_parts(streams):
    parts = [
        np.concatenate(
            stream_batches(streams, 5, batch_size=16, process_index=i, process_count=2)[0], axis=1
        )[0, :, 0].tolist()
        for i in range(2)
    ]
    assert not set(parts[0]) & set(parts[1])
    assert {n for part in parts for n in part if n < 60} == set(range(60))


def test_a_part_without_a_scene_in_a_batch_is_refused(streams):
    rare = MixedStream(streams.parts, {"small": 100.0, "large": 1.0})
    with pytest.raises(ValueError, match=r"data.parts.large.weight 1.0 gives it no scene among"):
        rare.blocks(8, seed=0)


def test_what_parts_skip_is_counted_together(tmp_path):
    org, re = (list(texts) for texts in zip(*map(recap_files.captions, range(40)), strict=True))
    org[3] = re[5] = None
    path = str(recap_files.write(tmp_path / "a.parquet", org, re))
    scenes = RecapScenes.find(path, window=50, max_bad_fraction=0.1)
    twice = MixedStream({"a": scenes, "b": scenes}, {"a": 1.0, "b": 1.0})
    _, _, skipped = stream_batches(twice, 12)  # into the second window of each
    assert {reason: n for reason, n in skipped.items() if n} == {"missing text": 4}
