"""The launcher of local processes, with programs that need no JAX."""

import pathlib
import signal
import subprocess
import sys
import textwrap
import time

LOCAL = pathlib.Path(__file__).parents[2] / "launch" / "local.py"


def start(processes, program, *options):
    command = [sys.executable, LOCAL, str(processes), *options, "--"]
    return subprocess.Popen(
        [*command, sys.executable, "-u", "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_each_process_knows_its_place_and_its_lines_are_marked():
    code, out, err = finish(
        3,
        """
        import os, sys
        names = "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "NUM_CPU_DEVICES", "PLATFORMS"
        print(*(os.environ["JAX_" + name] for name in names))
        print("to the other stream", file=sys.stderr)
        """,
        "--cpu-devices",
        "2",
    )
    assert code == 0, err
    lines = sorted(out.splitlines())
    address = lines[0].split()[1]
    assert address.startswith("localhost:")
    assert lines == [f"[{i}] {address} 3 {i} 2 cpu" for i in range(3)]
    assert sorted(err.splitlines()) == [f"[{i}] to the other stream" for i in range(3)]


def test_when_one_fails_the_others_end_and_its_code_is_returned():
    began = time.monotonic()
    code, out, err = finish(
        3,
        """
        import os, sys, time
        if os.environ["JAX_PROCESS_ID"] == "1":
            print("Error: broken", file=sys.stderr)
            sys.exit(7)
        time.sleep(50)
        print("waited in vain")
        """,
    )
    assert code == 7
    assert err == "[1] Error: broken\n"
    assert out == ""
    assert time.monotonic() - began < 40


def test_a_process_that_a_signal_ends_counts_as_failed():
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert finish(2, program)[0] == 128 + signal.SIGKILL


def test_a_signal_reaches_all_once_and_each_may_end_in_its_own_time():
    process = start(
        2,
        """
        import os, signal, sys, time
        received = []
        signal.signal(signal.SIGTERM, lambda *_: received.append(1))
        print("ready")
        while not received:
            time.sleep(0.01)
        time.sleep(0.5 + float(os.environ["JAX_PROCESS_ID"]))
        print("saved after", len(received))
        sys.exit(143)
        """,
    )
    assert {process.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == ["[0] saved after 1", "[1] saved after 1"], err
    assert process.returncode == 143


def test_no_process_is_refused():
    code, _, err = finish(0, "")
    assert code == 2
    assert "processes must be at least 1; got 0" in err
