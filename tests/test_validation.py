import pytest
from ml_collections import ConfigDict

from platojax import experiment
from platojax.data.preparation import write_prepared
from platojax.data.raw.scene import RawScene
from platojax.data.scenes import Text
from tests import tiny


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text.batch_size", 0, "text_good: batch_size must be at least 1; got 0"),
        ("image.num_samples", -5, "image_good: num_samples must be at least 1; got -5"),
        ("text.num_samples", 7, "num_samples 7 is less than one batch of batch_size 8"),
        ("text.log_every", 0, "log_every must be at least 1; got 0"),
        (
            "text.packing",
            dict(group_size=3, rows=2, row_length=18),
            r"must be a multiple of \d+: mesh.data \d .* x packing.group_size 3. Set it to \d+",
        ),
        ("text.packing.rows", 3, "packing.group_size must be at least 1 .* got 0"),
        (
            "text.accumulation_steps",
            3,
            "must be a multiple of .* x accumulation_steps 3. Set it to",
        ),
        ("text.accumulation_steps", 0, "accumulation_steps must be at least 1; got 0"),
        ("text.encoder.depth", 0, "encoder.depth must be at least 1; got 0"),
        ("text.encoder.num_heads", 3, "width 16 is not a multiple of num_heads 3"),
        ("text.encoder.max_length", 2, "encoder.max_length must be at least 3"),
        ("image.encoder.image_size", 15, "15 x 15 pixels are not a whole number of patches of 8"),
        ("text.mesh.fsdp", 3, "mesh.fsdp 3 x .* divide the"),
        ("text.optimizer.learning_rate", float("nan"), "learning_rate must be positive and finite"),
        ("text.optimizer.warmup_fraction", 2.0, "warmup_fraction must lie in"),
        ("arms.text_good.objective.lam", 2.0, "lam must lie in .* got 2.0"),
        ("arms.text_good.seeds", 0, "config.arms.text_good.seeds must be at least 1; got 0"),
        ("arms.text_good.views.name", "two_foo", "views.name must be one of .* got 'two_foo'"),
        ("arms.text_good.views.sources", ("cldr_en", "x"), "views.sources .'x'. are in no scene"),
        ("evaluation.artists", ("nobody",), "evaluation.artists .'nobody'. are in no scene"),
        ("seed", -1, r"seed must lie in \[0, 4.29497e\+09\); got -1"),
        ("text.num_workers", -1, r"num_workers must lie in \[0, inf\); got -1"),
        ("text.dtype", "float16", "dtype must be 'float32' or 'bfloat16'; got 'float16'"),
        ("text.optimizer.b2", 1.5, r"optimizer.b2 must lie in \[0, 1\); got 1.5"),
        ("text.optimizer.clip_norm", 0.0, "optimizer.clip_norm must lie in .* got 0"),
        ("text.optimizer.weight_decay", float("nan"), "optimizer.weight_decay must lie .* got nan"),
        ("text.collapse.patience", 0, "collapse.patience must lie in .* got 0"),
        ("arms.text_good.objective.num_slices", 0, "objective.num_slices must lie in .* got 0"),
        ("arms.text_good.objective.projector_hidden", (0,), "projector_hidden .* got 0"),
        ("arms.text_good.modality", "image", "views.sources .* are in no scene"),
        ("arms.text_good.views.sauces", 1, "a field is missing or of another type: .*'sauces'"),
        ("text.profile.steps", ("a", "b"), "profile.steps must be empty, or the first and"),
        ("text.trackers", ("mlflow",), "trackers must be among"),
        ("text.checkpoint.keep_every", 3, "keep_every 3 must be a multiple of checkpoint.every 2"),
        ("evaluation.k", 0, "k=0 must be an integer of at least 1"),
        ("evaluation.k", 304, "evaluation.k 304 must be less than the 304 held-out scenes"),
        ("evaluation.metric", "foo", "metric='foo' is unknown"),
        ("evaluation.num_permutations", 3, "num_permutations=3 cannot resolve"),
        ("evaluation.snapshots", (0.5, 1.5), r"lie in \[0, 1\]; got 1.5"),
    ],
)
def test_what_is_impossible_is_refused_before_the_workdir_is_touched(
    field, value, message, tmp_path
):
    config = tiny.experiment_config()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(ValueError, match=message):
        experiment.run(config, tmp_path / "workdir")
    assert not (tmp_path / "workdir").exists()


@pytest.fixture
def prepared_config(tmp_path):
    """Text arms on three scenes, of which one has a single text."""
    write_prepared(
        [
            RawScene(str(i), "train", tuple(Text("en", "en", f"caption {n}") for n in range(count)))
            for i, count in enumerate((5, 5, 1))
        ],
        tmp_path / "data",
        name="tiny",
        source={},
        settings={},
    )
    config = tiny.experiment_config()
    del config.arms.image_good
    del config.evaluation
    config.data = ConfigDict(
        dict(
            name="prepared",
            folder=str(tmp_path / "data"),
            train="train",
            tokenizer="emoji",
            vocabulary=dict(vocab_size=4000, pad_id=0),
            max_bad_fraction=0.0,
        )
    )
    for arm in config.arms.values():
        arm.views = ConfigDict(dict(name="two_texts"))
    return config


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "data.max_bad_fraction",
            0.3,
            r"text_good: 1 of 3 scenes of train cannot give the views, more than "
            r"data.max_bad_fraction 0.3: 1 have 1 of the 2 texts. scene 2 has 1",
        ),
        ("data.max_bad_fraction", 2.0, r"data.max_bad_fraction must lie in \[0, 1\); got 2.0"),
        ("data.max_bad_fraction", float("nan"), "data.max_bad_fraction must lie in .* got nan"),
        ("arms.text_good.views.sources", ("de",), r"views.sources \['de'\] are in no scene"),
        ("arms.text_good.views.apart", "sauce", "views.apart must be one of .* got 'sauce'"),
        ("arms.text_good.views.name", "two_pictures", "3 have 0 of the 2 pictures"),
        (
            "evaluation",
            dict(k=3),
            "config.evaluation compares on the emoji, and data.name is 'prep",
        ),
    ],
)
def test_prepared_data_that_does_not_suit_is_refused_before_the_workdir_is_touched(
    prepared_config, tmp_path, field, value, message
):
    config = prepared_config
    if field == "evaluation":
        config.evaluation = ConfigDict(value)
    elif isinstance(value, tuple):
        config.arms.text_good.views.sources = value
    elif field == "arms.text_good.views.apart":
        config.arms.text_good.views.apart = value
    else:
        config.update_from_flattened_dict({field: value})
    if field.endswith("views.name"):
        config.arms.text_good.modality = "image"
    with pytest.raises(ValueError, match=message):
        experiment.run(config, tmp_path / "workdir")
    assert not (tmp_path / "workdir").exists()
