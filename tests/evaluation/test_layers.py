import pytest

from platojax.evaluation.layers import select_layers

NAMES = ("patches", "block_0", "block_1", "block_2", "final-norm", "3")


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("last", [5]),
        ("block_1", [2]),
        ("final-norm", [4]),
        ("block_*", [1, 2, 3]),
        ("*", [0, 1, 2, 3, 4, 5]),
        ("0", [0]),
        ("-2", [4]),
        ("1-3", [1, 2, 3]),
        ("2-2", [2]),
        ("3", [5]),  # a name goes before an index
        ("last, 0,block_2 ,-1,0", [5, 0, 3]),  # in the order of the choice, each once
    ],
)
def test_a_choice_in_words_becomes_indices(choice, layers):
    assert select_layers(choice, NAMES) == layers


def test_without_names_indices_and_words_are_left():
    assert select_layers("all", 3) == [0, 1, 2]
    assert select_layers("last,0-1,-3", 3) == [2, 0, 1]
    assert select_layers("3", 13) == [3]


@pytest.mark.parametrize(
    "choice", ["", "block", "6", "-7", "2-6", "3-1", "0-99999999999", "all,", "layer_*", "1.5"]
)
def test_a_choice_that_fits_no_layer_is_refused_with_the_choices(choice):
    with pytest.raises(ValueError, match=r"fits none of the 6 layers 0\.\.5") as error:
        select_layers(choice, NAMES)
    assert "patches, block_0" in str(error.value)


def test_names_are_refused_where_layers_have_none():
    with pytest.raises(ValueError, match=r"layers='block_\*' fits none of the 4 layers 0..3; give"):
        select_layers("block_*", 4)
