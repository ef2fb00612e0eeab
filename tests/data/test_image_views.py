import colorsys
import hashlib

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from platojax.data.augmentation import Augmentation, Transform, apply_transforms, augment
from platojax.data.images import image_size, open_image
from platojax.data.items import EMOJI_ARTISTS
from platojax.data.observations import resize
from platojax.data.scenes import Picture, Scene, load_emoji
from platojax.data.views import make_views
from tests.data.pictures import encode, pixels, turned

ENCODER = ConfigDict(dict(image_size=32))
PLAIN = (0.0, 0.0, 0.0, 0.0)


def make(name, **fields):
    return make_views(ConfigDict(dict(name=name, **fields)), ENCODER, None)


def scene_with(*pictures):
    return Scene("photo", pictures=tuple(Picture(source, content) for source, content in pictures))


def transform(size=32, extent=(64, 64), box=(0, 0, 64, 64), colours=None, **fields):
    return Transform(size, extent, box, **dict(flip=False) | fields, colours=colours)


def applied(image, **fields):
    height, width = image.shape[:2]
    one = transform(width, (width, height), (0, 0, width, height), **fields)
    return one.apply(Image.fromarray(image)).astype(float)


# ---- Policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("two_pictures", "8943f2f979e34b589c2977c419ab255b61cd0f58a62a2ca837367bd8a8c9424a"),
        ("two_crops", "2d6df6aaf1c19d0b4e03459b1740ea7fb6860b23cd626e0a2830d93e1c402a3f"),
    ],
)
def test_views_of_the_emoji_are_those_of_the_recorded_runs(name, digest):
    # As Pillow 13 decodes and resizes; another release may round in another way.
    views = make(name, sources=EMOJI_ARTISTS)
    found = hashlib.sha256()
    for i, scene in enumerate(load_emoji("train")):
        for epoch in range(3):
            found.update(views(scene, np.random.default_rng([i, epoch])).tobytes())
    assert found.hexdigest() == digest


def test_two_pictures_are_never_the_same_one():
    white, black = np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
    scene = scene_with(("a", white), ("b", black), ("other", black))
    views = make("two_pictures", sources=("a", "b"), jitter=(0.1, 0.1, 0.1, 0.0))
    for seed in range(20):
        means = sorted(view.mean() for view in views(scene, np.random.default_rng(seed)))
        assert means[0] < 50
        assert means[1] > 200


@pytest.mark.parametrize("name", ["two_crops", "multi_crop"])
def test_crops_are_of_one_picture(name):
    white, black = np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
    scene = scene_with(("a", white), ("b", black))
    fields = dict(local_size=8, solarise=0.0) if name == "multi_crop" else {}
    views = make(name, jitter=(0.1, 0.1, 0.1, 0.0), **fields)
    seen = set()
    for seed in range(20):
        means = [view.mean() for part in views(scene, np.random.default_rng(seed)) for view in part]
        assert max(means) - min(means) < 100
        seen.add(np.mean(means) > 127)
    assert seen == {True, False}


def test_too_few_pictures_name_the_scene_and_what_it_has():
    scene = scene_with(("coco", pixels()))
    with pytest.raises(ValueError, match=r"scene photo has .*1 of the 2 pictures.*\['coco'\]"):
        make("two_pictures")(scene, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"0 of the 1 pictures"):
        make("two_crops", sources=("flickr",))(scene, np.random.default_rng(0))


def test_encoded_pictures_are_decoded_when_a_view_takes_them():
    image = pixels()
    scene = scene_with(("a", encode(image, "PNG")))
    same = scene_with(("a", image))
    for name, fields in (("two_crops", {}), ("multi_crop", dict(local_size=16))):
        views = make(name, **fields)
        for one, two in zip(
            views(scene, np.random.default_rng(1)),
            views(same, np.random.default_rng(1)),
            strict=True,
        ):
            np.testing.assert_array_equal(one, two)
    broken = scene_with(("a", encode(image)[:300]))
    with pytest.raises(ValueError, match="cannot be read as an image"):
        make("two_crops")(broken, np.random.default_rng(0))


def test_local_views_show_less_than_global_ones():
    ramp = np.zeros((64, 64, 3), np.uint8)
    ramp[...] = (np.arange(64) * 4)[None, :, None]
    plain = dict(jitter=PLAIN, grey=0.0, blur=0.0, solarise=0.0)
    views = make("multi_crop", local_size=16, **plain)

    def shown(view):  # of the width
        return (int(view.max()) - int(view.min())) / 252

    for seed in range(30):
        large, small = views(scene_with(("a", ramp)), np.random.default_rng(seed))
        assert all(0.42 < shown(view) <= 1 for view in large)  # sqrt(.3 x 3/4) = .47
        assert all(0.14 < shown(view) < 0.66 for view in small)  # sqrt(.05 x 3/4) to sqrt(.3 x 4/3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(jitter=(0.2, 0.2, 0.2)), "views.jitter must be the strengths"),
        (dict(jitter=(0.2, 0.2, 0.2, 3.0)), "views.jitter must be the strengths"),
        (dict(blur=1.5), "views.blur is a probability"),
        (dict(min_scale=0.0), "crops take from 0 to 1 of the area"),
        (dict(min_scale=1.2), "crops take from 1.2 to 1 of the area"),
    ],
)
def test_impossible_augmentations_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        make("two_crops", **fields)


def test_multi_crop_needs_views_of_both_sizes():
    with pytest.raises(ValueError, match=r"views.num_local must be at least 1; got 0"):
        make("multi_crop", local_size=8, num_local=0)
    with pytest.raises(ValueError, match=r"views.local_size must be at least 1; got 0"):
        make("multi_crop", local_size=0)


