"""configs/web.py, from raw files to trained encoders; and what it says of good views."""

import pathlib

import pytest
from absl import flags
from typer.testing import CliRunner

from platojax import experiment
from platojax.cli import app
from platojax.commands.config_file import load_config
from platojax.tracking import read_jsonl

ROOT = pathlib.Path(__file__).parents[1]
WORDS = ["bus", "cat", "tree", "house", "river", "dog", "lamp", "bird", "boat", "door"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    lines = [
        f"a {WORDS[i % 10]} near a {WORDS[i // 10]}, no {i}\thttp://x.org/{i}.jpg"
        for i in range(100)
    ]
    (folder / "web.tsv").write_text("\n".join(lines), encoding="utf-8")
    for command in (
        ["web", folder / "web.tsv", "--out", folder / "web"],
        ["tokenizer", folder / "web", "--vocab-size", 300, "--out", folder / "web.model"],
    ):
        result = CliRunner().invoke(app, ["prepare", *map(str, command)])
        assert result.exit_code == 0, result.output
    config = load_config(f"{ROOT}/configs/web.py:runlocal", ())
    config.data.folder, config.data.tokenizer = str(folder / "web"), str(folder / "web.model")
    config.data.vocabulary.vocab_size = 300
    for arm in config.arms.values():
        assert "text" not in arm  # arms share what `config.text` says
    config.text.num_samples, config.text.batch_size, config.text.log_every = 32, 16, 1
    config.text.encoder.update(dict(width=16, depth=1, num_heads=2, mlp_dim=32, max_length=16))
    return config


def test_good_views_of_single_captions_are_refused_before_the_first_step(config, tmp_path):
    config = config.copy_and_resolve_references()
    config.arms.bad_mask.views = dict(name="two_texts")
    with pytest.raises(ValueError, match=r"100 of 100 scenes of train cannot give the views"):
        experiment.run(config, tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_all_arms_train(config, tmp_path):
    flags.FLAGS.mark_as_parsed()
    experiment.run(config, tmp_path / "work")
    for arm in config.arms:
        (folder,) = (tmp_path / "work").glob(f"{arm}*")
        assert [line["step"] for line in read_jsonl(folder / "metrics.jsonl")] == [1, 2]
