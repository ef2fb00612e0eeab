"""Runs an experiment: `python -m platojax.main --config configs/NAME.py[:ARGUMENT]`."""

import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from platojax import experiment
from platojax.train import Preempted

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment, a file in configs/.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where results go; runs/NAME of the config by default. Run again to go on."
)
_TERMINATED = 143  # what a shell reports of a process that SIGTERM ended


def main(_: list[str]) -> None:
    """Runs the experiment that the flags name."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # orbax tells of every step of every save
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    default = pathlib.Path("runs") / pathlib.Path(path).name.replace(".py", "").replace(":", "-")
    try:
        experiment.run(_CONFIG.value, pathlib.Path(_WORKDIR.value or default))
    except Preempted as stop:
        print(f"Stopped: {stop}; the same command goes on from there.", file=sys.stderr)
        sys.exit(_TERMINATED)
    except (ValueError, OSError, FloatingPointError) as error:
        logging.debug("Where the error arose:", exc_info=True)
        print(f"Error: {error} (--verbosity=1 shows where.)", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    app.run(main)
