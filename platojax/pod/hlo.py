"""Reads compiled HLO text: its collectives, and its traffic to memory."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_WIDTHS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}  # bits; others end in theirs
_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,<=]*)\](\{[^{}]*\})?")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) .*\{$")
_MOVES_NOTHING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier"),
}


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of one device.

    Attributes:
      dtype: as HLO spells it, "f32" say.
      shape: of the part that one device holds.
      memory: number of its memory space; 0 is main memory, others are inside the chip or the host.
    """

    dtype: str
    shape: tuple[int, ...]
    memory: int = 0

    @property
    def nbytes(self) -> int:
        """Size without padding."""
        bits = _WIDTHS.get(self.dtype)
        if bits is None:
            bits = int(re.findall(r"\d+", self.dtype)[0])  # f32, bf16, f8e4m3fn
        return math.prod(self.shape) * bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: without %.
      opcode: such as "fusion".
      results: the arrays that it gives; several of a tuple.
      operands: names.
      attributes: the rest of the line; of a parameter its number, of a constant its value first.
      is_root: whether the computation returns it.
    """

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    def called(self, role: str) -> str | None:
        """The computation called as `role` ("calls", "body", "to_apply")."""
        found = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return found.group(1) if found else None

    @property
    def op_name(self) -> str:
        """Where in the Python program it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
      kind: "all-reduce" say.
      arrays: what comes out on one device.
      groups: the partitions that exchange with each other, by their numbers, `[groups, members]`;
        of a permutation the pairs of a source and its target.
      times: how often it runs in a step.
      overlaps: whether it was split into a start and a done, with computation between.
      op_name: where in the Python program it comes from.
    """

    kind: str
    arrays: tuple[Array, ...]
    groups: tuple[tuple[int, ...], ...]
    times: int
    overlaps: bool
    op_name: str

    @property
    def nbytes(self) -> int:
        """Of what comes out on one device, once."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def sent_bytes(self) -> float:
        """What one device sends in a step, at least, by the kind's bandwidth-optimal algorithm."""
        n = max(len(group) for group in self.groups)
        share = (n - 1) / n
        factor = {
            "all-reduce": 2 * share,
            "all-gather": share,
            "reduce-scatter": share * n,  # what comes out is a part
            "all-to-all": share,
            "ragged-all-to-all": share,
        }.get(self.kind, 1.0 if n > 1 else 0.0)
        return self.times * self.nbytes * factor


