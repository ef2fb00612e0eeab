import dataclasses

import jax
import numpy as np
import pytest

from platojax.arm import make_arm
from platojax.data.items import load_items
from platojax.evaluation.calibration import calibrate
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import read_features
from platojax.evaluation.monitor import load_monitor
from platojax.run_encoder import make_run_encoder
from tests import tiny

PROTOCOL = dict(metric="mutual_knn", k=10, clip="none", num_permutations=19, seed=0)
ITEMS = load_items("emoji:heldout")


@pytest.fixture(scope="module")
def encoder():
    config = tiny.arm_config()
    made = make_run_encoder("words", config, tiny.tokenizer(), params={})
    views = np.zeros((2, 1, 12), np.int32)
    params = make_arm(config, tiny.tokenizer()).init(jax.random.key(0), views)
    return made.at(0, params, ("embedding",))


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "words"
    extract(dataclasses.replace(encoder, layers=("block_0", "embedding")), ITEMS, path)
    return path


def test_scores_are_those_of_the_cached_features(encoder, folder):
    values = load_monitor(ITEMS, [str(folder)], PROTOCOL)(encoder, pytest.fail)
    features = read_features(folder).features
    want = calibrate(features[:, 1:], features, **PROTOCOL)
    assert values == {
        "words/score": want.score,
        "words/chance": want.chance,
        "words/p_value": want.p_value,
        "words/calibrated": want.calibrated,
        "score": want.score,
    }
    assert want.score == 1


def test_what_fails_is_told_and_the_other_targets_are_scored(encoder, folder):
    monitor = load_monitor(ITEMS, [str(folder)], PROTOCOL)
    targets = {"broken": np.full((304, 1, 4), np.nan, np.float32), **monitor.targets}
    messages = []
    values = dataclasses.replace(monitor, targets=targets)(encoder, messages.append)
    assert values["broken/failed"] == 1
    assert values["words/score"] == 1
    assert "score" not in values
    (message,) = messages
    assert "words, step 0 was not scored against broken: " in message


def test_an_encoder_that_fails_does_not_raise(encoder, folder):
    broken = dataclasses.replace(encoder, params={"encoder": {}})
    messages = []
    values = load_monitor(ITEMS, [str(folder)], PROTOCOL)(broken, messages.append)
    assert values == {"words/failed": 1.0}
    assert len(messages) == 1


def test_targets_of_other_items_or_none_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"monitor.targets is empty"):
        load_monitor(ITEMS, [], PROTOCOL)
    with pytest.raises(ValueError, match="not a feature folder"):
        load_monitor(ITEMS, [str(tmp_path)], PROTOCOL)
    with pytest.raises(ValueError, match=r"not of the 1080 items of monitor.data \(emoji:train\)"):
        load_monitor(load_items("emoji:train"), [str(folder)], PROTOCOL)
    with pytest.raises(ValueError, match="two folders named words"):
        load_monitor(ITEMS, [str(folder), str(folder)], PROTOCOL)
