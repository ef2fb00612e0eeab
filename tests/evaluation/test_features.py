import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import subprocess
import sys
import types
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from platojax.evaluation import features as features_module
from platojax.evaluation.features import (
    FeatureMeta,
    FeatureWriter,
    check_same_items,
    holds,
    read_features,
    write_features,
)
from platojax.hashing import hash_items, hash_tree

META = FeatureMeta(
    encoder="dinov2_vits14",
    weights_hash=hash_tree({"w": np.ones(2)}),
    dataset="flickr30k/test",
    items_hash=hash_items(range(6)),
    preprocessing="resize 256 bicubic, crop 224",
    pooling="cls",
    layers=("block 1", "block 2"),
)


def example(n=6, layers=2, width=3):
    return np.random.default_rng(0).normal(size=(n, layers, width)).astype(np.float32)


def test_what_was_written_is_read_back_memory_mapped(tmp_path):
    folder = tmp_path / "runs" / "features"
    write_features(folder, example(), META)
    read = read_features(folder)
    assert isinstance(read.features, np.memmap)
    assert read.features.dtype == np.float32
    np.testing.assert_array_equal(read.features, example())
    assert read.meta == META
    assert read.path == folder
    assert read.layer_name(1) == "block 2"
    assert sorted(p.name for p in folder.iterdir()) == ["features.npy", "meta.json"]
    assert [p.name for p in folder.parent.iterdir()] == ["features"]  # nothing temporary is left
    versions = json.loads((folder / "meta.json").read_text())["versions"]
    assert versions["numpy"] == np.__version__
    assert versions.keys() == {"platojax", "jax", "numpy"}


def test_jax_arrays_and_bfloat16_are_stored_as_float32(tmp_path):
    x = jnp.asarray(example(), jnp.bfloat16)
    write_features(tmp_path / "f", x, dataclasses.replace(META, dtype="bfloat16"))
    read = read_features(tmp_path / "f").features
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, np.asarray(x, np.float32))


def test_what_exists_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="exists; delete it or give another path"):
        write_features(tmp_path, example(), META)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    write_features(tmp_path / "f", example(), META)
    with pytest.raises(FileExistsError, match="exists; delete it"):
        write_features(tmp_path / "f", example() + 1, META)
    np.testing.assert_array_equal(read_features(tmp_path / "f").features, example())


def test_a_folder_is_known_by_what_it_is_of(tmp_path):
    folder = tmp_path / "f"
    assert not holds(folder, META)
    write_features(folder, example(), META)
    assert holds(folder, dataclasses.replace(META, encoder="another name", versions={"jax": "9"}))
    with pytest.raises(FileExistsError, match=r"pooling is 'cls', now 'mean'.*another path"):
        holds(folder, dataclasses.replace(META, pooling="mean"))
    with pytest.raises(FileExistsError, match="not a feature folder"):
        holds(tmp_path, META)


def test_killed_in_the_middle_of_a_write_leaves_no_half_folder(tmp_path):
    folder = tmp_path / "f"
    # Dies as hard as by SIGKILL, after the features and before their meta is on the disk.
    program = """
import os, sys, json
import numpy as np
from platojax.evaluation import features
meta = features.FeatureMeta.from_json(json.loads(sys.argv[2]))
features.FeatureWriter._finish = lambda *_: os._exit(9)
features.write_features(sys.argv[1], np.ones((6, 2, 3)), meta)
"""
    arguments = [str(folder), json.dumps(META.to_json())]
    died = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert died.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name == ".f.partial"
    with pytest.raises(ValueError, match="is an unfinished extraction"):
        read_features(left)
    write_features(folder, example(), META)
    np.testing.assert_array_equal(read_features(folder).features, example())
    assert list(tmp_path.iterdir()) == [folder]


def write_and_stop(folder, rows):
    """Leaves what a process leaves that is interrupted after these rows."""
    with contextlib.suppress(KeyboardInterrupt), FeatureWriter(folder, 6, 3, META) as writer:
        writer.append(rows)
        raise KeyboardInterrupt


