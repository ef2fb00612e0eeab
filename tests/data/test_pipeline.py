import numpy as np
import pytest

from platojax.data.pipeline import make_pipeline
from platojax.data.recap import RecapScenes
from tests.data import recap_files

SCENES = list(range(10))


def views(scene, rng):
    """Two views that tell their scene and their randomness apart."""
    return np.stack([[scene, rng.integers(1 << 30)] for _ in range(2)])


def batches(count, **changes):
    arguments = dict(batch_size=4, seed=0) | changes
    iterator = make_pipeline(SCENES, views, **arguments)
    result = [next(iterator) for _ in range(count)]
    iterator.close()
    return result


def test_batches_have_views_first_and_every_epoch_has_every_scene():
    stream = np.concatenate(batches(5), axis=1)
    assert stream.shape == (2, 20, 2)
    for epoch in (stream[0, :10, 0], stream[0, 10:, 0]):
        assert sorted(epoch) == SCENES
    assert list(stream[0, :10, 0]) != list(stream[0, 10:, 0])


def test_views_are_new_every_epoch():
    stream = np.concatenate(batches(5), axis=1)
    assert len(set(stream[:, :, 1].ravel())) == 40


def test_seed_is_all_that_matters():
    np.testing.assert_array_equal(batches(3), batches(3))
    assert not np.array_equal(batches(3), batches(3, seed=1))


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_change_nothing(workers):
    np.testing.assert_array_equal(batches(6), batches(6, num_workers=workers))


@pytest.mark.parametrize("workers", [0, 3])
def test_any_batch_can_be_the_first(workers):
    whole = batches(9)
    for first in (0, 1, 5):
        rest = batches(9 - first, first_batch=first, num_workers=workers)
        np.testing.assert_array_equal(rest, whole[first:])


def test_a_sequence_has_no_state_to_save():
    iterator = make_pipeline(SCENES, views, batch_size=4, seed=0)
    assert (iterator.iterator, iterator.layout, iterator.skipped()) == (None, {}, {})
    iterator.check_layout({"num_workers": 7})
    iterator.close()


def together(count, processes, **changes):
    parts = [
        batches(count, process_index=i, process_count=processes, **changes)
        for i in range(processes)
    ]
    return [np.concatenate(parts_of_one, axis=1) for parts_of_one in zip(*parts, strict=True)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_goes_on_with_another_number_of_processes(workers):
    whole = batches(9)
    run = [
        *together(3, 1),
        *together(3, 2, first_batch=3, num_workers=workers),
        *together(3, 4, first_batch=6),
    ]
    np.testing.assert_array_equal(run, whole)


@pytest.mark.parametrize(("size", "processes"), [(0, 1), (5, 2)])
def test_a_batch_that_does_not_divide_is_refused(size, processes):
    with pytest.raises(ValueError, match=f"batch_size {size} must be"):
        make_pipeline(SCENES, views, batch_size=size, seed=0, process_count=processes)


def test_no_scenes_are_refused():
    with pytest.raises(ValueError, match="no scene"):
        make_pipeline([], views, batch_size=4, seed=0)


# ---- Streams -------------------------------------------------------------------------------


def scene_views(scene, rng):
    """Two views that tell their scene and their randomness apart."""
    number = int(scene.texts[0].name.split()[-1])
    return np.stack([[number, rng.integers(1 << 30)] for _ in range(2)])


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    pattern = recap_files.write_files(tmp_path_factory.mktemp("stream"), files=4, rows=15)
    return RecapScenes.find(pattern, open_files=2, window=10)


def open_stream(stream, **changes):
    return make_pipeline(stream, scene_views, **dict(batch_size=8, seed=0) | changes)


def stream_batches(stream, count, **changes):
    iterator = open_stream(stream, **changes)
    result = [next(iterator) for _ in range(count)]
    iterator.close()
    return result


def test_a_stream_makes_batches_with_new_views_every_epoch(stream):
    seen = np.concatenate(stream_batches(stream, 15), axis=1)
    assert seen.shape == (2, 120, 2)
    for epoch in (seen[0, :60, 0], seen[0, 60:, 0]):
        assert sorted(epoch) == list(range(60))
    assert len(set(seen[:, :, 1].ravel())) == 240


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_change_nothing_of_a_stream(stream, workers):
    np.testing.assert_array_equal(
        stream_batches(stream, 10), stream_batches(stream, 10, num_workers=workers)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_exactly(stream, workers):
    whole = stream_batches(stream, 11)
    iterator = open_stream(stream, num_workers=workers)
    for _ in range(4):
        next(iterator)
    state = iterator.iterator.get_state()
    iterator.close()
    resumed = open_stream(stream, num_workers=workers)
    resumed.iterator.set_state(state)
    np.testing.assert_array_equal([next(resumed) for _ in range(7)], whole[4:])
    assert sum(resumed.skipped().values()) == 0
    resumed.close()


def test_views_of_a_scene_do_not_depend_on_the_processes(stream):
    def views_of(parts):
        pairs = np.concatenate([batch[0] for part in parts for batch in part])
        return {tuple(pair) for pair in pairs}

    # An epoch of one process, and of each of two.
    one = views_of([stream_batches(stream, 15, batch_size=4)])
    two = views_of(
        [
            stream_batches(stream, 15, batch_size=4, process_index=i, process_count=2)
            for i in range(2)
        ]
    )
    assert one == two
    assert len(one) == 60


def test_a_stream_read_in_another_way_is_refused_with_the_way_out(stream):
    iterator = open_stream(stream)
    iterator.check_layout({"num_workers": 0, "process_count": 1, "tokenizer": "x"})
    with pytest.raises(ValueError, match=r"num_workers 2, this run has 0.*Set config.num_workers"):
        iterator.check_layout({"num_workers": 2, "process_count": 1})
    with pytest.raises(
        ValueError, match=r"process_count 4, this run has 1.*back to 4; data with random access"
    ):
        iterator.check_layout({"num_workers": 0, "process_count": 4})
    iterator.close()


# ---- Reading together ----------------------------------------------------------------------


class Counted(list):
    """Scenes that note which of them were asked for together."""

    def __init__(self, scenes):
        super().__init__(scenes)
        self.reads = []

    def read(self, indices):
        self.reads.append(len(indices))
        return [self[index] for index in indices]


@pytest.mark.parametrize(("size", "together"), [(4, 4), (1200, 600), (1031, 1)])
def test_scenes_of_a_batch_are_read_together_and_are_the_same(size, together):
    scenes = Counted(range(2000))
    read = make_pipeline(scenes, views, batch_size=size, seed=0)
    one_by_one = make_pipeline(list(scenes), views, batch_size=size, seed=0)
    for _ in range(3):
        np.testing.assert_array_equal(next(read), next(one_by_one))
    assert set(scenes.reads) == {together}
    assert sum(scenes.reads) == 3 * size


def test_recorded_runs_are_given_the_same_batches_again():
    # As docs/results/emoji was given them: the order, and the generator of each view.
    batch = batches(1, seed=5)[0]
    assert batch[0, :, 0].tolist() == [3, 9, 4, 8]
    assert batch[:, 0, 1].tolist() == [476306988, 196679778]
