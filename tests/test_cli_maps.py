"""`platojax rotate`, `retrieve`, `zero-shot`, `extract --rotation` on features of tiny models."""

import json
import pathlib

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from PIL import Image
from typer.testing import CliRunner

from platojax.cli import app
from platojax.evaluation.features import FeatureMeta, read_features, write_features
from platojax.evaluation.rotation import load_map, procrustes
from platojax.evaluation.transfer import split_items, transfer
from platojax.hashing import hash_items

GOLDEN = pathlib.Path(__file__).parent / "golden"


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


def check(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def meta(encoder, ids, layers=("block_0", "norm")):
    return FeatureMeta(
        encoder=encoder,
        weights_hash=encoder,
        dataset="made",
        items_hash=hash_items(ids),
        preprocessing="none",
        pooling="cls",
        layers=layers,
    )


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """`x` and `y`: the same 60 items, y's last layer a noisy rotation of x's."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2, 6)).astype(np.float32)
    y = rng.normal(size=(60, 2, 6)).astype(np.float32)
    y[:, 1] = x[:, 1] @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 0.2 * y[:, 1]
    write_features("x", x, meta("one", range(60)))
    write_features("y", y, meta("two", range(60)))
    return x, y


def test_a_rotation_is_fitted_tried_on_other_items_and_saved(sides):
    x, y = sides
    printed = check("rotate", "x", "y", "--out", "r.safetensors", "--json", "r.json", "--seed", 3)
    fitted, protocol = load_map("r.safetensors")
    train, held_out = split_items(60, 0.2, 3)
    expected = procrustes(x[train, 1], y[train, 1])
    np.testing.assert_array_equal(fitted.matrix, expected.matrix)
    found = transfer(expected, x[held_out, 1], y[held_out, 1])
    assert protocol["kept"]["transfer"] == found.to_json()
    assert found.retrieval.recall_xy[1] > 0.5
    assert protocol["x"]["layer"] == protocol["y"]["layer"] == "norm"
    assert protocol["x"]["weights_hash"] == "one"
    document = json.loads(pathlib.Path("r.json").read_text())
    assert [point["pairs"] for point in document["against_pairs"]] == [8, 16, 32, 48]
    assert "48 pairs" in printed


@pytest.mark.parametrize(
    "options", [["--method", "ridge"], ["--whiten"], ["--layers", "0", "--layers", "-1"]]
)
def test_other_maps_and_layers(sides, options):
    check("rotate", "x", "y", "--out", "r.safetensors", "--plot", "r.png", *options)
    fitted, protocol = load_map("r.safetensors")
    assert ("penalty" in protocol["kept"]) == (options[-1] == "ridge")
    assert (fitted.whitener_x is not None) == (options == ["--whiten"])
    assert protocol["x"]["layer"] == ("block_0" if "0" in options else "norm")
    assert pathlib.Path("r.png").stat().st_size > 5000


def test_retrieval_in_the_common_space_whatever_the_order(sides):
    check("rotate", "x", "y", "--out", "r.safetensors")
    printed = check("retrieve", "x", "y", "--rotation", "r.safetensors", "--json", "a.json")
    assert "FOSCTTM" in printed
    check("retrieve", "y", "x", "--rotation", "r.safetensors", "--json", "b.json")
    one, other = (
        json.loads(pathlib.Path(f).read_text())["retrieval"] for f in ("a.json", "b.json")
    )
    assert one["foscttm"] == pytest.approx(other["foscttm"], abs=1e-6)
    assert one["recall_xy"] == other["recall_yx"]
    assert one["recall_xy"]["1"] > 0.5


def picture(rng, size, label):
    """Noise; of label 1, with red."""
    pixels = rng.integers(0, 100, (size, size, 3)) + 150 * label * np.array([1, 0, 0])
    return pixels.astype(np.uint8)


def test_features_are_extracted_into_the_common_space(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(30):
        folder = tmp_path / "photos" / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(rng, 64, i % 2)).save(folder / f"{i}.png")
    for name in ("dinov2", "dinov3"):
        check("extract", "--encoder", GOLDEN / name, "--data", "photos", "--out", name)
    check("rotate", "dinov2", "dinov3", "--out", "r.safetensors")
    for name in ("dinov2", "dinov3"):
        arguments = ["--data", "photos", "--out", f"{name}-common", "--rotation", "r.safetensors"]
        check("extract", "--encoder", GOLDEN / name, *arguments)
    fitted, _ = load_map("r.safetensors")
    moved, target = (read_features(f"{name}-common") for name in ("dinov2", "dinov3"))
    raw = read_features("dinov2").features[:, -1]
    np.testing.assert_allclose(moved.features[:, 0], fitted.apply(raw), atol=1e-6)
    np.testing.assert_allclose(
        target.features[:, 0], fitted.target(read_features("dinov3").features[:, -1]), atol=1e-6
    )
    assert moved.meta.layers == ("mapped",)
    assert "layer norm as side x of map" in moved.meta.pooling
    other = run(
        *("extract", "--encoder", GOLDEN / "dinov2_swiglu", "--data", "photos", "--out", "no"),
        *("--rotation", "r.safetensors"),
    )
    assert other.exit_code == 2
    assert "dinov2_swiglu is of dinov2_swiglu, but r.safetensors is for" in other.stderr

    # Zero-shot: the mean of each class's features stands for its prompts.
    rows = [{"id": f"class{c}", "name": f"class {c}"} for c in (1, 0)]
    pathlib.Path("classes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    features = read_features("dinov3")
    labels = np.array([0] * 15 + [1] * 15)
    means = np.stack([features.features[labels == c].mean(0) for c in (1, 0)])
    about = FeatureMeta(**vars(features.meta) | {"items_hash": hash_items(["class1", "class0"])})
    write_features("classes", means, about)
    arguments = ["--images", "dinov2", "--image-data", "photos", "--classes", "classes"]
    arguments += ["--class-data", "classes.jsonl", "--rotation", "r.safetensors"]
    printed = check("zero-shot", *arguments, "--json", "z.json")
    assert "30 images, 2 classes: top-1 1.000 (chance 0.500)" in printed
    assert json.loads(pathlib.Path("z.json").read_text())["classes"] == ["class1", "class0"]
    cifar = pathlib.Path("cifar-10-batches-bin")
    cifar.mkdir()
    (cifar / "batches.meta.txt").write_text("class0\nclass1\n")
    records = [
        bytes([i % 2]) + picture(rng, 32, i % 2).transpose(2, 0, 1).tobytes() for i in range(8)
    ]
    (cifar / "test_batch.bin").write_bytes(b"".join(records))
    data = cifar / "test_batch.bin"
    check("extract", "--encoder", GOLDEN / "dinov2", "--data", data, "--out", "cifar")
    printed = check("zero-shot", "--images", "cifar", "--image-data", data, *arguments[4:])
    assert "8 images, 2 classes: top-1 1.000 (chance 0.500)" in printed
    swapped = run("zero-shot", *arguments[:-4], "--class-data", "photos", *arguments[-2:])
    assert swapped.exit_code == 2
    pathlib.Path("classes.jsonl").write_text(json.dumps(rows[0]) + "\n")
    lacking = run("zero-shot", *arguments)
    assert lacking.exit_code == 2
    assert "classes is of other items than classes.jsonl" in lacking.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "r.npz"], "r.npz must end in .safetensors"),
        (["--out", "no/r.safetensors"], "no does not exist"),
        (["--method", "magic"], "method 'magic' must be one of procrustes, ridge, rosetta"),
        (["--layers", "all"], "x: layers 'all' are 2; choose one"),
        (["--held-out", "2"], "held_out=2.0 must be between 0 and 1"),
        (["--json", "x/meta.json/z"], "does not exist"),
        (["--plot", "y"], "y is no file"),
        (["--seeds", "0", "--method", "rosetta"], "seeds=0 must be at least 1"),
        (["--seed", "-1"], "seed=-1 must not be negative"),
        (["--plot", "r.xyz"], "r.xyz must end in .png, .svg or .pdf"),
        (["--plot", "p.png", "--json", "p.png"], "name the same file"),
        (["--json", "x/meta.json"], "x/meta.json is read, and would be overwritten"),
        (["--whiten", "--method", "rosetta"], "--whiten is for procrustes and ridge"),
        (["--remove", "1"], "--remove is for rosetta, not for procrustes"),
        (["--test", "x", "y"], "procrustes is tried on --held-out of its items"),
        (
            ["--test", "wide", "y", "--method", "rosetta"],
            "--test wide has width 9, but the map is for 6",
        ),
        (["--method", "rosetta"], "too few for 30 clusters"),
    ],
)
def test_impossible_settings_are_one_clear_line(sides, arguments, words):
    write_features("wide", np.ones((60, 2, 9), np.float32), meta("one", range(60)))
    options = ["--out", "r.safetensors", *arguments]
    result = run("rotate", "x", "y", *options)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not pathlib.Path("r.safetensors").exists()


def test_maps_are_for_their_encoders(sides):
    x, y = sides
    check("rotate", "x", "y", "--out", "r.safetensors")
    write_features("other", x, meta("three", range(60)))
    stranger = run("retrieve", "other", "y", "--rotation", "r.safetensors")
    assert "other is of three, but r.safetensors is for one and two" in stranger.stderr
    write_features("short", y[:, :1], meta("two", range(60), ("block_0",)))
    shorter = run("retrieve", "x", "short", "--rotation", "r.safetensors")
    assert "short has no layer norm, for which r.safetensors was fitted" in shorter.stderr
    bare = run("retrieve", "x", "bare.npy", "--rotation", "r.safetensors")
    assert "bare.npy does not exist" in bare.stderr
    gone = run("retrieve", "x", "y", "--rotation", "gone.safetensors")
    assert "gone.safetensors does not exist; `platojax rotate` writes" in gone.stderr


def test_the_encoders_must_be_told_apart(sides):
    x, y = sides
    check("rotate", "x", "y", "--out", "r.safetensors")
    twice = run("retrieve", "x", "x", "--rotation", "r.safetensors")
    assert twice.exit_code == 2
    assert "x and x are of the same encoder" in twice.stderr
    check("rotate", "x", "x", "--layers", "0", "--layers", "1", "--out", "own.safetensors")
    own = run("retrieve", "x", "x", "--rotation", "own.safetensors")
    assert own.exit_code == 2
    assert "own.safetensors is for one on both sides" in own.stderr
    np.save("x.npy", x[:, 1])
    np.save("y.npy", y[:, 1])
    check("rotate", "x.npy", "y.npy", "--out", "bare.safetensors")
    bare = run("retrieve", "x", "y", "--rotation", "bare.safetensors")
    assert "was fitted on arrays that do not say which encoders they are of" in bare.stderr


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no/a.json", "no does not exist"),
        ("r.safetensors", "r.safetensors is read, and would be overwritten"),
        ("x/meta.json", "x/meta.json is read, and would be overwritten"),
    ],
)
def test_where_numbers_go_is_checked_before_anything_is_read(sides, path, words):
    check("rotate", "x", "y", "--out", "r.safetensors")
    before = pathlib.Path("x/meta.json").read_text()
    # No folder `gone`: it would be found missing as soon as features are read.
    zero_shot = ("zero-shot", "--images", "x", "--image-data", "gone", "--classes", "gone")
    for command in (("retrieve", "x", "gone"), (*zero_shot, "--class-data", "gone")):
        result = run(*command, "--rotation", "r.safetensors", "--json", path)
        assert result.exit_code == 2
        assert words in result.stderr
    assert pathlib.Path("x/meta.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda arrays, about: arrays.update(matrix=arrays["matrix"] * np.nan), "is not finite"),
        (lambda arrays, about: arrays.update(matrix=arrays["mean_x"]), "matrix has shape (6,)"),
        (lambda arrays, about: arrays.update(mean_y=arrays["mean_y"][:3]), "mean_y is float32 of"),
        (lambda arrays, about: arrays.update(matrix=arrays["matrix"].astype(int)), "matrix is int"),
        (lambda arrays, about: arrays.pop("mean_x"), "holds no map"),
        (lambda arrays, about: about.update(kind="magic"), "holds no map"),
        (lambda arrays, about: about.update(protocol="{"), "holds no map"),
        (lambda arrays, about: about.update(protocol="[]"), "does not say which encoders"),
        (lambda arrays, about: about.update(protocol='{"x": 3, "y": {}}'), "does not say which"),
    ],
)
def test_a_damaged_map_is_one_clear_line(sides, change, words):
    check("rotate", "x", "y", "--out", "r.safetensors")
    with safetensors.safe_open("r.safetensors", "np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = dict(file.metadata())
    change(arrays, about)
    safetensors.numpy.save_file(arrays, "r.safetensors", about)
    result = run("retrieve", "x", "y", "--rotation", "r.safetensors")
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def clustered(items, seed):
    """Items of twelve unequal clusters in ten dimensions: a space without symmetries."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 10)) * np.linspace(1, 3, 10)
    weights = np.linspace(1, 3, 12)
    chosen = np.random.default_rng(seed).choice(12, items, p=weights / weights.sum())
    return (
        centres[chosen] + 0.4 * np.random.default_rng(seed + 9).normal(size=(items, 10))
    ).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rosetta", "mini-vec2vec"])
def test_without_pairs_no_item_is_on_both_sides_and_the_most_certain_fit_is_kept(
    tmp_path, monkeypatch, method
):
    monkeypatch.chdir(tmp_path)
    x = clustered(900, 1)
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(10, 10)))[0]
    y = (x @ rotation).astype(np.float32)
    ids = range(900)
    write_features("x", x[:, None], meta("one", ids, ("norm",)))
    write_features("y", y[:, None], meta("two", ids, ("norm",)))
    seeds = 2 if method == "rosetta" else 1
    options = ["--method", method, "--seeds", seeds, "--out", "r.safetensors", "--json", "r.json"]
    printed = check("rotate", "x", "y", *options)
    document = json.loads(pathlib.Path("r.json").read_text())
    assert [fit["seed"] for fit in document["fits"]] == list(range(seeds))
    assert document["kept"] in document["fits"]
    assert document["kept"]["transfer"]["retrieval"]["foscttm"] < 0.05
    assert document["kept"]["transfer"]["retrieval"]["n"] == 180
    if method == "rosetta":
        assert document["kept"]["trusted"]
        assert document["kept"]["estimated_foscttm"] == min(
            fit["estimated_foscttm"] for fit in document["fits"]
        )
    assert f"seed {seeds - 1}" in printed
    assert load_map("r.safetensors")[1]["method"] == method


