import json
import os
import signal

import jax
import numpy as np
import pytest

from platojax.checkpoint import Checkpoints
from platojax.data.scenes import load_emoji
from platojax.tracking import read_jsonl
from platojax.train import Preempted, train
from tests import tiny

SCENES = load_emoji("train")[:40]


class Hooks:
    """Keeps what the loop tells; `stop_at` sends SIGTERM when that step is logged."""

    def __init__(self, stop_at=None):
        self.snapshots, self.reports, self.alarms, self.stop_at = {}, [], [], stop_at

    def on_snapshot(self, step, params):
        self.snapshots[step] = jax.device_get(params)

    def on_progress(self, report):
        self.reports.append(report)
        if report.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_alarm(self, message):
        self.alarms.append(message)


def run(config, folder, *, snapshots=(0, 3, 6), stop_at=None, hooks=None):
    hooks = hooks or Hooks(stop_at)
    train(
        config,
        SCENES,
        tiny.tokenizer(),
        folder,
        snapshots=snapshots,
        on_snapshot=hooks.on_snapshot,
        on_progress=hooks.on_progress,
        on_alarm=hooks.on_alarm,
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
    health = {"spread", "effective_rank", "covariance_off_diagonal", "gradient_norm", "update_norm"}
    parts = {"perplexity"} if arm == "text_next_token" else {"prediction", "sigreg"}
    assert rows[0].keys() >= {"loss", "learning_rate", "skipped"} | health | parts
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
    class StopAtEnd(Hooks):
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


@pytest.mark.parametrize(
    ("field", "change"), [("num_workers", 1), ("tokenizer", None), ("scenes", None)]
)
def test_a_checkpoint_refuses_what_would_change_its_batches(tmp_path, field, change):
    config = tiny.arm_config()
    with pytest.raises(Preempted):
        run(config, tmp_path, stop_at=2)
    if change is None:
        _replace_meta(tmp_path, **{field: "of another run"})
    else:
        config.num_workers = change
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
    config.collapse = dict(min_spread=100.0, min_effective_rank=1.0, patience=2)
    hooks = run(config, tmp_path)
    assert len(hooks.alarms) == 1
    assert "at step 2 the embedding's spread is" in hooks.alarms[0]
    assert "objective.lam" in hooks.alarms[0]


def test_many_updates_in_a_row_that_are_not_finite_stop_the_run(tmp_path):
    config = tiny.arm_config()
    config.optimizer.learning_rate = float("inf")
    with pytest.raises(
        FloatingPointError, match=r"in each of the steps \d to \d of .*learning_rate"
    ):
        run(config, tmp_path)


def _replace_meta(folder, **changes):
    step = Checkpoints(folder / "checkpoints", every=2, keep=1).latest_step()
    path = folder / "checkpoints" / str(step) / "meta" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
