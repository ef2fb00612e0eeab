"""Runs an experiment: `python -m platojax.main --config configs/NAME.py[:ARGUMENT]`."""

import contextlib
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from platojax import experiment
from platojax.distributed import join_processes
from platojax.train import Preempted

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment, a file in configs/.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where results go; runs/NAME of the config by default. Run again to go on."
)
_DISTRIBUTED = flags.DEFINE_boolean(
    "distributed", False, "This is one of several processes; see launch/README.md."
)
_TERMINATED = 143  # what a shell reports of a process that SIGTERM ended
_INTERRUPTED = 130  # and of one that SIGINT ended


def main(_: list[str]) -> None:
    """Runs the experiment that the flags name."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # orbax tells of every step of every save
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    default = pathlib.Path("runs") / pathlib.Path(path).name.replace(".py", "").replace(":", "-")
    try:
        if "://" in str(_WORKDIR.value):
            raise ValueError(
                f"--workdir {_WORKDIR.value} is an address; give a path, for a bucket the one "
                "where it is mounted."
            )
        if _DISTRIBUTED.value:
            join_processes()
        with _only_first_process_prints():
            experiment.run(_CONFIG.value, pathlib.Path(_WORKDIR.value or default))
    except Preempted as stop:
        print(f"Stopped: {stop}; the same command goes on from there.", file=sys.stderr)
        sys.exit(_TERMINATED)
    except (ValueError, OSError, ArithmeticError) as error:
        logging.debug("Where the error arose:", exc_info=True)
        print(f"Error: {error} (--verbosity=1 shows where.)", file=sys.stderr)
        _exit(2)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from the last checkpoint.", file=sys.stderr)
        _exit(_INTERRUPTED)
    except Exception:
        if not _DISTRIBUTED.value:
            raise
        traceback.print_exc()
        _exit(1)


def _parse_flags(arguments: list[str]) -> list[str]:
    """As absl's runner does, and with a line where an override names no field of the config."""
    try:
        return app.parse_flags_with_usage(arguments)
    except (AttributeError, KeyError) as error:
        # What ml_collections raises then; without overrides it is a mistake in the config file.
        if not any(re.match(r"--?(no)?config\.", argument) for argument in arguments):
            raise
        cause = error.args[0].args[0] if isinstance(error.args[0], KeyError) else error.args[0]
        print(f"Error: --config has no such field: {' '.join(str(cause).split())}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def _only_first_process_prints() -> Iterator[None]:
    """Silences the standard output of the others; what goes wrong in them stays visible."""
    if not _DISTRIBUTED.value or jax.process_index() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _exit(code: int) -> NoReturn:
    # Python's own exit would wait minutes for the other processes, which wait for this one; and
    # what a failed save left in its threads would be printed over the error.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=_parse_flags)
