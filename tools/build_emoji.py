"""Builds the embedded emoji data set from npm packages.

    npm install @iconify-json/noto@1.2.9 @iconify-json/noto-v1@1.2.5 @iconify-json/twemoji@1.2.5 \
        @iconify-json/fluent-emoji@1.2.7 @iconify-json/fluent-emoji-flat@1.2.6 \
        @iconify-json/fxemoji@1.2.2 @iconify-json/emojione@1.2.3 cldr-annotations-full@48.2.0 \
        cldr-annotations-derived-full@48.2.0 emojilib@4.0.3 unicode-emoji-json@0.9.0 \
        emojibase-data@17.0.0
    pip install 'platojax[emoji]'        # cairosvg; it needs the libcairo2 system library
    python tools/build_emoji.py node_modules

A scene is one emoji: no flags, no skin tones, no joined sequences. Its pictures are the drawings
of several artists, its texts the names and keywords of several sources and languages. The result
is a tensorflow-datasets folder (array_record files, no TensorFlow) that `platojax.data.scenes`
and `tfds.builder_from_directory` read. With the same packages and the same Pillow and cairo, two
builds give the same bytes. On Debian and Ubuntu: `apt-get install libcairo2`.
"""

import argparse
import collections
import dataclasses
import hashlib
import io
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

SIZE = 64
MIN_PICTURES = 4
MIN_LANGUAGES = 6
HELDOUT_FRACTION = 0.22
LANGUAGES = (
    "ar",
    "de",
    "el",
    "es",
    "fi",
    "fr",
    "hi",
    "it",
    "ja",
    "ko",
    "nl",
    "pl",
    "pt",
    "ru",
    "tr",
    "zh",
)

# Texts, groups and order change between releases, icon labels too: a build from other versions is
# another data set.
VERSIONS = {
    "@iconify-json/noto": "1.2.9",
    "@iconify-json/noto-v1": "1.2.5",
    "@iconify-json/twemoji": "1.2.5",
    "@iconify-json/fluent-emoji": "1.2.7",
    "@iconify-json/fluent-emoji-flat": "1.2.6",
    "@iconify-json/fxemoji": "1.2.2",
    "@iconify-json/emojione": "1.2.3",
    "cldr-annotations-full": "48.2.0",
    "cldr-annotations-derived-full": "48.2.0",
    "emojilib": "4.0.3",
    "unicode-emoji-json": "0.9.0",
    "emojibase-data": "17.0.0",
}

# Artist -> icon set. The order is the order of the pictures in a record.
ARTISTS = {
    "noto": "noto",
    "noto_v1": "noto-v1",
    "twemoji": "twemoji",
    "fluent": "fluent-emoji",
    "fluent_flat": "fluent-emoji-flat",
    "emojione": "emojione",
    "fxemoji": "fxemoji",
}

# Sets without code points are matched by label. Each stopped at an emoji version, so that a label
# that a later emoji took over cannot match.
LAST_EMOJI_VERSION = {"noto-v1": 11.0, "emojione": 5.0, "fxemoji": 2.0}

# Icon set -> label -> emoji, where the label alone does not tell or misleads. No emoji: a label not
# to use, because the drawing does not survive the rendering.
LABELS: Mapping[str, Mapping[str, str]] = json.loads(
    Path(__file__).with_name("emoji_labels.json").read_text(encoding="utf-8")
)

VARIATION_SELECTOR = "\ufe0f"
FEATURES = tfds.features.FeaturesDict(
    {
        "scene_id": tfds.features.Text(),
        "emoji": tfds.features.Text(),
        "name": tfds.features.Text(),
        "group": tfds.features.Text(),
        "subgroup": tfds.features.Text(),
        "pictures": tfds.features.Sequence(
            {
                "artist": tfds.features.Text(),
                "image": tfds.features.Image(shape=(SIZE, SIZE, 3)),  # lossless WebP
            }
        ),
        "texts": tfds.features.Sequence(
            {
                "source": tfds.features.Text(),
                "language": tfds.features.Text(),
                "name": tfds.features.Text(),
                "keywords": tfds.features.Text(),
            }
        ),
    }
)


