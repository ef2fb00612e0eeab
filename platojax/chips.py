"""What accelerators can do at most: peak FLOP/s, memory, interconnect, from public tables."""

import dataclasses

GIB = 2**30

# How many bfloat16 products a TPU makes of one float32 product, by precision (jax.lax.Precision).
_TPU_PASSES = {"default": 1, "high": 3, "highest": 6}


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, as JAX sees it (a TPU v4 or v5p of two cores is one device).

    Attributes:
      name: short, as in a topology ("v5e") or a data sheet ("H100").
      device_kinds: what `jax.Device.device_kind` says, by driver.
      bf16_flops: peak of dense bfloat16 matrix products, FLOP/s.
      fp32_flops: the same of float32; None where they are made of bfloat16 products.
      hbm_bytes: memory, bytes.
      hbm_bandwidth: bytes/s.
      links: direct neighbours that it is wired to in a torus; 0 for chips on a switch.
      link_bandwidth: of one link in one direction, bytes/s; all directions together on a switch.
    """

    name: str
    device_kinds: tuple[str, ...]
    bf16_flops: float
    fp32_flops: float | None
    hbm_bytes: int
    hbm_bandwidth: float
    links: int
    link_bandwidth: float

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        return self.device_kinds[0].startswith("TPU")

    def peak(self, dtype: str, precision: str = "default") -> float:
        """Peak FLOP/s of matrix products of `dtype` ("bfloat16", "float32") at a `lax.Precision`.

        On TPUs a float32 product is one, three or six bfloat16 products, by its precision.
        """
        if dtype in ("bfloat16", "float16"):
            return self.bf16_flops
        if self.fp32_flops is None:
            return self.bf16_flops / _TPU_PASSES.get(precision, 1)
        return self.fp32_flops


# TPUs: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read November 2026. Their "bidirectional
# ICI bandwidth per chip" is both directions of all links: v5e 400 GB/s over 4, v5p 1200 over 6, v6e
# 800 over 4; v4 by its 2400 Gbit/s out of 6 links. Twice the links times these one-way rates gives
# it back. NVIDIA, the SXM boards: the data sheets "NVIDIA A100 Tensor Core GPU", "H100" and "H200",
# whose H figures with sparsity are halved; fp32 is without TF32.
_CHIPS = (
    Chip("v4", ("TPU v4",), 275e12, None, 32 * GIB, 1200e9, 6, 50e9),
    Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, None, 16 * GIB, 819e9, 4, 50e9),
    Chip("v5p", ("TPU v5", "TPU v5p"), 459e12, None, 95 * GIB, 2765e9, 6, 100e9),
    Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, None, 32 * GIB, 1638e9, 4, 100e9),
    Chip("A100-40", ("NVIDIA A100-SXM4-40GB",), 312e12, 19.5e12, 40 * 10**9, 1555e9, 0, 300e9),
    Chip("A100", ("NVIDIA A100-SXM4-80GB",), 312e12, 19.5e12, 80 * 10**9, 2039e9, 0, 300e9),
    Chip("H100", ("NVIDIA H100 80GB HBM3",), 989e12, 67e12, 80 * 10**9, 3350e9, 0, 450e9),
    Chip("H200", ("NVIDIA H200",), 989e12, 67e12, 141 * 10**9, 4800e9, 0, 450e9),
)
CHIPS = {chip.name: chip for chip in _CHIPS}


def find_chip(device_kind: str) -> Chip | None:
    """The chip of a JAX device, by its `device_kind`; None where its peak is not known here.

    Only whole names match: boards of one family (PCIe, NVL, a MIG slice) differ in their peaks.
    """
    return next((chip for chip in _CHIPS if device_kind in chip.device_kinds), None)
