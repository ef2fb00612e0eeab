"""What a run shows in the terminal: a progress line per arm, then the tables of scores."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from platojax.evaluation.comparison import short_number, summarise

if TYPE_CHECKING:
    # Only the type: what shows scores does not load the training loop.
    from platojax.train import StepReport


@dataclasses.dataclass(frozen=True)
class ProgressLine:
    """The progress of one run."""

    progress: Progress
    task: TaskID

    def update(self, report: "StepReport") -> None:
        """Shows a logged step."""
        self.progress.update(
            self.task,
            total=report.total_steps,
            completed=report.step,
            state=f"{report.step}/{report.total_steps}  {report.samples:,} samples  "
            f"loss {report.loss:.3f}  {report.samples_per_second:,.0f}/s",
        )

    def message(self, text: str) -> None:
        """Prints a warning above the line."""
        self.progress.console.print(text, style="bold red", markup=False)


@contextmanager
def progress_line(console: Console, name: str) -> Iterator[ProgressLine]:
    """Shows one run's progress; the line stays when the run is over."""
    progress = Progress(
        TextColumn("{task.description:<23}"),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
    with progress:
        yield ProgressLine(progress, progress.add_task(name, total=None, state="compiling"))


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )


@contextmanager
def count_line(console: Console, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how many of so many are done, `total` None where nobody knows of how many.

    Yields the function to call with their number.
    """
    with _bar(console) as progress:
        task = progress.add_task(escape(name), total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def stage_line(console: Console, name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows stages one after the other; yields the function to call with (stage, done, total)."""
    with _bar(console) as progress:
        task = progress.add_task(escape(name), total=None)

        def show(stage: str, done: int, total: int) -> None:
            label = f"{escape(name)}: {stage}"
            progress.update(task, description=label, completed=done, total=total)

        yield show


def scores_table(scores: Mapping[str, Any], items: str) -> Table:
    """Every text arm against every image arm, means over seeds.

    Args:
      scores: the content of `scores.json`.
      items: name of the range of items.
    """
    summary = summarise(scores, items=items, layers="embedding")
    protocol = scores["protocol"]
    arms = scores["arms"]
    chance = next(iter(summary.values()))["chance"]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{protocol['metric']}, k = {protocol['k']}, {items} scenes "
        f"(N = {scores['items'][items]}), chance {chance:.3f}",
        caption="Mean over seeds ± their standard deviation. * p < .01 in every seed, by "
        f"{protocol['num_permutations']} permutations.",
    )
    images = list(dict.fromkeys(image for _, image in summary))
    table.add_column("words \\ drawings")
    for image in images:
        table.add_column(arms[image]["label"], justify="right")
    for text in dict.fromkeys(text for text, _ in summary):
        cells = [format_score(summary[text, image]) for image in images]
        table.add_row(arms[text]["label"], *cells)
    return table


def format_score(entry: Mapping[str, Any]) -> str:
    """Such as `.123 ±.004*`: mean, spread over seeds, and a star where p < .01."""
    spread = "" if entry["spread"] is None else f" ±{short_number(entry['spread'])}"
    return f"{short_number(entry['mean'])}{spread}{'*' if entry['p_value'] < 0.01 else ' '}"