class BuildError(Exception):
    """The packages do not allow this build; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Emoji:
    """One emoji before its pictures and texts are known."""

    scene_id: str  # hex code points joined by "-", without variation selectors
    emoji: str
    name: str
    slug: str
    group: str
    subgroup: str
    version: float


class Packages:
    """The JSON files of the npm packages, with their versions checked."""

    def __init__(self, node_modules: Path, *, any_version: bool = False):
        """Opens the packages.

        Args:
          node_modules: the folder that `npm install` made.
          any_version: accept versions other than the pinned ones.

        Raises:
          BuildError: a package is missing, or has another version.
        """
        self._root = node_modules
        self.versions: dict[str, str] = {}
        wrong = []
        for package, pinned in VERSIONS.items():
            self.versions[package] = self.json(package, "package.json")["version"]
            if self.versions[package] != pinned:
                wrong.append(f"{package} is {self.versions[package]}, pinned {pinned}")
        if wrong and not any_version:
            raise BuildError(
                f"other versions give another data set: {'; '.join(wrong)}. Install the pinned "
                "versions (npm install NAME@VERSION), or pass --any-version to build from these."
            )

    def json(self, package: str, file: str) -> Any:
        """Returns the parsed file of a package."""
        path = self._root / package / file
        if not path.is_file():
            raise BuildError(f"{path} is missing: npm install {package}@{VERSIONS[package]}")
        return json.loads(path.read_text(encoding="utf-8"))


class IconSet:
    """An Iconify set: labels, aliases, and SVG bodies."""

    def __init__(self, packages: Packages, name: str):
        package = f"@iconify-json/{name}"
        data = packages.json(package, "icons.json")
        self.name = name
        self._icons: dict[str, dict[str, Any]] = data["icons"]
        self._aliases: dict[str, dict[str, Any]] = data.get("aliases", {})
        self._size = (data.get("width", 16), data.get("height", 16))
        self.labels = frozenset(self._icons) | frozenset(self._aliases)
        self.codes: dict[str, str] = packages.json(package, "chars.json")

    def svg(self, label: str) -> str:
        """Returns the icon as a square SVG document, centred."""
        chain = [label]
        while chain[-1] not in self._icons:
            chain.append(self._aliases[chain[-1]]["parent"])
        icon = dict(self._icons[chain[-1]])
        flips = {"hFlip": False, "vFlip": False}
        rotate = 0
        for alias in chain[:-1]:
            properties = self._aliases[alias]
            rotate += properties.get("rotate", 0)
            for flip in flips:
                flips[flip] ^= properties.get(flip, False)
        left, top = icon.get("left", 0), icon.get("top", 0)
        width, height = icon.get("width", self._size[0]), icon.get("height", self._size[1])
        side = max(width, height)
        left, top = left - (side - width) / 2, top - (side - height) / 2
        middle = f"{left + side / 2} {top + side / 2}"
        scale = f"{-1 if flips['hFlip'] else 1} {-1 if flips['vFlip'] else 1}"
        transform = (
            f"translate({middle}) rotate({90 * rotate}) scale({scale}) "
            f"translate({-left - side / 2} {-top - side / 2})"
        )
        body = icon["body"]
        if rotate or any(flips.values()):
            body = f'<g transform="{transform}">{body}</g>'
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="{left} {top} {side} {side}">{body}</svg>'
        )


def scene_id(emoji: str) -> str:
    """Returns the code points in hex, joined by "-", without variation selectors."""
    return "-".join(f"{ord(c):x}" for c in emoji if c != VARIATION_SELECTOR)


def normal_code(code: str) -> str:
    """Returns an icon set's code points as a scene id, which has no padding."""
    return scene_id("".join(chr(int(part, 16)) for part in code.split("-")))


def read_emojis(packages: Packages) -> list[Emoji]:
    """Returns the emojis that are one symbol: no flags, skin tones or joined sequences."""
    groups = packages.json("emojibase-data", "meta/groups.json")["subgroups"]
    subgroups = {
        normal_code(item["hexcode"]): groups[str(item["subgroup"])]
        for item in packages.json("emojibase-data", "en/data.json")
        if "subgroup" in item
    }
    emojis = []
    for emoji, entry in packages.json("unicode-emoji-json", "data-by-emoji.json").items():
        if entry["group"] == "Flags" or any(
            c == "\u200d" or 0x1F3FB <= ord(c) <= 0x1F3FF for c in emoji
        ):
            continue
        identity = scene_id(emoji)
        emojis.append(
            Emoji(
                scene_id=identity,
                emoji=emoji,
                name=clean(entry["name"]),
                slug=entry["slug"].replace("_", "-"),
                group=entry["group"],
                subgroup=subgroups[identity],
                version=float(entry["emoji_version"]),
            )
        )
    return emojis


