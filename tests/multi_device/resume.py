"""Trains the tiny text arm in a folder up to a step, over all devices (parameters split over 4)."""

import os
import pathlib
import signal
import sys

import jax

from platojax.data.scenes import load_emoji
from platojax.train import Hooks, Preempted, train
from tests import tiny


def main(folder: str, stop_at: int) -> None:
    config = tiny.arm_config(mesh=dict(data=-1, fsdp=4 if jax.device_count() > 1 else 1, model=1))
    first: list[int] = []

    def on_progress(report):
        first.append(report.step)
        if report.step == stop_at - 1:  # the loop is one step ahead of its reports
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(
            config,
            load_emoji("train")[:40],
            tiny.tokenizer(),
            pathlib.Path(folder),
            Hooks(on_progress=on_progress, on_message=print),
        )
    except Preempted as stop:
        print(stop)
    print(f"went on at step {first[0] - 1} on {jax.device_count()} devices")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
