"""The table of docs/scaling.md: one train step compiled for several pods and batches.

    python tools/scaling_table.py --out docs/results/scaling [--config configs/recap_940m.py]

Runs `platojax compile` for each row in a process of its own, one after the other (minutes each),
and keeps its JSON in the folder; rows that are there are not made again. Prints the table.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

# Topology, scenes in a batch, accumulation_steps.
ROWS = [
    *(("v5e:4x4", batch, 1) for batch in (4_096, 16_384, 65_536)),
    *(("v5e:4x4", batch, steps) for batch, steps in ((16_384, 8), (65_536, 32))),
    *(("v5e:16x16", batch, 1) for batch in (4_096, 16_384, 65_536)),
    *(("v5p:4x4x4", batch, 1) for batch in (4_096, 16_384, 65_536)),
    ("v4:4x4x4", 16_384, 1),
    ("v6e:16x16", 16_384, 1),
]
# 16 scenes a chip are too few for the config's groups of 64.
SMALLER_GROUPS = {("v5e:16x16", 4_096, 1): ("text.packing.group_size=16", "text.packing.rows=7")}
GB = 1e9


def compile_row(config: str, row: tuple[str, int, int], path: pathlib.Path) -> dict[str, Any]:
    """Compiles a row where its JSON is not there yet; returns the JSON."""
    topology, batch, steps = row
    if not path.exists():
        settings = (
            f"text.batch_size={batch}",
            f"text.accumulation_steps={steps}",
            *SMALLER_GROUPS.get(row, ()),
        )
        print(f"{topology}, batch {batch}, accumulation_steps {steps}", file=sys.stderr)
        result = subprocess.run(
            [
                *(sys.executable, "-c", "from platojax.cli import app; app()"),
                *("compile", "--config", config, "--topology", topology, "--json", str(path)),
                *(part for setting in settings for part in ("--set", setting)),
            ],
            stdout=subprocess.DEVNULL,
        )
        if not path.exists():  # where the step does not fit, the JSON says so
            raise SystemExit(f"platojax compile ended with {result.returncode}")
    return json.loads(path.read_text(encoding="utf-8"))


def line(row: dict[str, Any]) -> str:
    """A row in Markdown."""
    chips, steps = row["chips"], row["accumulation_steps"]
    start = f"| {row['topology']} | {chips} | {row['batch_size']:,} | {steps} |"
    if not row["fits"]:
        return f"{start} does not fit: {row['message']} |" + " |" * 8
    memory, predicted = row["memory"], row["predicted"]
    interconnect = predicted["exchange_seconds"] + predicted["exposed_seconds"]
    cells = (
        f"{memory['total'] / GB:.2f} of {row['chip']['hbm_bytes'] / GB:.1f}",
        f"{row['collective_bytes_sent'] / 1e6:.0f}",
        f"{predicted['compute_seconds'] * 1e3:.1f}",
        f"{predicted['memory_seconds'] * 1e3:.1f}",
        f"{interconnect * 1e3:.1f}",
        f"{predicted['step_seconds'] * 1e3:.1f}",
        f"{predicted['utilisation']:.0%}",
        f"{predicted['samples_per_second']:,.0f}",
        f"{predicted['hours']:.1f} ({predicted['chip_hours']:,.0f})",
    )
    return f"{start} {' | '.join(cells)} |"


def main() -> None:
    """Makes the rows that are missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/recap_940m.py")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(
        "| topology | chips | batch | accumulation | GB of a chip | MB sent | compute, ms | "
        "memory, ms | interconnect, ms | step, ms | MFU | samples/s | hours (chip-hours) |"
    )
    print("|---|" + "---:|" * 12)
    for row in ROWS:
        topology, batch, steps = row
        name = f"{topology.replace(':', '-')}_batch{batch}_accumulate{steps}.json"
        print(line(compile_row(arguments.config, row, arguments.out / name)), flush=True)


if __name__ == "__main__":
    main()