def unicode_name(emoji: Emoji) -> str:
    """Returns the name of the code point; empty where there are several, as in a keycap."""
    return "" if "-" in emoji.scene_id else unicodedata.name(emoji.emoji[0], "")


def squash(label: str) -> str:
    """Returns the letters and digits of a label, in lower case."""
    return re.sub("[^a-z0-9]", "", label.lower())


def match(emojis: Sequence[Emoji], sets: Mapping[str, IconSet]) -> dict[str, dict[str, str]]:
    """Finds each emoji in each icon set.

    By code point where the set has them; else by label, which may be the CLDR name, the Unicode
    name, or any label that a set with code points gives to the emoji. A name belongs to the emoji
    that claims it first, in that order.

    Returns:
      Icon set -> scene id -> label.
    """
    bridges = collections.defaultdict(set)  # scene id -> labels
    for icons in sets.values():
        for code, label in icons.codes.items():
            bridges[normal_code(code)].add(label)
    claims = [
        [squash(emoji.slug) for emoji in emojis],
        [squash(unicode_name(emoji)) for emoji in emojis],
    ]
    owner: dict[str, str] = {}
    names: dict[str, list[str]] = collections.defaultdict(list)
    for claim in claims:
        for emoji, name in zip(emojis, claim, strict=True):
            if name and owner.setdefault(name, emoji.scene_id) == emoji.scene_id:
                names[emoji.scene_id].append(name)
    for emoji in emojis:
        for label in sorted(bridges[emoji.scene_id]):
            name = squash(label)
            if owner.setdefault(name, emoji.scene_id) == emoji.scene_id:
                names[emoji.scene_id].append(name)

    found: dict[str, dict[str, str]] = {}
    for key, icons in sets.items():
        labels: dict[str, str] = {}
        if icons.codes:
            for code, label in sorted(icons.codes.items()):
                labels.setdefault(normal_code(code), label)
        else:
            told = LABELS.get(icons.name, {})
            by_name = {squash(label): label for label in sorted(icons.labels) if label not in told}
            for emoji in emojis:
                if emoji.version <= LAST_EMOJI_VERSION.get(icons.name, float("inf")):
                    for name in names[emoji.scene_id]:
                        if name in by_name:
                            labels.setdefault(emoji.scene_id, by_name[name])
            for label, character in told.items():
                if character and label in icons.labels:
                    labels[scene_id(character)] = label
        found[key] = labels
    return found


def render(svg: str) -> np.ndarray | None:
    """Draws an SVG document on white.

    Returns:
      uint8 [SIZE, SIZE, 3] of at most 64 colours; None where nothing could be drawn.
    """
    import cairosvg  # an extra, and a system library: only a build needs them

    try:
        png = cairosvg.svg2png(
            bytestring=svg.encode(), output_width=SIZE, output_height=SIZE, background_color="white"
        )
    except MemoryError:  # what cairo says to a degenerate gradient
        return None
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    array = np.asarray(picture.convert("RGB"))
    drawn = (array.min(axis=2) < 240).mean()
    return array if drawn >= 0.01 else None


def encode(array: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] as lossless WebP, a third of the size of PNG here."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="WEBP", lossless=True, quality=100, method=6)
    return buffer.getvalue()


def clean(text: str) -> str:
    """Returns the text in NFC with single spaces, without direction marks."""
    text = unicodedata.normalize("NFC", text)
    return " ".join(re.sub("[\u200e\u200f\u061c]", "", text).split())


