"""Joins the processes of one run."""

import os

import jax


def join_processes() -> None:
    """Connects this process with the others, before anything touches a device.

    TPU pods (TPU VMs and GKE), Slurm and Open MPI say themselves who the processes are. Elsewhere
    three environment variables do, which launch/local.py sets: JAX_COORDINATOR_ADDRESS
    (`host:port` of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Raises:
      ValueError: nothing says who the processes are, or they cannot be reached.
    """
    count, index = (
        int(value) if (value := os.environ.get(name)) else None
        for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    )
    try:
        jax.distributed.initialize(num_processes=count, process_id=index)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"--distributed found no other processes ({error}); start them with a launcher such "
            "as those in launch/, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
            "JAX_PROCESS_ID; leave --distributed out to train with one process."
        ) from error
