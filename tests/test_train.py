import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax import sharding
from platojax import train as train_module
from platojax.checkpoint import Checkpoints
from platojax.chips import CHIPS
from platojax.data.scenes import load_emoji
from platojax.model_flops import model_flops
from platojax.program import make_program
from platojax.tracking import read_jsonl
from platojax.train import Collapsed, Hooks, Preempted, train
from tests import tiny

SCENES = load_emoji("train")[:40]
SCORES = {1: 0.1, 2: 0.9, 3: 0.3, 4: 0.2, 5: 0.2, 6: 0.1}


class Watcher:
    """Keeps what the loop tells; `stop_at` sends SIGTERM when that step is logged."""

    def __init__(self, stop_at=None):
        self.snapshots, self.reports, self.messages, self.evaluations = {}, [], [], []
        self.stop_at = stop_at

    def evaluate(self, step, params):
        self.evaluations.append(step)
        return {"score": SCORES[step]}

    def on_snapshot(self, step, params):
        self.snapshots[step] = jax.device_get(params)

    def on_progress(self, report):
        self.reports.append(report)
        if report.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_message(self, message):
        self.messages.append(message)


def run(config, folder, *, snapshots=(0, 3, 6), evaluations=(), stop_at=None, hooks=None):
    hooks = hooks or Watcher(stop_at)
    train(
        config,
        SCENES,
        tiny.tokenizer(),
        folder,
        Hooks(
            on_progress=hooks.on_progress,
            on_message=hooks.on_message,
            snapshots=snapshots,
            on_snapshot=hooks.on_snapshot,
            evaluations=evaluations,
            evaluate=hooks.evaluate,
        ),
    )
    return hooks


def state_of(folder, step):
    """All arrays of a checkpoint, as numpy."""
    import orbax.checkpoint as ocp

    restored = ocp.StandardCheckpointer().restore(folder / "checkpoints" / str(step) / "state")
    restored["key"] = jax.random.key_data(restored["key"])
    return jax.device_get(restored)


@pytest.mark.parametrize("arm", ["image_good", "text_good", "text_next_token"])
def test_every_arm_trains_and_tells_all_it_should(arm, tmp_path):
    hooks = run(tiny.arm_config(arm), tmp_path)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["samples"] for row in rows] == [8, 16, 24, 32, 40, 48]
    health = {"spread", "effective_rank", "covariance_off_diagonal"}
    optimization = {"gradient_norm", "update_norm", "parameter_norm", "clipping_rate"}
    parts = {"perplexity"} if arm == "text_next_token" else {"prediction", "sigreg"}
    tokens = set() if arm == "image_good" else {"tokens"}
    expected = {"loss", "learning_rate", "skipped"} | health | optimization | parts | tokens
    for row in rows:
        assert row.keys() >= expected
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert sorted(hooks.snapshots) == [0, 3, 6]
    assert [report.samples for report in hooks.reports] == [8, 16, 24, 32, 40, 48]


def test_training_lowers_the_loss(tmp_path):
    config = tiny.arm_config(num_samples=8 * 60)
    config.optimizer.learning_rate = 1e-2
    run(config, tmp_path, snapshots=())
    losses = [row["loss"] for row in read_jsonl(tmp_path / "metrics.jsonl")]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_sigterm_saves_and_the_same_call_goes_on_bit_for_bit(tmp_path):
    config = tiny.arm_config()
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Preempted, match=r"stopped is saved at step \d of 6"):
        run(config, tmp_path / "stopped", stop_at=2)
    kept = read_jsonl(tmp_path / "stopped" / "metrics.jsonl")
    assert 0 < len(kept) < 6
    resumed = run(config, tmp_path / "stopped")
    for name in ("metrics.jsonl",):
        one, two = ((tmp_path / f / name).read_bytes() for f in ("whole", "stopped"))
        assert one == two
    jax.tree.map(
        np.testing.assert_array_equal,
        state_of(tmp_path / "whole", 6),
        state_of(tmp_path / "stopped", 6),
    )
    jax.tree.map(np.testing.assert_array_equal, whole.snapshots[6], resumed.snapshots[6])


