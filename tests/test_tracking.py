import json
import struct

import pytest

from platojax.tracking import (
    CollapseAlarm,
    MetricsFile,
    check_trackers,
    open_trackers,
    read_jsonl,
)


def test_goes_on_after_the_last_step_and_never_repeats_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, last_step=0)
    for step in (1, 2, 3):
        file.write(step, {"loss": step / 2})
    file.close()
    file = MetricsFile(path, last_step=2)
    file.write(3, {"loss": 9.0})
    file.close()
    assert [(row["step"], row["loss"]) for row in read_jsonl(path)] == [
        (1, 0.5),
        (2, 1.0),
        (3, 9.0),
    ]


def test_values_that_json_does_not_know_become_null(tmp_path):
    file = MetricsFile(tmp_path / "m.jsonl", last_step=0)
    file.write(1, {"loss": float("nan"), "norm": float("inf"), "rate": 0.5})
    file.close()
    (line,) = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "norm": None,
        "rate": 0.5,
    }


def test_a_cut_last_line_is_left_out_and_an_inner_one_refused(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2')
    assert read_jsonl(path) == [{"step": 1}]
    path.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 1 is no row"):
        read_jsonl(path)


def test_alarm_needs_patience_and_rings_once():
    alarm = CollapseAlarm(min_spread=0.1, min_effective_rank=2.0, patience=2, stop=False)
    well, flat, line = (
        {"spread": spread, "effective_rank": rank} for spread, rank in ((1, 9), (0.01, 9), (1, 1.2))
    )
    rings = [alarm.check(i, row) for i, row in enumerate([flat, well, flat, line, line, line])]
    assert [i for i, message in enumerate(rings) if message] == [3]
    assert "at step 3" in rings[3]


def test_unknown_trackers_and_missing_libraries_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"trackers must be among .*; got 'mlflow'"):
        check_trackers(["mlflow"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'platojax\[wandb\]'"):
        check_trackers(["wandb"])


def test_tensorboard_hides_what_a_killed_run_wrote_after_its_checkpoint(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for last_step, steps in ((0, (1, 2, 3)), (2, (3,))):
        (tracker,) = open_trackers(["tensorboard"], tmp_path, last_step=last_step)
        for step in steps:
            tracker.write(step, {"loss": float(step)})
        tracker.close()
    (first,) = (tmp_path / "tensorboard").glob("*.from0")
    (second,) = (tmp_path / "tensorboard").glob("*.from2")
    assert losses(read_events(first, event_pb2)) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    resumed = read_events(second, event_pb2)
    # TensorBoard drops all older events from the step of a START on.
    starts = [e for e in resumed if e.session_log.status == event_pb2.SessionLog.START]
    assert [start.step for start in starts] == [3]
    assert resumed.index(starts[0]) < min(i for i, e in enumerate(resumed) if e.summary.value)
    assert losses(resumed) == [(3, 3.0)]


def read_events(path, event_pb2):
    """The events of a file of TFRecords: length, its checksum, data, checksum of the data."""
    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        events.append(event_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return events


def losses(events):
    return [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "loss"]


def test_wandb_goes_on_with_the_same_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids = []
    for step in (1, 2):
        (tracker,) = open_trackers(["wandb"], tmp_path, last_step=step - 1)
        ids.append(wandb.run.id)
        tracker.write(step, {"loss": 0.5})
        tracker.write(step, {"samples_per_second": 3.0})
        tracker.close()
    assert ids[0] == ids[1] == (tmp_path / "wandb_id").read_text()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