def test_a_writer_goes_on_behind_the_rows_of_an_earlier_one(tmp_path):
    write_and_stop(tmp_path / "f", example()[:4])
    with FeatureWriter(tmp_path / "f", 6, 3, META) as writer:
        assert writer.done == 4
        writer.append(example()[4:])
    np.testing.assert_array_equal(read_features(tmp_path / "f").features, example())
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.npy", "meta.json"]


@pytest.mark.parametrize(
    ("spoil", "changes", "warns"),
    [
        (lambda partial: (partial / "progress.json").write_text("{"), {}, True),
        (lambda partial: (partial / "progress.json").unlink(), {}, False),
        (lambda partial: (partial / "features.npy").write_bytes(b"half"), {}, True),
        (lambda partial: None, {"dtype": "bfloat16"}, True),
        (lambda partial: None, {"versions": {"jax": "another"}}, True),
    ],
)
def test_rows_of_other_or_damaged_features_are_not_taken_up(tmp_path, spoil, changes, warns):
    write_and_stop(tmp_path / "f", example()[:4] + 1)
    spoil(tmp_path / ".f.partial")
    meta = dataclasses.replace(META, **changes)
    with warnings.catch_warnings(record=True) as caught:
        writer = FeatureWriter(tmp_path / "f", 6, 3, meta)
    assert ["starts again" in str(one.message) for one in caught] == [True] * warns
    with writer:
        assert writer.done == 0
        writer.append(example())
    np.testing.assert_array_equal(read_features(tmp_path / "f").features, example())


def test_names_and_requests_may_differ_where_rows_are_taken_up(tmp_path):
    write_and_stop(tmp_path / "f", example()[:4])
    other = dataclasses.replace(META, encoder="a copy", dataset="a copy", request="other")
    with FeatureWriter(tmp_path / "f", 6, 3, other) as writer:
        assert writer.done == 4
        writer.append(example()[4:])
    assert read_features(tmp_path / "f").meta.request == "other"


def test_an_unfinished_folder_is_spoken_of_by_its_name(tmp_path):
    write_and_stop(tmp_path / "f", example()[:4])
    with pytest.raises(FileNotFoundError, match="f is an unfinished extraction; run the same"):
        read_features(tmp_path / "f")


def test_a_finished_folder_that_was_damaged_is_not_taken_for_whole(tmp_path):
    write_features(tmp_path / "f", example(), META)
    path = tmp_path / "f" / "features.npy"
    for damage in (lambda: path.write_bytes(path.read_bytes()[:100]), path.unlink):
        damage()
        with pytest.raises(FileExistsError, match=r"is not a whole feature folder .*delete it"):
            holds(tmp_path / "f", META)


@pytest.mark.parametrize("done", [-2, 7, 1e400, "x", None])
def test_impossible_progress_starts_again(tmp_path, done):
    write_and_stop(tmp_path / "f", example()[:4])
    path = tmp_path / ".f.partial" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"done": done}))
    with pytest.warns(UserWarning, match="starts again"):
        writer = FeatureWriter(tmp_path / "f", 6, 3, META)
    assert writer.done == 0


def test_what_is_beside_the_rows_is_swept_away_but_links_are_not_followed(tmp_path):
    write_and_stop(tmp_path / "f", example()[:4])
    (tmp_path / ".f.partial" / "features.npy").write_bytes(b"")
    (tmp_path / ".f.partial" / "stray").mkdir()
    with pytest.warns(UserWarning, match="starts again"):
        writer = FeatureWriter(tmp_path / "f", 6, 3, META)
    with writer:
        writer.append(example())
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.npy", "meta.json"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / ".g.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError, match="is a link"):
        FeatureWriter(tmp_path / "g", 6, 3, META)
    assert (tmp_path / "precious" / "file").exists()
    (tmp_path / "h").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="exists; delete it"):
        FeatureWriter(tmp_path / "h", 6, 3, META)


