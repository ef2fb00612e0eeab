"""Starts N processes of one JAX program on this machine, as a pod would on N hosts.

    python launch/local.py 2 -- python -m platojax.main --distributed --config configs/emoji.py

Each process finds the others by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
Every line that they write is shown with its process's number. SIGTERM and SIGINT are passed on to
all, once. When one fails, the others are ended, and its exit code is the launcher's.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

_GRACE_SECONDS = 10  # between SIGTERM and SIGKILL, where another process has failed


def launch(command: Sequence[str], processes: int, environment: Mapping[str, str]) -> int:
    """Runs `processes` copies of a command to their end.

    Args:
      command: of each process.
      processes: how many.
      environment: of each process, to which the three variables are added.

    Returns:
      0, or the exit code of the first that failed: 128 + n where signal n ended it.
    """
    address = f"localhost:{_free_port()}"
    started: list[subprocess.Popen[bytes]] = []
    stop_requested = False

    def pass_on(signum: int, frame: Any) -> None:
        nonlocal stop_requested
        stop_requested = True
        _signal_all(started, signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, pass_on)
    readers = []
    for index in range(processes):
        process = subprocess.Popen(
            command,
            env={
                **environment,
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(processes),
                "JAX_PROCESS_ID": str(index),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C in a terminal would reach them a second time, which means "at once".
            start_new_session=True,
        )
        started.append(process)
        for stream, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            reader = threading.Thread(target=_show, args=(index, stream, out))
            reader.start()
            readers.append(reader)

    code = 0
    deadline: float | None = None
    while running := [process for process in started if process.poll() is None]:
        failed = next((process for process in started if process.returncode), None)
        if failed is not None and not code:
            code = _exit_code(failed)
            # Those that were told to stop are saving; the others would wait for the failed one.
            if not stop_requested:
                _signal_all(running, signal.SIGTERM)
                deadline = time.monotonic() + _GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            _signal_all(running, signal.SIGKILL)
        time.sleep(0.05)
    for reader in readers:
        reader.join()
    return code or next((_exit_code(p) for p in started if p.returncode), 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _signal_all(processes: Sequence[subprocess.Popen[bytes]], signum: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signum)


def _show(index: int, stream: IO[bytes], out: IO[str]) -> None:
    for line in stream:
        out.write(f"[{index}] {line.decode(errors='replace').rstrip()}\n")
        out.flush()


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def main() -> int:
    """Reads the arguments, and launches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("processes", type=int, help="how many processes")
    parser.add_argument(
        "--cpu-devices",
        type=int,
        metavar="D",
        help="run on CPUs, of which each process makes D devices",
    )
    parser.add_argument("command", nargs="+", help="after --, such as python -m platojax.main")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error(f"processes must be at least 1; got {arguments.processes}")
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"there is no program {arguments.command[0]!r}")
    environment = dict(os.environ)
    if arguments.cpu_devices is not None:
        environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(arguments.cpu_devices)}
    return launch(arguments.command, arguments.processes, environment)


if __name__ == "__main__":
    sys.exit(main())
