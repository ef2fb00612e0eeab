from absl import flags


def pytest_configure():
    # Grain's worker processes read absl flags, which only absl's own runner parses.
    flags.FLAGS.mark_as_parsed()