def test_a_request_is_renewed(tmp_path):
    write_features(tmp_path / "f", example(), META)
    assert holds(tmp_path / "f", dataclasses.replace(META, request="new"))
    assert read_features(tmp_path / "f").meta == dataclasses.replace(META, request="new")


def test_rows_that_do_not_fit_or_are_not_finite_are_refused_and_the_rest_is_kept(tmp_path):
    bad = example()
    bad[5, 1, 2] = np.inf
    write_and_stop(tmp_path / "f", bad[:4])
    with (
        pytest.raises(ValueError, match="features is inf at item 5, layer 1, channel 2"),
        FeatureWriter(tmp_path / "f", 6, 3, META) as writer,
    ):
        writer.append(bad[4:])
    with (
        pytest.raises(ValueError, match=r"behind 4 rows do not fit \(6, 2, 3\)"),
        FeatureWriter(tmp_path / "f", 6, 3, META) as writer,
    ):
        writer.append(example())
    with (
        pytest.raises(ValueError, match="4 of 6 rows were written"),
        FeatureWriter(tmp_path / "f", 6, 3, META),
    ):
        pass
    assert not (tmp_path / "f").exists()


def test_two_writers_of_one_folder_are_refused(tmp_path):
    with FeatureWriter(tmp_path / "f", 6, 3, META) as writer:
        with pytest.raises(ValueError, match="another process is writing"):
            FeatureWriter(tmp_path / "f", 6, 3, META)
        writer.append(example())


def test_a_full_disk_is_said_at_the_start(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(features_module.os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"f\.partial/features.npy needs 272 bytes: No space left"):
        write_features(tmp_path / "f", example(), META)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((6, 2, 3), np.nan), "features is nan at item 0.*leave the item out"),
        (example(layers=3), "3 layers, but meta names 2"),
        (example()[:, 0], r"shape \(6, 3\)"),
        (example(n=0), "is empty"),
    ],
)
def test_bad_features_are_not_written(tmp_path, array, words):
    with pytest.raises(ValueError, match=words):
        write_features(tmp_path / "f", array, META)
    assert list(tmp_path.iterdir()) == []


# Reading other files


def test_npy_and_npz_of_two_or_three_axes(tmp_path):
    x = example()
    np.save(tmp_path / "three.npy", x)
    np.save(tmp_path / "two.npy", x[:, 0])
    np.savez(tmp_path / "only.npz", anything=x)
    np.savez(tmp_path / "named.npz", other=x + 1, features=x)
    for name in ("three.npy", "only.npz", "named.npz"):
        read = read_features(tmp_path / name)
        np.testing.assert_array_equal(read.features, x)
        assert read.meta is None
        assert read.layer_name(1) == "1"
    np.testing.assert_array_equal(read_features(str(tmp_path / "two.npy")).features, x[:, :1])
    assert isinstance(read_features(tmp_path / "three.npy").features, np.memmap)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16, np.float64, ">f4"])
def test_other_number_formats_become_float32(tmp_path, dtype):
    x = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    read = read_features(tmp_path / "x.npy").features
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read[:, 0], x.astype(np.float32))


def save_npy(path, array):
    np.save(path / "x.npy", array)
    return path / "x.npy"


def save_bytes(name, content):
    def save(path):
        (path / name).write_bytes(content)
        return path / name

    return save


def truncated(path):
    save_npy(path, example())
    os.truncate(path / "x.npy", 200)
    return path / "x.npy"


def save_npz(**arrays):
    def save(path):
        np.savez(path / "x.npz", **arrays)
        return path / "x.npz"

    return save