def test_sigterm_during_the_last_step_is_not_forgotten(tmp_path):
    class StopAtEnd(Watcher):
        def on_snapshot(self, step, params):
            super().on_snapshot(step, params)
            if step == 6:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted, match="saved at step 6 of 6"):
        run(tiny.arm_config(), tmp_path, hooks=StopAtEnd())
    assert state_of(tmp_path, 6)["step"] == 6
    assert not run(tiny.arm_config(), tmp_path).reports


def test_a_finished_arm_is_not_trained_again(tmp_path):
    run(tiny.arm_config(), tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    hooks = run(tiny.arm_config(), tmp_path)
    assert not hooks.reports
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_lines_after_the_last_checkpoint_are_dropped(tmp_path):
    config = tiny.arm_config()
    run(config, tmp_path / "whole")
    with pytest.raises(Preempted):
        run(config, tmp_path / "killed", stop_at=2)
    # A kill -9 leaves lines of steps that no checkpoint holds, the last one perhaps cut short.
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "loss": 123.0}) + "\n" + '{"step": 6, "lo')
    run(config, tmp_path / "killed")
    whole, killed = ((tmp_path / f / "metrics.jsonl").read_bytes() for f in ("whole", "killed"))
    assert whole == killed


@pytest.mark.parametrize("field", ["tokenizer", "scenes"])
def test_a_checkpoint_refuses_what_would_change_its_batches(tmp_path, field):
    config = tiny.arm_config()
    with pytest.raises(Preempted):
        run(config, tmp_path, stop_at=2)
    _replace_meta(tmp_path, **{field: "of another run"})
    with pytest.raises(ValueError, match=rf"was made with {field} .*start in another --workdir"):
        run(config, tmp_path)


def test_same_seed_same_run_other_seed_other_run(tmp_path):
    seeds = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tiny.arm_config(seed=seed), tmp_path / name)
        seeds[name] = (tmp_path / name / "metrics.jsonl").read_bytes()
    assert seeds["a"] == seeds["b"] != seeds["c"]


def test_collapse_raises_one_alarm(tmp_path):
    config = tiny.arm_config()
    config.collapse.update(min_spread=100.0, min_effective_rank=1.0)
    hooks = run(config, tmp_path)
    assert len(hooks.messages) == 1
    assert "at step 2 the embedding's spread is" in hooks.messages[0]
    assert "objective.lam" in hooks.messages[0]


def test_lost_metrics_are_told(tmp_path):
    with pytest.raises(Preempted):
        run(tiny.arm_config(), tmp_path, stop_at=2)
    (tmp_path / "metrics.jsonl").unlink()
    (message,) = run(tiny.arm_config(), tmp_path).messages
    assert "metrics.jsonl is lost: it has no row up to step" in message


def test_a_resumed_run_raises_the_alarm_at_the_same_step(tmp_path):
    config = tiny.arm_config()
    config.collapse.update(min_spread=100.0, min_effective_rank=1.0, patience=4)
    (whole,) = run(config, tmp_path / "whole").messages
    with pytest.raises(Preempted):
        run(config, tmp_path / "stopped", stop_at=2)
    assert run(config, tmp_path / "stopped").messages == [whole]
    assert "at step 4 " in whole


@pytest.mark.parametrize(
    "how",
    [
        {"objective.lam": 0.0, "optimizer.learning_rate": 0.01},
        {"optimizer.learning_rate": 30.0, "optimizer.warmup_fraction": 0.0},
    ],
    ids=["without SIGReg", "learning rate far too high"],
)
def test_a_real_collapse_is_caught_and_ends_the_run_where_configured(how, tmp_path):
    config = tiny.arm_config(num_samples=8 * 300)
    config.checkpoint.every = 100
    config.collapse.update(min_spread=0.05, min_effective_rank=1.5, patience=3, stop=True)
    config.update_from_flattened_dict(how)
    hooks = Watcher()
    with pytest.raises(Collapsed, match=r"is stopped. collapse: at step \d+ the embedding"):
        run(config, tmp_path, snapshots=(), hooks=hooks)
    assert len(hooks.messages) == 1
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["step"] < 300
    assert rows[-1]["spread"] < 0.05 or rows[-1]["effective_rank"] < 1.5


