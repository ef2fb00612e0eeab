"""Trains the tiny text arm in a folder, as one process or as one of several.

Beside the run, each process leaves what its first batches were, `batches_PROCESS.npy`, and the
first one the final parameters, `params.npz`.
"""

import os
import pathlib
import signal
import sys

import jax
import numpy as np

from platojax import processes, sharding
from platojax.data.pipeline import make_pipeline
from platojax.data.recap import SOURCES, RecapScenes
from platojax.data.scenes import load_emoji
from platojax.data.views import make_views
from platojax.distributed import join_processes
from platojax.train import Hooks, Preempted, train
from tests import tiny


def main(folder: str, files: str, stop_at: int) -> None:
    """Trains on emoji, or on `files` where that is not empty; stops at a step but for 0."""
    if "JAX_NUM_PROCESSES" in os.environ:
        join_processes()
    config = tiny.arm_config()
    scenes = load_emoji("train")[:40]
    if files:
        scenes = RecapScenes.find(files, open_files=2, window=10)
        config.views.sources = SOURCES
    process = jax.process_index()
    batches = make_pipeline(
        scenes,
        make_views(config.views, config.encoder, tiny.tokenizer()),
        batch_size=config.batch_size,
        seed=config.seed,
        process_index=process,
        process_count=jax.process_count(),
    )
    made = np.stack([next(batches) for _ in range(6)])
    batches.close()
    np.save(pathlib.Path(folder) / f"batches_{process}.npy", made)

    def on_progress(report):
        if report.step == stop_at and process == jax.process_count() - 1:  # the others hear of it
            os.kill(os.getpid(), signal.SIGTERM)

    def keep(step, params):
        whole = processes.to_host(params, sharding.make_mesh(**config.mesh))
        if process == 0:
            leaves = jax.tree_util.tree_leaves_with_path(whole)
            named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
            np.savez(pathlib.Path(folder) / "params.npz", **named)

    try:
        train(
            config,
            scenes,
            tiny.tokenizer(),
            pathlib.Path(folder),
            Hooks(on_progress=on_progress, on_message=print, snapshots=(6,), on_snapshot=keep),
        )
    except Preempted as stop:
        print(f"process {process}: {stop}")
    print(f"process {process} of {jax.process_count()} ends on {jax.device_count()} devices")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