def folder_with(meta=None, array=None):
    """A feature folder with meta.json changed to these values, or without one of its files."""

    def save(path):
        folder = path / "folder"
        write_features(folder, example(), META)
        if meta is None:
            (folder / "meta.json").unlink()
        else:
            text = meta if isinstance(meta, str) else json.dumps(META.to_json() | meta)
            (folder / "meta.json").write_text(text)
        if array is None:
            (folder / "features.npy").unlink()
        return folder

    return save


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: save_npy(p, [[1, np.nan]]), "x.npy is nan at item 0, layer 0, channel 1: fix"),
        (lambda p: save_npy(p, np.array([[1], [np.inf]], np.float16)), "item 1.*float16 overflows"),
        (lambda p: save_npy(p, [[1e300]]), "x.npy is 1e\\+300.*overflows float32; scale"),
        (lambda p: save_npy(p, np.array([{}, 1], object)), "x.npy.*pickled objects"),
        (lambda p: save_npy(p, np.zeros((0, 3))), "x.npy is empty"),
        (lambda p: save_npy(p, np.zeros(3)), r"x.npy has shape \(3,\)"),
        (lambda p: save_npy(p, np.zeros((1, 2, 3, 4))), r"x.npy has shape \(1, 2, 3, 4\)"),
        (lambda p: save_npy(p, [["a"]]), "x.npy has dtype <U1"),
        (lambda p: save_npy(p, [[1j]]), "x.npy has dtype complex128"),
        (lambda p: save_npy(p, np.asarray(jnp.ones((2, 2), jnp.bfloat16))), "V2 .bfloat16"),
        (save_bytes("x.npy", b""), "x.npy cannot be read"),
        (save_bytes("x.npy", b"not an array file"), "x.npy cannot be read: it is no array file"),
        (save_bytes("x.npz", b"PK\x03\x04"), "x.npz cannot be read"),
        (truncated, "x.npy cannot be read"),
        (save_npz(u=example(), v=example()), r"\['u', 'v'\]; name the right one 'features'"),
        (save_npz(features=np.array([{}], object)), "x.npz.*pickled objects"),
        (save_bytes("x.csv", b"1,2"), "x.csv: expected a feature folder, .npy, .npz"),
        (folder_with(meta=None, array=True), "folder is not a feature folder: it has no meta.json"),
        (folder_with(meta={}), "folder is not a feature folder: it has no features.npy"),
        (folder_with(meta="{", array=True), "meta.json: "),
        (folder_with(meta="[]", array=True), "meta.json: expected an object"),
        (folder_with(meta='{"encoder": "e"}', array=True), "missing fields .'weights_hash'"),
        (
            folder_with(meta={"layers": ["a"]}, array=True),
            r"has shape \(6, 2, 3\), but .*meta.json names 1 layers",
        ),
        (folder_with(meta={"layers": "ab"}, array=True), "field 'layers'.*'ab'"),
        (folder_with(meta={"encoder": 7}, array=True), "field 'encoder'.*7"),
        (folder_with(meta={"versions": {"jax": 1}}, array=True), "field 'versions'"),
        (folder_with(meta={"speed": "fast"}, array=True), "unknown fields .'speed'"),
    ],
)
def test_bad_files_are_refused_by_name_with_the_reason(tmp_path, make, words):
    path = make(tmp_path)
    with pytest.raises(ValueError, match=words) as error:
        read_features(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy does not exist"):
        read_features(tmp_path / "nothing.npy")


def test_the_first_bad_value_is_found_in_a_later_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(features_module, "_CHECK_BYTES", 64)  # two items at a time
    x = example()
    x[5, 1, 2] = x[5, 1, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match="item 5, layer 1, channel 1"):
        read_features(tmp_path / "x.npy")


def test_platonic_rep_file_without_torch_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(ImportError, match=r"x\.pt needs torch.*pip install torch"):
        read_features(tmp_path / "x.pt")


class Tensor:
    """As much of a torch tensor as the reader uses."""

    is_sparse = False

    def is_complex(self):
        return False

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def numpy(self):
        return self.array


def fake_torch(monkeypatch, saved):
    """Stands in for torch, which the tests do not need; `load` returns or raises `saved`."""
    calls = []

    def load(path, **settings):
        calls.append((path, settings))
        if isinstance(saved, Exception):
            raise saved
        return saved

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load, Tensor=Tensor))
    return calls