# ---- Augmentation ------------------------------------------------------------------------------


def test_crops_lie_within_the_picture_and_keep_its_range():
    image = np.zeros((64, 96, 3), np.uint8)
    image[16:48, 16:48] = 200
    augmentation = Augmentation(32, 0.3, 1.0, PLAIN)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        one = augmentation.draw((96, 64), rng)
        left, top, right, bottom = one.box
        assert 0 <= left < right <= 96
        assert 0 <= top < bottom <= 64
        assert 0.25 < (right - left) * (bottom - top) / (96 * 64) <= 1
        view = augment(image, rng, [augmentation])[0]
        assert view.shape == (32, 32, 3)
        assert view.max() <= 201


def test_resize_of_the_whole_keeps_flat_colour():
    image = np.full((64, 48, 3), (10, 100, 200), np.uint8)
    np.testing.assert_array_equal(resize(image, 16), np.full((16, 16, 3), (10, 100, 200)))


def test_a_flip_swaps_left_and_right():
    image = pixels(64, 64)
    np.testing.assert_array_equal(applied(image, flip=True), applied(image)[:, ::-1])
    np.testing.assert_array_equal(applied(image), image)


def test_colours_change_as_their_definitions_say():
    image = pixels(64, 64).astype(float) * 0.4 + 60  # so that nothing is clipped
    image = image.astype(np.uint8)
    x = image.astype(float)
    mean, grey = x.mean(), x.mean(-1, keepdims=True)
    for colours, expected in (
        ((1.2, 1.0, 1.0, 0.0), x * 1.2),
        ((1.0, 0.7, 1.0, 0.0), (x - mean) * 0.7 + mean),
        ((1.0, 1.0, 0.3, 0.0), (x - grey) * 0.3 + grey),
        ((1.0, 1.0, 1.0, 1 / 3), x[..., [2, 0, 1]]),  # red becomes green
    ):
        np.testing.assert_allclose(applied(image, colours=colours), expected, atol=0.51)
    all_four = applied(image, colours=(1.1, 0.8, 0.9, 0.05))
    np.testing.assert_allclose(all_four.mean(), mean * 1.1, rtol=0.01)


def test_a_turn_of_the_hue_agrees_with_that_of_a_colour_wheel():
    reddish = np.full((8, 8, 3), (150, 110, 110), np.uint8)
    for turn in (-0.1, 0.05, 0.1):
        turned_by = applied(reddish, colours=(1.0, 1.0, 1.0, turn))[0, 0] / 255
        before = colorsys.rgb_to_hsv(*(reddish[0, 0] / 255))[0]
        after = colorsys.rgb_to_hsv(*turned_by)[0]
        assert (after - before + 0.5) % 1 - 0.5 == pytest.approx(turn, abs=0.02)


def test_grey_has_the_luma_and_no_colour():
    image = pixels(64, 64)
    grey = applied(image, grey=True)
    np.testing.assert_array_equal(grey[..., :1], grey[..., 1:2])
    luma = np.asarray(Image.fromarray(image).convert("L"))
    np.testing.assert_allclose(grey[..., 0], luma, atol=1)


def test_solarising_inverts_light_tones_alone():
    image = pixels(64, 64)
    expected = np.where(image >= 128, 255 - image, image)
    np.testing.assert_array_equal(applied(image, solarise=True), expected)


def test_a_blur_keeps_the_mean_and_takes_away_detail():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    blurred = applied(noise, blur=2.0)
    assert blurred.mean() == pytest.approx(noise.mean(), abs=1)
    assert blurred.std() < noise.std() / 4


def test_each_change_happens_as_often_as_it_should():
    augmentation = Augmentation(32, 0.3, 1.0, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.5, 0.2)
    rng = np.random.default_rng(0)
    drawn = [augmentation.draw((64, 64), rng) for _ in range(4000)]
    assert np.mean([one.flip for one in drawn]) == pytest.approx(0.5, abs=0.03)
    assert np.mean([one.colours is not None for one in drawn]) == pytest.approx(0.8, abs=0.03)
    assert np.mean([one.grey for one in drawn]) == pytest.approx(0.2, abs=0.03)
    assert np.mean([one.blur > 0 for one in drawn]) == pytest.approx(0.5, abs=0.03)
    assert np.mean([one.solarise for one in drawn]) == pytest.approx(0.2, abs=0.03)
    colours = np.array([one.colours for one in drawn if one.colours])
    np.testing.assert_allclose(colours.min(0), [0.6, 0.6, 0.8, -0.1], atol=0.01)
    np.testing.assert_allclose(colours.max(0), [1.4, 1.4, 1.2, 0.1], atol=0.01)


# ---- Decoding at less ---------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_decoded_at_no_more_than_is_needed(orientation):
    image = pixels(1600, 1200)
    source = turned(image, orientation)
    width, height = image_size(source)
    assert (width, height) == ((1600, 1200) if orientation == 1 else (1200, 1600))
    assert open_image(source).size == (width, height)
    assert open_image(source, at_least=(width // 4, height // 4)).size == (width // 4, height // 4)
    assert open_image(source, at_least=(width // 4 + 1, 1)).size == (width // 2, height // 2)
    # A view by way of the smaller picture shows the same.
    one = transform(64, (width, height), (100, 200, 1100, 1000))
    [view] = apply_transforms(source, [one])
    np.testing.assert_allclose(view, one.apply(open_image(source)).astype(float), atol=3)
    # The smallest crop of several says what is needed.
    small = transform(64, (width, height), (0, 0, 64, 64))
    first, _ = apply_transforms(source, [one, small])
    np.testing.assert_array_equal(first, one.apply(open_image(source)))
