"""What the numbers say, in plain words: every sentence is chosen by the scores themselves."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from platojax.evaluation.comparison import IMAGE_UNTRAINED, TEXT_UNTRAINED, short_number
from platojax.report.record import BAD, GOOD, HELDOUT, NEXT_TOKEN, SAME_WORDING, Cell, Record

Verdict = Literal["above", "within", "below", "untested"]

_SIGNIFICANT = 0.05


@dataclasses.dataclass(frozen=True)
class Findings:
    """The top of the page.

    Attributes:
      headline: the main comparison in one sentence.
      lead: what was measured, its value and chance.
      details: the comparisons, a sentence each.
    """

    headline: str
    lead: str = ""
    details: tuple[str, ...] = ()


def find(record: Record) -> Findings:
    """States how the arm with good views compares with the others on held-out scenes."""
    image = record.reference
    if image is None:
        return Findings("There is no trained image arm, so nothing was compared.")
    cells, best = record.cells(HELDOUT, "embedding"), record.cells(HELDOUT, "best")
    good, next_token = cells.get((GOOD, image)), cells.get((NEXT_TOKEN, image))
    if good is None:
        headline = f"There is no arm {GOOD}, so this run says nothing about good views."
        return Findings(headline, f"Chance is {short_number(next(iter(cells.values())).chance)}.")
    others = tuple(_comparisons(record, cells, good, image))
    lead = f"{_meaning(record, good, image)} {_above_chance(good)}"
    if next_token is None:
        headline = (
            f"Text trained on good views scores {show(good)} against drawings, chance "
            f"{short_number(good.chance)}; there is no arm {NEXT_TOKEN} to compare it with."
        )
        return Findings(headline, lead, others)
    good_best, next_best = best[GOOD, image], best[NEXT_TOKEN, image]
    details = (
        f"Next-token prediction scores {show(next_token)}: {_judged(good, next_token)}.",
        f"Each at its best pair of layers instead of the embedding, good views score "
        f"{show(good_best)} and next-token prediction {show(next_best)}: "
        f"{_judged(good_best, next_best)}.",
    )
    verdicts = judge(good, next_token), judge(good_best, next_best)
    headline = _headline(*verdicts, higher=good.mean > next_token.mean)
    return Findings(headline, lead, details + others)


def judge(a: Cell, b: Cell) -> Verdict:
    """Whether a is above b by more than the seeds' spread, the larger of the two.

    "untested" where either has one seed only, for then its spread is not known.
    """
    if a.spread is None or b.spread is None:
        return "untested"
    difference = a.mean - b.mean
    if abs(difference) <= max(a.spread, b.spread):
        return "within"
    return "above" if difference > 0 else "below"


def show(cell: Cell) -> str:
    """Such as `.123 ± .004`, or `.123†` where one seed leaves the spread unknown."""
    if cell.spread is None:
        return f"{short_number(cell.mean)}†"
    return (
        f"{short_number(cell.mean)}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{short_number(cell.spread)}"
    )


def _headline(at_embedding: Verdict, at_best: Verdict, *, higher: bool) -> str:
    beaten = "Text trained on good views agrees with drawings better than next-token prediction"
    unbeaten = "Text trained on good views does not beat next-token prediction here"
    if at_embedding == "untested":
        return (
            "In this run of one seed, text trained on good views scores "
            f"{'higher' if higher else 'no higher'} against drawings than next-token prediction; "
            "one seed cannot tell a difference from luck."
        )
    if at_embedding == "above":
        if at_best == "above":
            return f"{beaten}, by more than the seeds differ."
        return f"{beaten} in its embedding, but not when each is scored at its best layers."
    if at_embedding == "below":
        return f"{unbeaten}: next-token prediction agrees with drawings better."
    return f"{unbeaten}: the difference is no larger than the seeds' spread."


def _judged(good: Cell, other: Cell) -> str:
    difference = good.mean - other.mean
    by = short_number(abs(difference))
    place = "ahead" if difference > 0 else "behind"
    match judge(good, other):
        case "above" | "below":
            return f"good views are {place} by {by}, more than the seeds' spread"
        case "within":
            return f"good views are {place} by {by}, no more than the seeds' spread"
    if good.spread is None:
        return f"good views are {place} by {by}"
    more = "more" if abs(difference) > good.spread else "no more"
    return f"good views are {place} by {by}, {more} than their own seeds' spread"


def _comparisons(
    record: Record, cells: dict[tuple[str, str], Cell], good: Cell, image: str
) -> Iterable[str]:
    """Good views against the arms other than next-token prediction, and against the controls."""
    words = {BAD: "Bad views score", SAME_WORDING: "Good views that share their wording score"}
    if TEXT_UNTRAINED in record.text_arms:
        words[TEXT_UNTRAINED] = "The same text encoder untrained scores"
    for arm, text in words.items():
        if other := cells.get((arm, image)):
            sure = _surely_trained(record, image) if arm == TEXT_UNTRAINED else ""
            yield f"{text} {show(other)}: {_judged(good, other)}{sure}."
    if other := cells.get((GOOD, IMAGE_UNTRAINED)):
        difference = good.mean - other.mean
        by = f"{short_number(abs(difference))} {'higher' if difference > 0 else 'lower'}"
        adds = "" if difference > 0 else ": training the images did not raise it"
        yield (
            f"Against an untrained image encoder, good views score {show(other)}; against {image} "
            f"the score is {by}{adds}."
        )


def _surely_trained(record: Record, image: str) -> str:
    """The p-value of good views' lead over the untrained encoder, where it was computed."""
    p_values = [
        entry["p_value"]
        for entry in record.scores.get("above_untrained", [])
        if (entry["text"], entry["image"], entry["items"]) == (GOOD, image, HELDOUT)
    ]
    if not p_values:
        return ""
    largest = f"p {short_number(max(p_values))}" if max(p_values) >= 0.001 else "p < .001"
    over = ", the largest over seeds" if len(p_values) > 1 else ""
    return f" ({largest} by random signs over scenes{over})"


def _meaning(record: Record, good: Cell, image: str) -> str:
    protocol, n = record.scores["protocol"], record.scores["items"][HELDOUT]
    whose = f"text trained on good views ({record.label(GOOD)}) and {image} ({record.label(image)})"
    if protocol["metric"] != "mutual_knn":
        return f"On {n} held-out scenes, {protocol['metric']} of {whose} is {show(good)}."
    k = protocol["k"]
    return (
        f"Of the {k} held-out scenes nearest to a scene by its words, the share that is also among "
        f"the {k} nearest by its drawing is {show(good)}, averaged over {n} scenes, for {whose}."
    )


def _above_chance(cell: Cell) -> str:
    p = f"p {short_number(cell.p_value)}" + (", the largest over seeds" if cell.seeds > 1 else "")
    if cell.p_value < _SIGNIFICANT:
        return f"Chance is {short_number(cell.chance)}; the score is above it ({p})."
    return f"Chance is {short_number(cell.chance)}; the score cannot be told from it ({p})."