def test_the_same_training_does_not_collapse_by_default(tmp_path):
    config = tiny.arm_config(num_samples=8 * 300)
    config.checkpoint.every = 100
    config.collapse.update(min_spread=0.05, min_effective_rank=1.5, patience=3, stop=True)
    config.optimizer.learning_rate = 0.01
    assert not run(config, tmp_path, snapshots=()).messages


def test_evaluations_are_logged_and_never_repeated(tmp_path):
    config = tiny.arm_config()
    with pytest.raises(Preempted):
        run(config, tmp_path, evaluations=(1, 2, 4, 5), stop_at=3)
    resumed = run(config, tmp_path, evaluations=(1, 2, 4, 5))
    assert resumed.evaluations[0] >= 4
    rows = read_jsonl(tmp_path / "validation.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 4, 5]
    assert [row["score"] for row in rows] == [SCORES[step] for step in (1, 2, 4, 5)]
    assert rows[1]["samples"] == 16


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (dict(keep=2), {5, 6}),
        (dict(keep=1, keep_every=3), {3, 6}),
        (dict(keep=1, keep_best=1), {2, 6}),
        (dict(keep=1, keep_every=4, keep_best=2), {2, 3, 4, 6}),
    ],
)
def test_the_last_every_kth_and_the_best_checkpoints_are_kept(policy, kept, tmp_path):
    config = tiny.arm_config()
    config.checkpoint.update(every=1, **policy)
    with pytest.raises(Preempted):  # scores must outlive a restart
        run(config, tmp_path, evaluations=(1, 2, 3, 5), stop_at=3)
    run(config, tmp_path, evaluations=(1, 2, 3, 5))
    assert set(Checkpoints.to_read(tmp_path / "checkpoints").steps()) == kept


@pytest.mark.parametrize(
    "how", ["truncated", "corrupted", "single bits", "without metadata", "empty metadata"]
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(how, tmp_path):
    config = tiny.arm_config()
    run(config, tmp_path / "whole")
    with pytest.raises(Preempted):
        run(config, tmp_path / "hurt", stop_at=4)
    latest, before = Checkpoints.to_read(tmp_path / "hurt" / "checkpoints").steps()
    _damage(tmp_path / "hurt" / "checkpoints" / str(latest), how)
    hooks = run(config, tmp_path / "hurt")
    (message,) = hooks.messages
    assert f"/{latest} cannot be read" in message
    assert f"going on from step {before}" in message
    assert hooks.reports[0].step == before + 1
    assert (tmp_path / "hurt" / "checkpoints" / f"damaged-{latest}").is_dir()
    one, two = ((tmp_path / f / "metrics.jsonl").read_bytes() for f in ("whole", "hurt"))
    assert one == two


def test_a_checkpoint_under_another_steps_name_is_not_believed(tmp_path):
    with pytest.raises(Preempted):
        run(tiny.arm_config(), tmp_path, stop_at=3)
    steps = Checkpoints.to_read(tmp_path / "checkpoints").steps()
    shutil.copytree(tmp_path / "checkpoints" / str(steps[0]), tmp_path / "checkpoints" / "1000")
    hooks = run(tiny.arm_config(), tmp_path)
    assert f"1000 cannot be read (it holds step {steps[0]})" in hooks.messages[0]
    assert hooks.reports[-1].step == 6


def test_a_run_does_not_end_on_a_loss_that_is_not_finite(tmp_path, monkeypatch):
    real = train_module.make_program

    def breaks_at_the_end(*args):
        program = real(*args)

        def step(state, views):
            state, metrics = program.step(state, views)
            return state, metrics | {"loss": jnp.where(state.step == 6, jnp.nan, metrics["loss"])}

        return dataclasses.replace(program, step=jax.jit(step))

    monkeypatch.setattr(train_module, "make_program", breaks_at_the_end)
    with pytest.raises(FloatingPointError, match=r"the loss of the last step, 6, of .* is nan"):
        run(tiny.arm_config(), tmp_path)
    assert 6 not in Checkpoints.to_read(tmp_path / "checkpoints").steps()


def test_where_no_checkpoint_can_be_read_nothing_is_touched(tmp_path):
    config = tiny.arm_config()
    with pytest.raises(Preempted):
        run(config, tmp_path, stop_at=4)
    steps = Checkpoints.to_read(tmp_path / "checkpoints").steps()
    assert len(steps) == 2
    for step in steps:
        _damage(tmp_path / "checkpoints" / str(step), "truncated")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"cannot be read .* there is no other; delete"):
        run(config, tmp_path)
    assert Checkpoints.to_read(tmp_path / "checkpoints").steps() == steps
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_tensorboard_and_a_profile_are_written_on_request(tmp_path):
    pytest.importorskip("tensorboardX")
    config = tiny.arm_config()
    config.trackers = ("tensorboard",)
    config.profile.steps = (2, 3)
    run(config, tmp_path)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_many_updates_in_a_row_that_are_not_finite_stop_the_run(tmp_path):
    config = tiny.arm_config()
    config.optimizer.learning_rate = float("inf")
    with pytest.raises(
        FloatingPointError, match=r"in each of the steps \d to \d of .*learning_rate"
    ):
        run(config, tmp_path)


