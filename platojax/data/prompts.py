"""Texts that name classes, for zero-shot classification."""

from collections.abc import Mapping
from typing import Any

# The 18 prompts with which CLIP's authors classify CIFAR (github.com/openai/CLIP, data/prompts.md).
CLIP_TEMPLATES = tuple(
    template.format(article)
    for article in ("a", "the")
    for template in (
        "a photo of {} {{}}.",
        "a blurry photo of {} {{}}.",
        "a black and white photo of {} {{}}.",
        "a low contrast photo of {} {{}}.",
        "a high contrast photo of {} {{}}.",
        "a bad photo of {} {{}}.",
        "a good photo of {} {{}}.",
        "a photo of {} small {{}}.",
        "a photo of {} big {{}}.",
    )
)
STYLES = ("clip", "name", "definition")


def class_prompts(style: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts about one class.

    Args:
      style: "clip", the 18 templates around the name; "name", the name alone; or "definition",
        `<name> - <definition>`, which pair-free maps were published with (arXiv 2610.09411).
      row: with `name`, and `definition` where the style needs it.

    Raises:
      ValueError: the style is unknown, or a field is missing.
    """
    if style not in STYLES:
        raise ValueError(f"prompts {style!r} are unknown; choose one of {', '.join(STYLES)}")
    needed = ("name", "definition") if style == "definition" else ("name",)
    missing = [field for field in needed if not str(row.get(field) or "").strip()]
    if missing:
        raise ValueError(f"has no {missing[0]}, which prompts {style!r} need")
    name = str(row["name"]).replace("_", " ")
    if style == "clip":
        return tuple(template.format(name) for template in CLIP_TEMPLATES)
    return (name,) if style == "name" else (f"{name} - {row['definition']}",)
