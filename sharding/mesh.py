"""Meshes, and which devices learn and which sample.

All meshes have Auto axis types: the compiler propagates shardings from a few constraints. The
axes are "fsdp", over which parameters and batch rows are cut, and "tensor", over which heads,
hidden units and the vocabulary are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

FSDP = "fsdp"
TENSOR = "tensor"


def make_mesh(devices: Sequence[jax.Device], axes: Mapping[str, int]) -> Mesh:
    """Arrange devices in a mesh with named axes, in the order given, the last axis fastest.

    Built from `Mesh` itself, whose arguments, unlike those of `jax.make_mesh`, are the same in
    all supported versions of JAX.

    Args:
      devices: as many as the product of the sizes.
      axes: name → size, >= 1.

    Raises:
      ValueError: where the sizes don't multiply to the number of devices.

    Example:
      >>> make_mesh(jax.devices()[:1], {"fsdp": 1, "tensor": 1}).axis_names
      ('fsdp', 'tensor')
    """
    sizes = tuple(axes.values())
    if min(sizes, default=1) < 1 or math.prod(sizes) != len(devices):
        raise ValueError(
            f"axes {dict(axes)} need sizes >= 1 with a product of {len(devices)}, the number of "
            "devices; change the sizes or the devices"
        )
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return Mesh(grid.reshape(sizes), tuple(axes), axis_types=(AxisType.Auto,) * len(sizes))


@dataclass(frozen=True)
class Topology:
    """Which devices learn and which sample: the same ones, or none in common.

    Attributes:
      learner: the learner's devices.
      sampler: the sampler's devices.
      learner_tensor: size of the learner's "tensor" axis; "fsdp" gets the rest.
      sampler_tensor: size of the sampler's "tensor" axis.

    Raises:
      ValueError: for no devices, sets that overlap in part, or sizes that don't divide.

    Example:
      >>> Topology.local(1).placement
      'collocated'
    """

    learner: tuple[jax.Device, ...]
    sampler: tuple[jax.Device, ...]
    learner_tensor: int = 1
    sampler_tensor: int = 1

    def __post_init__(self) -> None:
        shared = set(self.learner) & set(self.sampler)
        if shared and set(self.learner) != set(self.sampler):
            raise ValueError(
                f"learner and sampler share {len(shared)} devices, but not all; give both the "
                "same devices, or none in common"
            )
        for name in ("learner", "sampler"):
            devices, tensor = getattr(self, name), getattr(self, f"{name}_tensor")
            if not devices or tensor < 1 or len(devices) % tensor:
                raise ValueError(
                    f"{name}_tensor must be >= 1 and divide the {len(devices)} devices of the "
                    f"{name}, of which there must be one or more, got {tensor}"
                )

    @classmethod
    def local(cls, device_count: int | None = None) -> Self:
        """Learn and sample on the first `device_count` devices of this process; None: all."""
        devices = _first_local_devices(device_count)
        return cls(learner=devices, sampler=devices)

    @classmethod
    def split(cls, learner_count: int, sampler_count: int) -> Self:
        """Learn on the first devices of this process and sample on the next ones."""
        devices = _first_local_devices(learner_count + sampler_count)
        return cls(learner=devices[:learner_count], sampler=devices[learner_count:])

    @property
    def placement(self) -> Literal["collocated", "disaggregated"]:
        """Whether learner and sampler share their devices."""
        return "collocated" if set(self.learner) == set(self.sampler) else "disaggregated"

    @property
    def learner_mesh(self) -> Mesh:
        """The learner's mesh, ("fsdp", "tensor")."""
        return _fsdp_tensor_mesh(self.learner, self.learner_tensor)

    @property
    def sampler_mesh(self) -> Mesh:
        """The sampler's mesh, ("fsdp", "tensor")."""
        return _fsdp_tensor_mesh(self.sampler, self.sampler_tensor)

    def table(self) -> dict[str, dict[str, object]]:
        """Say which devices learn and which sample, and how each set is cut, as JSON has it."""
        sides = {"learner": self.learner_mesh, "sampler": self.sampler_mesh}
        return {
            side: {"kind": mesh.devices.flat[0].device_kind, **mesh.shape}
            | {"devices": [device.id for device in mesh.devices.flat]}
            for side, mesh in sides.items()
        }

    def describe(self) -> str:
        """Say the same in one line, for people.

        Example:
          >>> Topology.local(1).describe()
          'learner and sampler: the same device, 1 x cpu'
        """
        if len(self.learner) == 1 and self.placement == "collocated":
            return f"learner and sampler: the same device, {_counted(self.learner)}"
        learner, sampler = (_cut(mesh) for mesh in (self.learner_mesh, self.sampler_mesh))
        if self.placement == "collocated":
            same = _counted(self.learner)
            return f"learner ({learner}) and sampler ({sampler}): the same devices, {same}"
        others = len(self.sampler)
        return f"learner: {_counted(self.learner)} ({learner}); sampler: {others} more ({sampler})"


def _counted(devices: Sequence[jax.Device]) -> str:
    processes = len({device.process_index for device in devices})
    whose = f" of {processes} processes" if processes > 1 else ""
    return f"{len(devices)} x {devices[0].device_kind}{whose}"


def _cut(mesh: Mesh) -> str:
    return " x ".join(f"{name} {size}" for name, size in mesh.shape.items())


def _fsdp_tensor_mesh(devices: Sequence[jax.Device], tensor: int) -> Mesh:
    return make_mesh(devices, {FSDP: len(devices) // tensor, TENSOR: tensor})


def _first_local_devices(count: int | None) -> tuple[jax.Device, ...]:
    devices = tuple(jax.local_devices())
    wanted = len(devices) if count is None else count
    if not 1 <= wanted <= len(devices):
        raise ValueError(
            f"{wanted} devices wanted, this process has {len(devices)}; ask for 1 to "
            f"{len(devices)}"
        )
    return devices[:wanted]