def text_record(source: str, language: str, name: str, keywords: Iterable[str]) -> dict[str, str]:
    """Returns one text.

    Keywords keep their order and are joined by ", "; one that holds a comma and a space becomes
    two where the text is read.
    """
    cleaned = dict.fromkeys(clean(keyword) for keyword in keywords)
    return {
        "source": source,
        "language": language,
        "name": clean(name),
        "keywords": ", ".join(keyword for keyword in cleaned if keyword),
    }


def read_texts(packages: Packages, emojis: Sequence[Emoji]) -> dict[str, list[dict[str, str]]]:
    """Returns the texts of each scene: English first, then the languages in order."""
    texts: dict[str, list[dict[str, str]]] = collections.defaultdict(list)
    emojilib = packages.json("emojilib", "dist/emoji-en-US.json")
    words = {scene_id(emoji): keywords for emoji, keywords in emojilib.items()}
    for language in ("en", *LANGUAGES):
        annotations: dict[str, dict[str, list[str]]] = {}
        for package, folder in (
            ("cldr-annotations-derived-full", "annotationsDerived"),
            ("cldr-annotations-full", "annotations"),
        ):
            data = packages.json(package, f"{folder}/{language}/annotations.json")[folder]
            for character, entry in data["annotations"].items():
                annotations[scene_id(character)] = entry
        for emoji in emojis:
            entry = annotations.get(emoji.scene_id, {})
            if entry.get("tts") and entry.get("default"):
                texts[emoji.scene_id].append(
                    text_record(f"cldr_{language}", language, entry["tts"][0], entry["default"])
                )
            if language == "en" and words.get(emoji.scene_id, [])[1:]:
                name, *keywords = (w.replace("_", " ") for w in words[emoji.scene_id])
                texts[emoji.scene_id].append(text_record("emojilib", "en", name, keywords))
    return texts


def look_alikes(ids: Sequence[str], pictures: Mapping[str, Mapping[str, np.ndarray]]) -> list[int]:
    """Groups scenes that share a drawing.

    Args:
      ids: the scenes.
      pictures: scene id -> artist -> uint8 [SIZE, SIZE, 3].

    Returns:
      For each scene the index of the first scene of its group.
    """
    parent = list(range(len(ids)))

    def find(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    artists = sorted({artist for scene in ids for artist in pictures[scene]})
    for artist in artists:
        rows = [index for index, scene in enumerate(ids) if artist in pictures[scene]]
        # A mean over 4 x 4 blocks: [rows, 16 * 16 * 3].
        small = np.stack(
            [
                pictures[ids[index]][artist]
                .reshape(16, SIZE // 16, 16, SIZE // 16, 3)
                .mean(axis=(1, 3), dtype=np.float32)
                .reshape(-1)
                for index in rows
            ]
        )
        for position, index in enumerate(rows):
            distance = np.abs(small[position + 1 :] - small[position]).mean(axis=1)
            for other in np.flatnonzero(distance < 0.5):
                first, second = sorted((find(index), find(rows[position + 1 + other])))
                parent[second] = first
    return [find(index) for index in range(len(ids))]


def split_scenes(ids: Sequence[str], groups: Sequence[str], alike: Sequence[int]) -> set[str]:
    """Returns the held-out scenes: in each group the same share, chosen by a hash of the id.

    Scenes that look alike stay together, in the group of the first of them.
    """
    members = collections.defaultdict(list)
    for index, first in enumerate(alike):
        members[first].append(index)
    by_group = collections.defaultdict(list)
    for first in members:
        by_group[groups[first]].append(first)
    heldout: set[str] = set()
    for group in sorted(by_group):
        goal = HELDOUT_FRACTION * sum(len(members[first]) for first in by_group[group])
        taken = 0
        for first in sorted(
            by_group[group], key=lambda i: hashlib.sha256(ids[i].encode()).hexdigest()
        ):
            if taken + len(members[first]) <= goal + 0.5:
                taken += len(members[first])
                heldout.update(ids[index] for index in members[first])
    return heldout


def write(out: Path, splits: Mapping[str, Sequence[dict[str, Any]]], versions: dict[str, str]):
    """Writes the records and the metadata that tensorflow-datasets needs."""
    out.mkdir(parents=True, exist_ok=True)
    infos = []
    for split, records in splits.items():
        path = out / f"emoji-{split}.array_record-00000-of-00001"
        path.unlink(missing_ok=True)
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            example = tf_example_pb2.Example.FromString(FEATURES.serialize_example(record))
            # Its features are a map, whose order is otherwise another one in each process.
            writer.write(example.SerializeToString(deterministic=True))
        writer.close()
        infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(records)], num_bytes=path.stat().st_size
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=out,
        features=FEATURES,
        split_infos=infos,
        version="1.0.0",
        check_data=False,
        description="Emojis as scenes: drawings by several artists, names and keywords in several "
        "languages.",
        license="See ATTRIBUTION.md",
        metadata=tfds.core.MetadataDict(packages=versions),
    )


