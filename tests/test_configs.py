import importlib.util
import pathlib

import jax
import numpy as np
import pytest

from platojax.arm import make_arm
from platojax.data.pipeline import stack_views
from platojax.data.scenes import load_emoji
from platojax.data.views import make_views
from platojax.experiment import evaluation_items
from platojax.runs import resolve_runs
from tests import tiny

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / "configs").glob("*.py"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", ["", "runlocal"])
def test_every_arm_of_every_config_builds(path, form):
    config = load(path)(form)
    config.lock()
    tokenizer = tiny.tokenizer()
    scenes = load_emoji("heldout")
    for run in resolve_runs(config):
        views = make_views(run.config.views, run.config.encoder, tokenizer)
        rng = np.random.default_rng(0)
        for scene in scenes:  # every policy must find in every scene what it needs
            one = views(scene, rng)
        arm = make_arm(run.config, tokenizer)
        params = jax.eval_shape(arm.init, jax.random.key(0), stack_views([one]))
        loss, _ = jax.eval_shape(arm.loss, params, stack_views([one]), jax.random.key(0))
        assert loss.shape == ()
    items = evaluation_items(config.evaluation, scenes[:2])
    assert len(items.texts) == len(items.images) == 2


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_unknown_argument_is_refused(path):
    with pytest.raises(ValueError, match="got 'fast'"):
        load(path)("fast")


def test_only_the_views_differ_between_good_and_bad_and_only_the_objective_for_next_token():
    runs = {run.name: run.config.to_dict() for run in resolve_runs(load(CONFIGS[0])(""))}
    good = runs["text_good-seed0"]
    for name, fields in (
        ("text_bad-seed0", {"views", "label"}),
        ("text_next_token-seed0", {"objective", "label"}),
    ):
        assert {field for field in good if good[field] != runs[name][field]} == fields
