"""`platojax compile`: a config's train step, compiled for a pod that is not there."""

import dataclasses
import pathlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from platojax.commands.config_file import arms_of, check_arms, load_config
from platojax.data.sources import load_vocabulary
from platojax.files import check_writable, to_json, write_whole
from platojax.pod import memory
from platojax.pod.hlo import Collective, Module, mesh_axes
from platojax.pod.roofline import Roofline, predict
from platojax.pod.target import Target, make_target, prepare_process, read_program


@dataclasses.dataclass(frozen=True)
class Report:
    """What compilation shows of a run.

    Attributes:
      target: the slice.
      config: of the run.
      memory: of one chip.
      collectives: of one chip, a step; see `_collective_rows`.
      sent_bytes: by all of them together.
      model_flops: of a step's forward and backward pass, see `platojax.flops`.
      hardware_flops: of the step as it is: rematerialisation and second forward passes included.
      traffic: bytes of one chip to and from its memory, a step.
      roofline: seconds of a step.
    """

    target: Target
    config: ConfigDict
    memory: memory.Memory
    collectives: list[dict[str, Any]]
    sent_bytes: float
    model_flops: int
    hardware_flops: int
    traffic: int
    roofline: Roofline

    @property
    def utilisation(self) -> float:
        """Model FLOPs over what the chips could do in a step's time."""
        peak = self.target.chip.bf16_flops * len(self.target.devices)
        return self.model_flops / (peak * self.roofline.step)

    @property
    def samples_per_second(self) -> float:
        """Scenes."""
        return self.config.batch_size / self.roofline.step

    @property
    def hours(self) -> float:
        """Of the whole run."""
        return self.config.num_samples / self.samples_per_second / 3600

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes, FLOPs and seconds; all but the totals of FLOPs are one chip's."""
        chips = len(self.target.devices)
        return {
            **_setting(self.target, self.config),
            "fits": True,
            "memory": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "collectives": self.collectives,
            "collective_bytes_sent": round(self.sent_bytes),
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "memory_traffic": self.traffic,
            "predicted": {
                **{f"{name}_seconds": s for name, s in dataclasses.asdict(self.roofline).items()},
                "step_seconds": self.roofline.step,
                "bound": self.roofline.bound,
                "utilisation": self.utilisation,
                "samples_per_second": self.samples_per_second,
                "hours": self.hours,
                "chip_hours": self.hours * chips,
            },
        }


def run(
    config: str,
    topology: str,
    *,
    arm: str | None,
    overrides: Sequence[str],
    json_out: pathlib.Path | None,
) -> bool:
    """Compiles a run's train step, and prints what it will cost.

    Args:
      config: path of a config file, with `:ARGUMENT` where it takes one.
      topology: see `pod.target.make_target`.
      arm: its name; the first of the config where None.
      overrides: `field.of.the.config=value`.
      json_out: where to write the same as JSON.

    Returns:
      Whether the step fits in the chips' memory; if not, the largest buffers are printed.

    Raises:
      ImportError: there is no libtpu here.
      ValueError: a field, the topology or the arm is impossible.
    """
    if json_out is not None:
        check_writable(json_out, inputs=())
    run_config, vocabulary = _load(config, arm, overrides)
    with tempfile.TemporaryDirectory(prefix="platojax-compile-") as folder:
        dump = pathlib.Path(folder)
        prepare_process(dump)
        target = make_target(topology)
        try:
            report = compile_run(run_config, vocabulary, target, dump)
        except memory.DoesNotFit as refusal:
            _show_refusal(refusal)
            content: dict[str, Any] = {
                **_setting(target, run_config),
                "fits": False,
                "message": str(refusal),
                "largest": [dataclasses.asdict(buffer) for buffer in refusal.largest],
            }
        else:
            _show(report)
            content = report.to_dict()
    if json_out is not None:
        write_whole(json_out, to_json(content))
    return bool(content["fits"])