def test_platonic_rep_file(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    path.write_bytes(b"")
    calls = fake_torch(monkeypatch, {"feats": Tensor(example().astype(np.float64)), "loss": 1.0})
    np.testing.assert_array_equal(read_features(path).features, example())
    assert calls == [(path, {"map_location": "cpu", "weights_only": True})]


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"features": 1}, "no 'feats' .found .'features'"),
        ([1], "no 'feats' .found list"),
        (
            RuntimeError("Weights only load failed\nlong advice"),
            "torch.load: Weights only load failed$",
        ),
    ],
)
def test_other_torch_files_are_refused(tmp_path, monkeypatch, saved, words):
    (tmp_path / "x.pt").write_bytes(b"")
    fake_torch(monkeypatch, saved)
    with pytest.raises(ValueError, match=words):
        read_features(tmp_path / "x.pt")


def test_a_real_torch_file(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"feats": torch.from_numpy(example()).bfloat16()}, tmp_path / "x.pt")
    np.testing.assert_allclose(read_features(tmp_path / "x.pt").features, example(), rtol=0.01)
    whole = torch.from_numpy(example())
    for feats in (whole.to(torch.complex64), whole.to_sparse(), [whole], whole.to("meta")):
        torch.save({"feats": feats}, tmp_path / "x.pt")
        with pytest.raises(ValueError, match=r"x\.pt: 'feats'"):
            read_features(tmp_path / "x.pt")


# Items and hashes


def written(path, n=6, **changes):
    write_features(path, example(n=n), dataclasses.replace(META, **changes))
    return read_features(path)


def test_same_items_in_the_same_order_pass_and_others_do_not(tmp_path):
    a = written(tmp_path / "a")
    check_same_items(a, written(tmp_path / "b", encoder="other", layers=("x", "y")))
    np.save(tmp_path / "plain.npy", example())
    check_same_items(a, read_features(tmp_path / "plain.npy"))
    reversed_items = written(tmp_path / "c", items_hash=hash_items(range(5, -1, -1)))
    with pytest.raises(ValueError, match=r"/a .*/c .*another order; extract both"):
        check_same_items(a, reversed_items)
    with pytest.raises(ValueError, match=r"/a has 6 items and .*/d has 5.*extract both"):
        check_same_items(a, written(tmp_path / "d", n=5))


def test_item_hashes_know_order_and_boundaries():
    assert hash_items(["ab", "c"]) == hash_items(iter(["ab", "c"]))
    assert hash_items([1, 2]) == hash_items(["1", "2"])
    different = [["ab", "c"], ["c", "ab"], ["a", "bc"], ["abc"], ["ab", "c", ""], []]
    assert len({hash_items(ids) for ids in different}) == len(different)
    # A fixed value: hashes in files must stay valid.
    assert hash_items(["ab", "c"]) == (
        "430fb1b4ac43316eca81fab27a1930ab8eff8fef6a1dc7903dce44bbc2790dc5"
    )


def test_tree_hashes_know_paths_dtypes_shapes_and_bytes():
    tree = {"b": {"w": np.arange(6.0).reshape(2, 3)}, "a": np.ones(2, np.float32)}
    same = {"a": jnp.ones(2), "b": {"w": np.arange(6, dtype=">f8").reshape(2, 3)}}
    assert hash_tree(tree) == hash_tree(same)
    different = [
        tree,
        tree | {"a": np.ones(2)},
        tree | {"a": np.ones((2, 1), np.float32)},
        tree | {"a": np.array([1, 2], np.float32)},
        {"b": tree["b"], "c": tree["a"]},
        {"b": tree["b"]},
    ]
    assert len({hash_tree(x) for x in different}) == len(different)
    with pytest.raises(ValueError, match=r"\['f'\] is a function"):
        hash_tree({"f": hash_tree})


def test_hashes_are_the_same_in_another_process():
    program = (
        "import numpy as np; from platojax.hashing import *;"
        "print(hash_tree({'b': np.arange(3), 'a': [np.ones(2)]}))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed == hash_tree({"a": [np.ones(2)], "b": np.arange(3)})


def test_evaluation_does_not_import_training():
    folder = pathlib.Path(features_module.__file__).parent
    for source in folder.glob("*.py"):
        assert "platojax.train" not in source.read_text(), source
