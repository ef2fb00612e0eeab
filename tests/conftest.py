import os

import pytest
from absl import flags


def pytest_configure():
    # Grain's worker processes read absl flags, which only absl's own runner parses.
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
    """Tests and the processes they start compile each program once."""
    import jax

    folder = str(tmp_path_factory.mktemp("compilation_cache"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