def compile_run(config: ConfigDict, vocabulary: Any, target: Target, dump: pathlib.Path) -> Report:
    """Compiles the train step of a run for a slice.

    Args:
      config: of the run.
      vocabulary: of the text arms, see `platojax.arm.Vocabulary`.
      target: the slice.
      dump: where XLA leaves its reports, see `prepare_process`.

    Raises:
      pod.memory.DoesNotFit: the step needs more memory than a chip has.
      ValueError: a field is impossible.
    """
    import jax

    from platojax import sharding
    from platojax.data.views import example_views
    from platojax.flops import count_flops_by_kind
    from platojax.model_flops import model_flops
    from platojax.program import check_batch, make_program

    mesh = sharding.make_mesh(**config.mesh, devices=target.devices)
    check_batch(config, mesh)
    example = example_views(config.views, config.encoder)
    with jax.set_mesh(mesh):
        program = make_program(config, vocabulary, example, mesh)
        batch = program.batch(config.batch_size)
        flops = count_flops_by_kind(program.step, program.state, batch)
        model = model_flops(config, vocabulary, program.state.params, batch)
        lowered = program.step.lower(program.state, batch)
    chip = target.chip
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        refusal = memory.read_refusal(error, chip.name, memory.largest_buffers(dump))
        if refusal is None:
            raise
        raise refusal from error
    needed = memory.measure(compiled, memory.largest_buffers(dump))
    memory.check_fits(needed, chip.hbm_bytes, chip.name)
    module = Module(read_program(dump), len(target.devices))
    collectives = module.collectives()
    traffic = module.memory_traffic()
    devices = tuple(mesh.devices.flat)
    return Report(
        target=target,
        config=config,
        memory=needed,
        collectives=_collective_rows(collectives, mesh),
        sent_bytes=sum(collective.sent_bytes for collective in collectives),
        model_flops=model,
        hardware_flops=sum(flops.values()),
        traffic=traffic,
        roofline=predict(target, devices, flops, traffic, collectives),
    )


def _load(path: str, arm: str | None, overrides: Sequence[str]) -> tuple[ConfigDict, Any]:
    """The config of the chosen arm, and its vocabulary."""
    config = load_config(path, overrides)
    arms = arms_of(config)
    check_arms([] if arm is None else [arm], list(arms))
    return arms[arm or next(iter(arms))].config, load_vocabulary(config.data)


def _collective_rows(collectives: Sequence[Collective], mesh: Any) -> list[dict[str, Any]]:
    """Collectives of one kind, axes and shape together, those that send most first."""
    rows: dict[tuple[str, tuple[str, ...], str, bool], Counter[str]] = {}
    for one in collectives:
        axes = mesh_axes(one.groups, mesh.devices.shape, mesh.axis_names)
        count = len(one.arrays)
        for array, number in Counter(one.arrays).items():
            share = one.sent_bytes * number * array.nbytes / max(one.nbytes, 1)
            row = rows.setdefault((one.kind, axes, str(array), one.overlaps), Counter())
            row["count"] += one.times * number
            row["bytes"] += one.times * number * array.nbytes
            row["bytes_sent"] += round(share) if count else 0
    ranked = sorted(rows.items(), key=lambda item: -item[1]["bytes_sent"])
    return [
        {"kind": kind, "axes": list(axes), "array": array, "overlaps": overlaps, **row}
        for (kind, axes, array, overlaps), row in ranked
    ]


def _setting(target: Target, config: ConfigDict) -> dict[str, Any]:
    return {
        "topology": target.topology,
        "chips": len(target.devices),
        "chip": dataclasses.asdict(target.chip),
        "batch_size": config.batch_size,
        "accumulation_steps": config.accumulation_steps,
        "remat": config.encoder.get("remat", False),
        "num_samples": config.num_samples,
    }


