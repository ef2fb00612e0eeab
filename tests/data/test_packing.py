import numpy as np
import pytest

from platojax.data.packing import Packing

PAD = 0


def texts(lengths, max_length):
    """`[V, N, max_length]`: token 1000 i + t + 1 is the t-th of text i, so each is unique."""
    lengths = np.asarray(lengths)
    place = np.arange(max_length)
    number = np.arange(lengths.size).reshape(*lengths.shape, 1)
    return np.where(place < lengths[..., None], 1000 * number + place + 1, PAD).astype(np.int32)


def unpack(packed, max_length):
    """What each text of each group still has, in the order of its row: `[V, N, max_length]`."""
    num_views, groups, group_size = packed["cut"].shape
    result = np.full((num_views, groups, group_size, max_length), PAD)
    for v, g, s in np.ndindex(num_views, groups, group_size):
        rows, places = np.nonzero(packed["segments"][v, g] == s)
        if len(rows):
            assert len(set(rows)) == 1
            assert np.all(np.diff(places) == 1)
            result[v, g, s, : len(rows)] = packed["tokens"][v, g, rows, places]
    return result.reshape(num_views, -1, max_length)


def test_every_token_is_there_once_and_a_text_is_in_one_piece():
    lengths = np.random.default_rng(0).integers(0, 13, (2, 24))
    lengths[0, :8] = [12, 0, 12, 1, 12, 12, 0, 12]
    tokens = texts(lengths, 12)
    packed = Packing(group_size=8, rows=5, row_length=16).pack(tokens, PAD)
    assert packed["tokens"].shape == packed["segments"].shape == (2, 3, 5, 16)
    assert packed["tokens"].dtype == packed["segments"].dtype == packed["cut"].dtype == np.int32
    assert not packed["cut"].any()
    np.testing.assert_array_equal(unpack(packed, 12), tokens)
    np.testing.assert_array_equal(packed["segments"] == -1, packed["tokens"] == PAD)
    assert np.sum(packed["tokens"] != PAD) == lengths.sum()


def test_a_group_is_packed_the_same_whatever_else_is_in_the_batch():
    tokens = texts(np.random.default_rng(0).integers(1, 13, (1, 16)), 12)
    whole = Packing(group_size=8, rows=4, row_length=16).pack(tokens, PAD)
    alone = Packing(group_size=8, rows=4, row_length=16).pack(tokens[:, 8:], PAD)
    for name in whole:
        np.testing.assert_array_equal(whole[name][:, 1:], alone[name])


def test_where_a_group_does_not_fit_its_longest_texts_are_cut_and_keep_their_end():
    lengths = [[10, 9, 4, 3], [4, 4, 4, 3]]
    packed = Packing(group_size=4, rows=2, row_length=10).pack(texts(lengths, 10), PAD)
    # 10 + 9 + 4 + 3 > 20 tokens. At 7 the rows are 7 + 3 and 7 and 4 is left over; at 6, 6 + 4.
    np.testing.assert_array_equal(packed["cut"], [[[4, 3, 0, 0]], [[0, 0, 0, 0]]])
    kept = unpack(packed, 10)
    np.testing.assert_array_equal(kept[0, 0, :6], [1, 2, 3, 4, 5, 10])
    np.testing.assert_array_equal(kept[0, 1, :6], [1001, 1002, 1003, 1004, 1005, 1009])
    np.testing.assert_array_equal(kept[0, 2:], texts(lengths, 10)[0, 2:])
    np.testing.assert_array_equal(kept[1], texts(lengths, 10)[1])


def test_one_very_long_text_has_a_row_to_itself():
    packed = Packing(group_size=8, rows=2, row_length=32).pack(
        texts([[32, 3, 3, 3, 3, 3, 3, 3]], 32), PAD
    )
    assert np.all(packed["segments"][0, 0, 0] == 0)
    assert packed["cut"].sum() == 0


def test_the_fewest_rows_hold_texts_that_are_all_long():
    packed = Packing(group_size=9, rows=3, row_length=10).pack(texts([[9] * 9], 9), PAD)
    assert np.all(packed["cut"] == 6)
    assert np.sum(packed["segments"] >= 0) == 27


def test_a_group_without_a_token_is_padding():
    packed = Packing(group_size=2, rows=1, row_length=8).pack(texts([[0, 0]], 8), PAD)
    assert np.all(packed["segments"] == -1)
    assert np.all(packed["tokens"] == PAD)
    assert not packed["cut"].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(group_size=0), r"packing.group_size must be at least 1 .* got 0"),
        (dict(group_size=5), r"packing.group_size 5 must divide the 8 scenes"),
        (dict(row_length=6), r"packing.row_length must be at least encoder.max_length 8.* got 6"),
        (dict(rows=1), r"packing.rows must lie in \[2, 4\] .*; got 1"),
        (dict(rows=5), r"packing.rows must lie in \[2, 4\] .*; got 5"),
    ],
)
def test_impossible_packings_are_refused(fields, message):
    fields = dict(group_size=4, rows=3, row_length=8) | fields
    with pytest.raises(ValueError, match=message):
        Packing(**fields).pack(texts([[4] * 8], 8), PAD)
