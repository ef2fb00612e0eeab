import numpy as np
import pytest

from platojax.data.pipeline import make_pipeline

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


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_exactly(workers):
    whole = batches(7, num_workers=workers)
    iterator = make_pipeline(SCENES, views, batch_size=4, seed=0, num_workers=workers)
    for _ in range(3):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    resumed = make_pipeline(SCENES, views, batch_size=4, seed=0, num_workers=workers)
    resumed.set_state(state)
    np.testing.assert_array_equal([next(resumed) for _ in range(4)], whole[3:])
    resumed.close()


def test_processes_share_the_batch_of_one():
    parts = [batches(5, process_index=i, process_count=2) for i in range(2)]
    for step, whole in enumerate(batches(5)):
        together = np.concatenate([part[step] for part in parts], axis=1)
        assert sorted(map(tuple, together[0])) == sorted(map(tuple, whole[0]))


@pytest.mark.parametrize(("size", "processes"), [(0, 1), (5, 2)])
def test_a_batch_that_does_not_divide_is_refused(size, processes):
    with pytest.raises(ValueError, match=f"batch_size {size} must be"):
        make_pipeline(SCENES, views, batch_size=size, seed=0, process_count=processes)


def test_no_scenes_are_refused():
    with pytest.raises(ValueError, match="no scene"):
        make_pipeline([], views, batch_size=4, seed=0)
