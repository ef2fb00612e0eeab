import importlib.util
import pathlib

import jax
import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags

from platojax import sharding
from platojax.arm import make_arm
from platojax.data.packing import Packing, make_packing
from platojax.data.pipeline import stack_views
from platojax.data.recap import SOURCES
from platojax.data.scenes import Picture, Scene, Text, load_emoji
from platojax.data.views import example_views, make_views
from platojax.experiment import evaluation_items
from platojax.program import make_program
from platojax.runs import resolve_runs
from tests import tiny
from tests.data import recap_files

FOLDER = pathlib.Path(__file__).parents[1] / "configs"
CONFIGS = sorted(FOLDER.glob("*.py"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def scenes_like_those_of(config):
    if config.data.name == "emoji":
        return load_emoji("heldout")
    if config.data.name == "prepared":
        captions = [Text(one, one, f"{one} caption {i}") for one in ("en", "de") for i in range(5)]
        photo = Picture("photo", np.zeros((80, 120, 3), np.uint8))
        return [Scene("1", texts=tuple(captions), pictures=(photo,))]
    pairs = [zip(SOURCES, recap_files.captions(i), strict=True) for i in range(20)]
    return [
        Scene(str(i), texts=tuple(Text(source, "", text) for source, text in pair))
        for i, pair in enumerate(pairs)
    ]


FORMS = [(path, form) for path in CONFIGS for form in ("", "runlocal")]


@pytest.mark.parametrize(
    ("path", "form"),
    [*FORMS, (FOLDER / "own.py", "images")],
    ids=lambda part: getattr(part, "stem", part),
)
def test_every_arm_of_every_config_builds(path, form):
    config = load(path)(form)
    config.lock()
    tokenizer = tiny.tokenizer()
    vocabulary = config.data.get("vocabulary") or tokenizer
    scenes = scenes_like_those_of(config)
    for run in resolve_runs(config):
        views = make_views(run.config.views, run.config.encoder, tokenizer)
        rng = np.random.default_rng(0)
        for scene in scenes:  # every policy must find in every scene what it needs
            one = views(scene, rng)
        program = make_program(run.config, vocabulary, stack_views([one]), sharding.make_mesh())
        _, metrics = jax.eval_shape(program.step, program.state, program.batch(64))
        assert metrics["loss"].shape == ()
    if config.data.name == "emoji":
        items = evaluation_items(config.evaluation, scenes[:2])
        assert len(items.texts) == len(items.images) == 2


def test_recap_has_109_million_parameters_and_940_million_samples():
    config = load(FOLDER / "recap_940m.py")("")
    prepared = load(FOLDER / "recap_940m.py")("prepared")
    assert prepared.data.name == "prepared"
    assert prepared.data.vocabulary == config.data.vocabulary
    assert (prepared.text, prepared.arms) == (config.text, config.arms)
    (run,) = resolve_runs(config)
    arm = make_arm(run.config, config.data.vocabulary)
    views = jax.ShapeDtypeStruct((2, 1, run.config.encoder.max_length), "int32")
    params = jax.eval_shape(arm.init, jax.random.key(0), views)
    count = sum(leaf.size for leaf in jax.tree.leaves(params["encoder"]))
    assert count == pytest.approx(109e6, rel=0.01)
    assert run.config.num_samples == 940_000_000
    assert run.config.batch_size == 16_384


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_saves_memory_and_padding_can_be_chosen_on_the_command_line(path):
    arguments = ["main", f"--config={path}:runlocal"]
    modalities = [name for name in ("text", "image") if name in load(path)("")]
    if "text" in modalities:
        packing = dict(group_size=8, rows=2, row_length=64)
        arguments += [f"--config.text.packing.{name}={value}" for name, value in packing.items()]
    arguments += [f"--config.{name}.encoder.remat=True" for name in modalities]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=arguments)
    values(arguments)
    for run in resolve_runs(values.config):
        expected = Packing(8, 2, 64) if run.config.modality == "text" else None
        assert make_packing(run.config) == expected
        arm = make_arm(run.config, tiny.tokenizer())
        views = example_views(run.config.views, run.config.encoder)
        params = jax.eval_shape(arm.init, jax.random.key(0), views)
        assert "remat" in str(jax.make_jaxpr(arm.per_scene)(params, views))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_unknown_argument_is_refused(path):
    with pytest.raises(ValueError, match="got 'fast'"):
        load(path)("fast")


@pytest.mark.parametrize(
    ("config", "good", "bad", "next_token"),
    [
        ("emoji", "text_good", ["text_bad"], "text_next_token"),
        (
            "multi30k",
            "good",
            ["bad_mask", "bad_spans", "bad_prefix", "german_good"],
            "next_token",
        ),
    ],
)
def test_only_the_views_differ_between_good_and_bad_and_only_the_objective_for_next_token(
    config, good, bad, next_token
):
    arms = {run.arm: run.config.to_dict() for run in resolve_runs(load(FOLDER / f"{config}.py")())}
    for arm in arms.values():
        del arm["optimizer"]["learning_rate"]  # which may be tuned for each
    for name, field in [*((name, "views") for name in bad), (next_token, "objective")]:
        different = {field for field in arms[good] if arms[good][field] != arms[name][field]}
        assert different - {"seed"} == {field, "label"}
