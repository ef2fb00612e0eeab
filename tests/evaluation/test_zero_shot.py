import numpy as np
import pytest

from platojax.evaluation.zero_shot import zero_shot


def test_images_are_of_the_class_with_the_largest_cosine():
    classes = np.eye(8)
    images = np.eye(8)[[0, 1, 2, 2]] * 5 + 0.1
    images[3] += 3 * np.eye(8)[7] * 2  # nearer to class 7 than to its own, which comes second
    result = zero_shot(images, classes, [0, 1, 2, 2])
    assert (result.n, result.num_classes) == (4, 8)
    assert result.top1 == 0.75
    assert result.top5 == 1
    assert result.per_class == (1.0, 1.0, 0.5, None, None, None, None, None)
    assert result.chance == (1 / 8, 5 / 8)


def test_random_features_are_at_chance_and_equal_ones_gain_nothing():
    rng = np.random.default_rng(0)
    images, classes = rng.normal(size=(4000, 16)), rng.normal(size=(20, 16))
    labels = rng.integers(20, size=4000)
    result = zero_shot(images, classes, labels)
    assert result.top1 == pytest.approx(0.05, abs=0.015)
    assert result.top5 == pytest.approx(0.25, abs=0.03)
    collapsed = zero_shot(images, np.ones((20, 16)), labels)
    assert collapsed.top1 == 0


@pytest.mark.parametrize(
    ("images", "classes", "labels", "words"),
    [
        ((3, 4), (2, 5), [0, 1, 0], "images have width 4 and classes 5"),
        ((3, 4), (2, 4), [0, 1], r"labels have shape \(2,\)"),
        ((3, 4), (2, 4), [0, 1, 2], "labels are 0 to 2, but there are 2 classes"),
        ((3, 4), (2, 4), [0, 1, -1], "labels are -1 to 1"),
        ((3, 4), (2, 4), [0.5, 1, 1], "needed is a class number per image"),
    ],
)
def test_what_does_not_fit_is_refused(images, classes, labels, words):
    with pytest.raises(ValueError, match=words):
        zero_shot(np.ones(images), np.ones(classes), labels)
