"""Meshes and topologies on eight fake devices."""

import jax
import pytest
from jax.sharding import AxisType

from headrace.sharding.mesh import Topology, make_mesh


def test_a_mesh_keeps_the_order_of_devices_and_axes() -> None:
    devices = jax.devices()[:8]
    mesh = make_mesh(devices, {"a": 2, "b": 4})
    assert mesh.axis_names == ("a", "b")
    assert mesh.devices.shape == (2, 4)
    assert list(mesh.devices.flat) == devices
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


@pytest.mark.parametrize("axes", [{"a": 3}, {"a": 2, "b": 2}, {"a": -8, "b": -1}, {}])
def test_sizes_that_do_not_fit_are_refused(axes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="product of 8"):
        make_mesh(jax.devices()[:8], axes)


def test_topologies() -> None:
    local = Topology.local()
    assert local.placement == "collocated"
    assert local.learner_mesh.devices.shape == (8, 1)
    split = Topology.split(2, 3)
    assert split.placement == "disaggregated"
    assert split.sampler == tuple(jax.devices()[2:5])
    devices = tuple(jax.devices())
    wide = Topology(devices[:4], devices[4:], learner_tensor=2, sampler_tensor=4)
    assert wide.learner_mesh.devices.shape == (2, 2)
    assert wide.sampler_mesh.devices.shape == (1, 4)


def test_a_topology_says_what_learns_and_what_samples() -> None:
    devices = tuple(jax.devices())
    apart = Topology(devices[:4], devices[4:6], learner_tensor=2)
    assert (
        apart.describe()
        == "learner: 4 x cpu (fsdp 2 x tensor 2); sampler: 2 more (fsdp 2 x tensor 1)"
    )
    assert apart.table() == {
        "learner": {"kind": "cpu", "fsdp": 2, "tensor": 2, "devices": [0, 1, 2, 3]},
        "sampler": {"kind": "cpu", "fsdp": 2, "tensor": 1, "devices": [4, 5]},
    }
    together = Topology(devices[:2], devices[:2], sampler_tensor=2).describe()
    assert together == (
        "learner (fsdp 2 x tensor 1) and sampler (fsdp 1 x tensor 2): the same devices, 2 x cpu"
    )


def test_impossible_topologies_are_refused() -> None:
    devices = tuple(jax.devices())
    with pytest.raises(ValueError, match="share 1 devices, but not all"):
        Topology(devices[:3], devices[2:5])
    with pytest.raises(ValueError, match="sampler_tensor must be >= 1 and divide the 4"):
        Topology(devices[:4], devices[4:], sampler_tensor=3)
    with pytest.raises(ValueError, match="divide the 0 devices"):
        Topology((), devices)
    with pytest.raises(ValueError, match="9 devices wanted, this process has 8"):
        Topology.local(9)
