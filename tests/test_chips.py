import pytest

from platojax.chips import CHIPS, find_chip


@pytest.mark.parametrize(
    ("kind", "name"),
    [("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v4", "v4"), ("NVIDIA H200", "H200")],
)
def test_a_device_is_found_by_what_jax_calls_it(kind, name):
    assert find_chip(kind) is CHIPS[name]


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 PCIe", "NVIDIA H200 MIG 1g.18gb", "TPU v9"])
def test_a_chip_whose_peak_is_not_known_is_not_guessed(kind):
    assert find_chip(kind) is None


def test_a_tpu_makes_one_float32_product_of_six_at_the_highest_precision():
    chip = CHIPS["v5e"]
    assert chip.peak("bfloat16") == chip.peak("float32") == 6 * chip.peak("float32", "highest")
    assert CHIPS["H100"].peak("float32", "highest") == 67e12


@pytest.mark.parametrize(
    ("name", "both_directions"), [("v4", 600e9), ("v5e", 400e9), ("v5p", 1200e9), ("v6e", 800e9)]
)
def test_links_add_up_to_the_published_bandwidth_of_a_chip(name, both_directions):
    chip = CHIPS[name]
    assert 2 * chip.links * chip.link_bandwidth == both_directions