def build(node_modules: Path, out: Path, *, any_version: bool = False) -> None:
    """Builds the data set and prints what it holds.

    Args:
      node_modules: the folder that `npm install` made.
      out: the folder to write.
      any_version: accept package versions other than the pinned ones.

    Raises:
      BuildError: a package is missing or has another version, or nothing is left.
    """
    packages = Packages(node_modules, any_version=any_version)
    emojis = read_emojis(packages)
    sets = {artist: IconSet(packages, name) for artist, name in ARTISTS.items()}
    labels = match(emojis, sets)
    texts = read_texts(packages, emojis)

    failed: dict[str, list[str]] = collections.defaultdict(list)
    dropped = collections.Counter[str]()
    pictures: dict[str, dict[str, np.ndarray]] = {}
    kept: list[Emoji] = []
    for emoji in emojis:
        available = [artist for artist in sets if emoji.scene_id in labels[artist]]
        english = sum(text["language"] == "en" for text in texts[emoji.scene_id])
        if english < 2 or len(texts[emoji.scene_id]) - english < MIN_LANGUAGES:
            dropped["too few texts"] += 1
            continue
        drawn = {}
        if len(available) >= MIN_PICTURES:
            for artist in available:
                array = render(sets[artist].svg(labels[artist][emoji.scene_id]))
                if array is None:
                    failed[artist].append(emoji.emoji)
                else:
                    drawn[artist] = array
        if len(drawn) < MIN_PICTURES:
            dropped["too few pictures"] += 1
            continue
        pictures[emoji.scene_id] = drawn
        kept.append(emoji)
    if not kept:
        raise BuildError(f"no scene is left of {len(emojis)} emojis: {dict(dropped)}")
    kept.sort(key=lambda emoji: emoji.scene_id)

    ids = [emoji.scene_id for emoji in kept]
    alike = look_alikes(ids, pictures)
    heldout = split_scenes(ids, [emoji.group for emoji in kept], alike)
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "heldout": []}
    for emoji in kept:
        splits["heldout" if emoji.scene_id in heldout else "train"].append(
            {
                "scene_id": emoji.scene_id,
                "emoji": emoji.emoji,
                "name": emoji.name,
                "group": emoji.group,
                "subgroup": emoji.subgroup,
                "pictures": [
                    {"artist": artist, "image": encode(array)}
                    for artist, array in pictures[emoji.scene_id].items()
                ],
                "texts": texts[emoji.scene_id],
            }
        )
    write(out, splits, packages.versions)

    print(f"{len(kept)} scenes of {len(emojis)} emojis; dropped: {dict(dropped)}")
    print("splits:", {split: len(records) for split, records in splits.items()})
    print("pictures:", dict(collections.Counter(a for i in ids for a in pictures[i])))
    print("not drawn:", dict(failed))
    print("texts:", dict(collections.Counter(t["source"] for i in ids for t in texts[i])))
    shared = collections.defaultdict(list)
    for index, first in enumerate(alike):
        shared[first].append(kept[index].emoji)
    print("look alike:", " ".join("".join(group) for group in shared.values() if len(group) > 1))
    print(f"{sum(p.stat().st_size for p in out.iterdir()) / 1e6:.2f} MB in {out}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("node_modules", type=Path, metavar="NODE_MODULES_DIR")
    parser.add_argument("--out", type=Path, default=Path("platojax/data/emoji"))
    parser.add_argument("--any-version", action="store_true", help="accept other versions")
    options = parser.parse_args(arguments)
    try:
        build(options.node_modules, options.out, any_version=options.any_version)
    except BuildError as error:
        print(f"build_emoji: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