@pytest.mark.slow
def test_other_items_are_fitted_whole_and_tried_on_what_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(10, 10)))[0]
    for name, seed, items in (("x", 1, 400), ("y", 2, 450), ("test", 3, 100)):
        features = clustered(items, seed)[:, None]
        ids = [f"{name}{i}" for i in range(items)]
        if name != "y":
            write_features(f"{name}-x", features, meta("one", ids, ("norm",)))
        if name != "x":
            write_features(f"{name}-y", features @ rotation, meta("two", ids, ("norm",)))
    options = ["--method", "mini-vec2vec", "--seeds", 1, "--out", "r.safetensors"]
    check("rotate", "x-x", "y-y", *options, "--json", "blind.json")
    blind = json.loads(pathlib.Path("blind.json").read_text())
    assert "transfer" not in blind["kept"]
    drawn = run("rotate", "x-x", "y-y", *options, "--plot", "p.png")
    assert "--plot draws what a map is worth on paired items" in drawn.stderr
    check(
        *("rotate", "x-x", "y-y", *options, "--json", "tried.json"),
        *("--test", "test-x", "test-y"),
    )
    tried = json.loads(pathlib.Path("tried.json").read_text())
    assert tried["kept"]["transfer"]["retrieval"]["foscttm"] < 0.1
    paired = run("rotate", "x-x", "y-y", "--out", "p.safetensors")
    assert paired.exit_code == 2
    assert "x-x has 400 items and y-y has 450" in paired.stderr