class Module:
    """A compiled HLO module, of one device's program.

    Args:
      text: as `jax.stages.Compiled.as_text()` gives it.
      num_devices: that the program runs on.

    Raises:
      ValueError: if the text has no entry computation.
    """

    def __init__(self, text: str, num_devices: int) -> None:
        self.num_devices = num_devices
        self._computations: dict[str, list[Instruction]] = {}
        entry = None
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self._computations.setdefault(start.group(2), [])
                entry = start.group(2) if start.group(1) else entry
            elif match := _INSTRUCTION.match(line):
                current.append(_instruction(*match.groups()))
        if entry is None:
            raise ValueError("the HLO text has no ENTRY computation.")
        self._entry = entry
        self._results = {
            one.name: one.results for body in self._computations.values() for one in body
        }

    def collectives(self) -> list[Collective]:
        """Every exchange of a step; a start and its done are one, and loops count in full.

        TPU programs fuse computation into a collective's start, steps and done, each with a copy of
        the collective under one channel; and write reduce-scatter as a fused all-reduce and slice.
        """
        found: list[Collective] = []
        fused: dict[str, int] = {}  # channel -> where it is in `found`
        for instruction, times, beside in self._executed(self._entry, 1):
            if instruction.opcode != "fusion":
                for one in self._exchange(instruction, times, _outcome(instruction)):
                    found.append(dataclasses.replace(one, overlaps=one.overlaps or beside))
                continue
            name = instruction.called("calls") or ""
            for inner in self._fused(name):
                scatters = inner.opcode == "all-reduce" and name.startswith("all-reduce-scatter")
                arrays = instruction.results if scatters else inner.results
                channel = re.search(r"channel_id=(\d+)", inner.attributes)
                key = channel.group(1) if channel else f"{instruction.name}/{inner.name}"
                for one in self._exchange(inner, times, arrays):
                    if key in fused:
                        at = fused[key]
                        found[at] = dataclasses.replace(found[at], overlaps=True)
                        continue
                    fused[key] = len(found)
                    kind = "reduce-scatter" if scatters else one.kind
                    found.append(dataclasses.replace(one, kind=kind))
        return found

    def _exchange(
        self, instruction: Instruction, times: int, arrays: tuple[Array, ...]
    ) -> list[Collective]:
        """The instruction as a collective, if it is one."""
        kind = instruction.opcode.removesuffix("-start")
        if kind not in _COLLECTIVES:
            return []
        groups = _groups(instruction.attributes, self.num_devices)
        groups = tuple(
            group for group in groups if len(set(group)) > 1
        )  # to oneself is no exchange
        if not groups:
            return []
        overlaps = instruction.opcode.endswith("-start")
        return [Collective(kind, arrays, groups, times, overlaps, instruction.op_name)]

    def _fused(self, computation: str) -> Iterator[Instruction]:
        """All instructions of a fusion, fusions inside it looked into."""
        for instruction in self._computations.get(computation, ()):
            yield instruction
            if instruction.opcode == "fusion":
                yield from self._fused(instruction.called("calls") or "")

    def memory_traffic(self) -> int:
        """Bytes that a step reads from and writes to main memory, at most.

        Each instruction reads its operands and writes its results once; what the compiler keeps in
        on-chip memory is free. Where only a slice of an operand is taken or replaced, the slice
        counts. Reads that a fusion repeats, and padding of tiles, are not seen.
        """
        total = 0
        for instruction, times, _ in self._executed(self._entry, 1):
            total += times * self._traffic(instruction)
        return total

    def _executed(
        self, computation: str, times: int, beside: bool = False
    ) -> Iterator[tuple[Instruction, int, bool]]:
        """What runs, how often, and whether beside other computation; fusions are one each."""
        for instruction in self._computations.get(computation, ()):
            if instruction.opcode == "while":
                count = times * self._trip_count(instruction)
                for role in ("condition", "body"):
                    yield from self._executed(instruction.called(role) or "", count, beside)
            elif instruction.opcode == "conditional":
                branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
                names = re.findall(r"[\w.\-]+", branches.group(1)) if branches else []
                for role in ("true_computation", "false_computation"):
                    names += filter(None, [instruction.called(role)])
                for name in names:
                    yield from self._executed(name, times, beside)
            elif instruction.opcode in ("call", "async-start"):
                inner = instruction.called("to_apply") or instruction.called("calls")
                starts = instruction.opcode == "async-start"
                yield from self._executed(inner or "", times, beside or starts)
            else:
                yield instruction, times, beside

    def _trip_count(self, loop: Instruction) -> int:
        """How often a loop runs; 1 where the program does not say.

        CPU and GPU programs have it as an annotation. Those of TPUs have not: there the condition
        compares a counter with a constant, and JAX's loops count up from 0.
        """
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
            return int(known.group(1))
        condition = self._computations.get(loop.called("condition") or "", [])
        bounds = [
            int(value.group(1))
            for one in condition
            if one.opcode == "constant"
            and one.results[0].dtype in ("s32", "u32", "s64")
            and (value := re.match(r"(\d+)\)", one.attributes))
        ]
        return bounds[0] if len(bounds) == 1 else 1

    def _traffic(self, instruction: Instruction) -> int:
        opcode = instruction.opcode
        if opcode in _MOVES_NOTHING or opcode.endswith(("-done", "-update")):
            return 0
        results = self._main(instruction.results)
        operands = self._operands(instruction)
        if opcode in ("copy-start", "slice-start"):
            # (destination, source, context), or for slices ((sources), destinations, context): the
            # smallest array that is not a context is what moves, from and to its memories.
            arrays = [array for array in instruction.results if array.shape] or [Array("u8", (0,))]
            moved = min(array.nbytes for array in arrays)
            sides = {array.memory for array in arrays}
            return moved * (2 if sides == {0} else 1 if 0 in sides else 0)
        if opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * results
        if opcode == "dynamic-update-slice":
            return 2 * self._main(self._results_of(instruction, 1))
        if opcode == "fusion" and (inner := instruction.called("calls")):
            return self._fusion_traffic(inner, operands, instruction.results)
        return results + sum(map(self._main, operands))

    def _fusion_traffic(
        self, name: str, operands: Sequence[tuple[Array, ...]], results: tuple[Array, ...]
    ) -> int:
        inside = self._computations.get(name, [])
        by_name = {one.name: one for one in inside}
        total = 0
        for one in inside:
            if one.opcode != "parameter":
                continue
            number = int(one.attributes.split(")")[0])
            users = [user for user in inside if one.name in user.operands]
            whole = self._main(operands[number]) if number < len(operands) else 0
            slices = 0
            for user in users:
                if user.opcode in ("dynamic-slice", "slice", "gather") and (
                    user.operands[0] == one.name
                ):
                    slices += sum(array.nbytes for array in user.results)
                elif user.opcode == "dynamic-update-slice" and user.operands[0] == one.name:
                    update = by_name.get(user.operands[1])
                    slices += sum(a.nbytes for a in update.results) if update else 0
                else:
                    slices = whole
                    break
            total += min(whole, slices)
        root = next((one for one in inside if one.is_root), None)
        if root is not None and root.opcode == "dynamic-update-slice":
            update = by_name.get(root.operands[1])
            written = sum(array.nbytes for array in update.results) if update else 0
            return total + min(self._main(results), written)
        return total + self._main(results)

    def _operands(self, instruction: Instruction) -> list[tuple[Array, ...]]:
        return [self._results_of(instruction, i) for i in range(len(instruction.operands))]

    def _results_of(self, instruction: Instruction, operand: int) -> tuple[Array, ...]:
        return self._results.get(instruction.operands[operand], ())

    @staticmethod
    def _main(arrays: tuple[Array, ...]) -> int:
        return sum(array.nbytes for array in arrays if array.memory == 0)


