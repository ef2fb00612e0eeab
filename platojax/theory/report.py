"""The standard set run and shown: a table in the terminal, all numbers as JSON, a figure."""

import json
import pathlib
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from platojax.theory.figure import save_figure
from platojax.theory.standard import run_standard_set


def run(out: pathlib.Path, seed: int) -> None:
    """Runs the standard set, prints its table, writes `theory.json` and `theory.png` to `out`."""
    # Before the minutes of work: a path that cannot be written should fail at once.
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    with console.status("training in finite worlds") as status:
        results = run_standard_set(seed, lambda row: status.update(f"done: {row['name']}"))
    console.print(table(results["rows"]))
    (out / "theory.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    save_figure(results, out / "theory.png")
    console.print(f"{results['seconds']:.0f} s; wrote theory.json and theory.png to {out}")


def table(rows: list[dict[str, Any]]) -> Table:
    """Returns the rows of `measures.measure` as a table, worst over modalities and seeds.

    Residuals and bounds are per dimension: 0 is equal up to a rotation, 2 nothing in common.
    """
    result = Table(
        title="Separately trained modalities: loss, and how far they are from one rotation",
        caption=(
            "Worst over modalities and seeds. Residuals and bounds per dimension: 0 equal up to a "
            "rotation, 2 nothing in common.\n'any': the theory leaves it open. '-': no bound, the "
            "good optima are not unique or differ. '!': counter-example."
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    result.add_column("world", min_width=12)
    for heading in (
        "d",
        "gap",
        "loss\ntheory",
        "\ntrained",
        "angle\n(deg)",
        "residual\ntheory",
        "\ntrained",
        "scenes\ntrained",
        "bound",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*cells(row))
    return result


def cells(row: dict[str, Any]) -> list[str]:
    """Returns a row of the table, the world's name first."""
    worst = max(
        range(len(row["gap"])),
        key=lambda m: max(row["trained_loss"][m]) - row["predicted_loss"][m],
    )
    residuals = row["trained_residual"]
    predicted = row["predicted_residual"]
    return [
        row["name"],
        str(row["dim"]),
        _number(min(row["gap"])),
        f"{row['predicted_loss'][worst]:.4f}",
        f"{max(row['trained_loss'][worst]):.4f}",
        f"{max(max(angles) for angles in row['largest_angle']):.2f}" if row["unique"] else "any",
        _number(predicted["observation"]) if predicted else "any",
        _number(max(residual["observation"] for residual in residuals)),
        _number(max(residual["scene"] for residual in residuals)),
        _number(max(row["trained_bound"])) if row["trained_bound"] else "-",
    ]


def _number(value: float) -> str:
    """Two significant digits; what rounding and float32 training leave is shown as 0."""
    return "0" if abs(value) < 1e-8 else f"{value:.2g}"