def _show_refusal(refusal: memory.DoesNotFit) -> None:
    console = Console(stderr=True)
    console.print(f"Does not fit: {refusal}", markup=False, highlight=False, soft_wrap=True)
    if refusal.largest:
        table = Table(box=box.SIMPLE_HEAD, title="The largest buffers of a chip")
        table.add_column("size", justify="right")
        table.add_column("arrays that share it, one after the other")
        for buffer in refusal.largest:
            table.add_row(_size(buffer.nbytes), buffer.arrays.replace("[", r"\["))
        console.print(table)
    console.print(
        "Raise accumulation_steps, set encoder.remat, lower batch_size, spread parameters by "
        "mesh.fsdp, or take more chips."
    )


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes / 2**10:.2f} KiB"


def _show(report: Report) -> None:
    console = Console()
    target, config, needed = report.target, report.config, report.memory
    chips = len(target.devices)
    shown = 12
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{target.topology}: {chips} chips, batch {config.batch_size:,}, "
        f"accumulation_steps {config.accumulation_steps}",
    )
    table.add_column("memory of a chip")
    table.add_column("size", justify="right")
    for name in ("arguments", "outputs", "aliased", "temporaries", "code", "total"):
        table.add_row(name, _size(getattr(needed, name)))
    table.add_row(f"HBM of a {target.chip.name}", _size(target.chip.hbm_bytes))
    console.print(table)

    table = Table(box=box.SIMPLE_HEAD, caption="Of one chip, a step; sent: at least, by a ring.")
    for name in ("collective", "mesh axes", "array"):
        table.add_column(name)
    for name in ("arrays", "MB", "MB sent"):
        table.add_column(name, justify="right")
    for row in report.collectives[:shown]:
        kind = row["kind"] + (" (overlaps)" if row["overlaps"] else "")
        table.add_row(
            kind,
            " ".join(row["axes"]),
            row["array"].replace("[", r"\["),
            f"{row['count']}",
            f"{row['bytes'] / 1e6:.3f}",
            f"{row['bytes_sent'] / 1e6:.3f}",
        )
    if rest := report.collectives[shown:]:
        table.add_row(
            f"{len(rest)} other shapes",
            "",
            "",
            f"{sum(row['count'] for row in rest)}",
            f"{sum(row['bytes'] for row in rest) / 1e6:.3f}",
            f"{sum(row['bytes_sent'] for row in rest) / 1e6:.3f}",
        )
    total = sum(row["bytes"] for row in report.collectives)
    table.add_row("all", "", "", "", f"{total / 1e6:.3f}", f"{report.sent_bytes / 1e6:.3f}")
    console.print(table)

    roofline = report.roofline
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="At the chip's peak rates, computation and memory hiding each other: a bound that "
        "real steps do not reach. Nothing ran.",
    )
    table.add_column("predicted")
    table.add_column("", justify="right")
    for name, value in (
        ("model FLOPs of a step", f"{report.model_flops:.3e}"),
        ("FLOPs of a step, recomputation included", f"{report.hardware_flops:.3e}"),
        ("memory traffic of a chip", f"{report.traffic / 1e9:.2f} GB"),
        ("compute", f"{roofline.compute * 1e3:.3f} ms"),
        ("memory", f"{roofline.memory * 1e3:.3f} ms"),
        ("exchange beside computation", f"{roofline.exchange * 1e3:.3f} ms"),
        ("exchange while the chip waits", f"{roofline.exposed * 1e3:.3f} ms"),
        ("step", f"{roofline.step * 1e3:.3f} ms, bound by {roofline.bound}"),
        ("model FLOPs utilisation", f"{report.utilisation:.1%}"),
        ("samples/s", f"{report.samples_per_second:,.0f}"),
        (
            f"the run of {config.num_samples:,} samples",
            f"{report.hours:.2f} h, {report.hours * chips:,.0f} chip-hours",
        ),
    ):
        table.add_row(name, value)
    console.print(table)