def mesh_axes(
    groups: Sequence[Sequence[int]], shape: Sequence[int], names: Sequence[str]
) -> tuple[str, ...]:
    """The axes of a mesh along which the members of each group differ.

    Args:
      groups: partitions, numbered in the order of the mesh's devices.
      shape: of the mesh.
      names: of its axes.
    """
    where = np.array(np.unravel_index(np.array(groups[0]), tuple(shape)))
    varies = (where != where[:, :1]).any(axis=1)
    return tuple(name for name, differs in zip(names, varies, strict=True) if differs)


def _instruction(root: str | None, name: str, rest: str) -> Instruction:
    # "TYPE opcode(OPERANDS), ATTRIBUTES"; a tuple type has parentheses of its own.
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _closing(rest, opening)
    inside, after = rest[opening + 1 : closing], rest[closing + 1 :]
    opcode = rest[end:opening].strip()
    return Instruction(
        name=name,
        opcode=opcode,
        results=_arrays(rest[:end]),
        operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
        attributes=f"{inside}){after}" if opcode in ("parameter", "constant") else after,
        is_root=root is not None,
    )


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` closes."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i
    raise ValueError(f"HLO text ends inside a parenthesis: {text[:80]!r}")


def _arrays(text: str) -> tuple[Array, ...]:
    arrays = []
    for dtype, dims, layout in _SHAPE.findall(text):
        memory = re.search(r"S\((\d+)\)", layout)
        shape = tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim)
        arrays.append(Array(dtype, shape, int(memory.group(1)) if memory else 0))
    return tuple(arrays)


def _outcome(collective: Instruction) -> tuple[Array, ...]:
    if collective.opcode in ("all-gather-start", "collective-permute-start"):
        count = len(collective.operands)  # the operands come first, contexts last
        return collective.results[count : 2 * count]
    return collective.results


def _groups(attributes: str, num_devices: int) -> tuple[tuple[int, ...], ...]:
    """The groups of a collective, in any of HLO's spellings."""
    if pairs := re.search(r"source_target_pairs=\{(\{[\d,{}]*\})\}", attributes):
        return _listed(pairs.group(1))
    if iota := re.search(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", attributes):
        return tuple(tuple(int(i) for i in row) for row in _iota(iota.group(1)))
    if mesh := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", attributes
    ):
        return _mesh_groups(*mesh.groups())
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", attributes):
        return _listed(listed.group(1))
    return (tuple(range(num_devices)),)  # none given: all together


def _listed(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(int(i) for i in group.split(",") if i) for group in re.findall(r"\{([\d,]*)\}", text)
    )


def _iota(text: str) -> np.ndarray:
    """`[4,2]<=[2,4]T(1,0)`: the numbers 0, 1, ... in shape [2, 4], transposed, as [4, 2]."""
    parts = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if parts is None:
        raise ValueError(f"unknown form of devices in HLO: {text!r}")
    shape, source, order = (
        tuple(map(int, part.split(","))) if part else None for part in parts.groups()
    )
    numbers = np.arange(math.prod(source or ())).reshape(source)
    return (numbers.transpose(order) if order else numbers).reshape(shape)


def _mesh_groups(axes: str, devices: str | None, chosen: str) -> tuple[tuple[int, ...], ...]:
    """`mesh['a'=2,'b'=4] {'b'}`: groups along b; `'b':(2)2` is a part of b, after 2 before it."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    numbers = np.arange(math.prod(sizes.values()))
    if devices and devices.startswith("["):  # `[2,4]T(1,0)`, or `[8]<=[2,4]T(1,0)`
        whole = devices if "<=" in devices else f"[{len(numbers)}]<={devices}"
        numbers = _iota(whole).ravel()
    elif devices:
        numbers = np.array(devices.split(","), dtype=int)
    parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    shape, inside = [], []
    for name, size in sizes.items():
        done = 1
        mine = [(int(p or 1), int(n or size)) for axis, p, n in parts if axis == name]
        for before, length in sorted(mine):
            if before > done:
                shape.append(before // done)
            inside.append(len(shape))
            shape.append(length)
            done = before * length
        if done < size:
            shape.append(size // done)
    outside = [i for i in range(len(shape)) if i not in inside]
    members = math.prod(shape[i] for i in inside)
    rows = numbers.reshape(shape).transpose(*outside, *inside).reshape(-1, members)
    return tuple(tuple(int(i) for i in row) for row in rows)