def test_utilisation_is_told_of_chips_whose_peak_is_known(tmp_path, monkeypatch):
    run(tiny.arm_config(), tmp_path / "unknown")
    rows = read_jsonl(tmp_path / "unknown" / "timing.jsonl")
    assert [row["step"] for row in rows] == [2, 3, 4, 5, 6]  # the first step is compilation
    assert all("model_flops_utilisation" not in row for row in rows)
    peak = 1e12
    chip = dataclasses.replace(CHIPS["H100"], fp32_flops=peak)
    monkeypatch.setattr(train_module, "find_chip", lambda kind: chip)
    run(tiny.arm_config(), tmp_path / "known")
    config = tiny.arm_config()
    views = jnp.zeros((2, 8, 12), jnp.int32)
    program = make_program(config, tiny.tokenizer(), views[:, :1], sharding.make_mesh())
    flops = model_flops(config, tiny.tokenizer(), program.state.params, views)
    for row in read_jsonl(tmp_path / "known" / "timing.jsonl"):
        want = flops * row["samples_per_second"] / 8 / peak / jax.device_count()
        assert row["model_flops_utilisation"] == pytest.approx(want)
        assert row["seconds_left"] >= 0
        assert row["tokens_per_second"] > row["samples_per_second"]


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoints_before(tmp_path):
    # A limit on the size of files fails as a full disk does: in the thread that writes.
    program = """
import pathlib, resource, signal, sys
from tests.test_train import Watcher, run
from tests import tiny

class FillsTheDisk(Watcher):
    def on_snapshot(self, step, params):
        if step == 5:  # the save of step 2 is over: that of step 4 waited for it
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

run(tiny.arm_config(), pathlib.Path(sys.argv[1]), snapshots=(5,), hooks=FillsTheDisk())
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
        timeout=200,
    )
    assert result.returncode == 1
    assert "OSError: " in result.stderr
    assert "cannot be written to" in result.stderr
    assert "Is the disk full?" in result.stderr
    assert 2 in Checkpoints.to_read(tmp_path / "checkpoints").steps()
    hooks = run(tiny.arm_config(), tmp_path)
    assert hooks.reports[0].step in (3, 5)
    run(tiny.arm_config(), tmp_path / "whole")
    one, two = ((f / "metrics.jsonl").read_bytes() for f in (tmp_path, tmp_path / "whole"))
    assert one == two


def _replace_meta(folder, **changes):
    for step in Checkpoints.to_read(folder / "checkpoints").steps():
        path = folder / "checkpoints" / str(step) / "meta" / "metadata"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _damage(step, how):
    """As a disk that was full or failed leaves it."""
    if how == "without metadata":
        shutil.rmtree(step / "meta")
        return
    if how == "empty metadata":
        (step / "meta" / "metadata").write_text("{}")
        return
    files = [path for path in (step / "state").rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "single bits":  # which no file format notices
        for i in range(0, len(content), len(content) // 30):
            content[i] ^= 1
    else:
        for i in range(0, len(content), 97):
            content[i] ^= 0xFF
    path.write_bytes(content)
