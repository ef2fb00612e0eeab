import io

import pytest
from rich.console import Console

from platojax import terminal
from platojax.train import StepReport


def scores():
    entry = dict(items="heldout", layers="embedding", chance=0.033, image="image_good")
    return {
        "protocol": {"metric": "mutual_knn", "k": 10, "num_permutations": 200},
        "items": {"heldout": 304},
        "arms": {
            "text_good": {"label": "two languages", "modality": "text"},
            "text_bad": {"label": "two masks", "modality": "text"},
            "image_good": {"label": "two artists", "modality": "image"},
        },
        "scores": [
            dict(text="text_good", text_seed=0, score=0.11, p_value=0.005, **entry),
            dict(text="text_good", text_seed=1, score=0.13, p_value=0.005, **entry),
            dict(text="text_bad", text_seed=0, score=0.04, p_value=0.2, **entry),
        ],
    }


def rendered(renderable):
    output = io.StringIO()
    Console(file=output, width=80, force_terminal=False).print(renderable)
    return output.getvalue()


def test_table_shows_means_spreads_and_chance_in_80_columns():
    text = rendered(terminal.scores_table(scores(), "heldout"))
    assert "N = 304" in text
    assert "chance 0.033" in text
    assert ".120 ±.014*" in text
    assert ".040 " in text
    assert ".040*" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_progress_shows_the_last_report_and_keeps_warnings():
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=False)
    with terminal.progress_line(console, "text_same_wording-seed0") as line:
        line.message("collapse: [at] step 3")
        line.update(StepReport(400, 400, 25600, 0.1484, 758.3))
    shown = output.getvalue()
    assert "collapse: [at] step 3" in shown
    assert "400/400  25,600 samples  loss 0.148  758/s" in shown


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (dict(mean=0.1234, spread=None, p_value=0.005), ".123*"),
        (dict(mean=0.1234, spread=0.0056, p_value=0.05), ".123 ±.006 "),
        (dict(mean=1.0, spread=0.0, p_value=0.005), "1.000 ±.000*"),
    ],
)
def test_scores_are_short(entry, text):
    assert terminal.format_score(entry) == text
