"""From a policy and a made-up host to nodes, files, variables, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.made_up import Tree, driver

from warmcell import InvalidRequest, PolicyViolation, SandboxPolicy, SandboxPolicyBuilder
from warmcell.core.errors import EnforcerUnavailable
from warmcell.enforcers.gpus import find_driver, parse_yaml
from warmcell.policy.gpu import AMD, check_gpus, grant_gpus, is_gpu_node, narrow_gpus

NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm-tools")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# ---- what a policy says ----


@pytest.mark.parametrize(
    ("given", "meant"),
    [(None, None), ("all", "all"), ([], None), ([1, 0, 1], (0, 1)), ((3,), (3,)), (range(2), (0, 1))],
)
def test_devices_of_a_policy(given: object, meant: object) -> None:
    assert check_gpus(given) == meant


@pytest.mark.parametrize("given", ["0", "none", 0, True, [True], [-1], ["0"], [1.0], [None], [1 << 17], range(65)])
def test_what_is_not_a_list_of_devices(given: object) -> None:
    with pytest.raises(InvalidRequest, match="gpus"):
        check_gpus(given)


def test_builder_and_json() -> None:
    assert SandboxPolicyBuilder().build().gpus is None
    assert SandboxPolicyBuilder().allow_gpu().build().gpus == "all"
    policy = SandboxPolicyBuilder().allow_gpu([1, 0]).build()
    assert policy.gpus == (0, 1)
    assert SandboxPolicy.from_json(policy.to_json()) == policy


def test_policy_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('gpus = "all"\n[limits]\ngpuMemoryMb = 100\n')
    policy = SandboxPolicy.from_file(file)
    assert policy.gpus == "all"
    assert policy.limits is not None
    assert policy.limits.gpu_memory_mb == 100
    file.write_text('gpus = "some"\n')
    with pytest.raises(InvalidRequest, match="line 1: gpus"):
        SandboxPolicy.from_file(file)


@pytest.mark.parametrize(
    ("asked", "ceiling", "granted"),
    [(None, "all", None), ("all", "all", "all"), ("all", (1,), (1,)), ([0], "all", (0,)), ([1], (0, 1), (1,))],
)
def test_a_request_gets_at_most_what_the_policy_allows(asked: object, ceiling: object, granted: object) -> None:
    assert narrow_gpus(asked, ceiling) == granted  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "ceiling", "why"), [("all", None, "no GPU"), ([2], (0, 1), "GPU 2")])
def test_a_request_for_more_is_refused(asked: object, ceiling: object, why: str) -> None:
    with pytest.raises(PolicyViolation, match=why):
        narrow_gpus(asked, ceiling)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev/kfd", True),
        ("/dev/dri/card0", True),
        ("/dev/sda", False),
    ],
)
def test_nodes_of_gpus(path: str, is_one: bool) -> None:
    assert is_gpu_node(path) is is_one


# ---- what a host has ----


def test_a_host_without_a_driver(tree: Tree) -> None:
    assert find_driver(tree.host) is None
    tree.add("/dev/nvidia0")  # a node without the driver's
    assert find_driver(tree.host) is None
    tree.add("/dev/kfd")  # a driver without a device
    assert find_driver(tree.host) is None


def test_nodes_are_found_by_their_names(tree: Tree) -> None:
    found = find_driver(tree.add(*NODES, "/dev/nvidia10", "/dev/nvidia-caps/nvidia-cap1").host)
    assert found is not None
    assert [number for number, _ in found.devices] == [0, 1, 10]
    assert found.devices[1] == (1, ((tree.path("/dev/nvidia1"), "/dev/nvidia1"),))
    assert [target for _, target in found.shared_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert found.closed_nodes == ()


def test_a_host_without_unified_memory_has_one_node_less(tree: Tree) -> None:
    found = find_driver(tree.add("/dev/nvidiactl", "/dev/nvidia0").host)
    assert found is not None
    assert [target for _, target in found.shared_nodes] == ["/dev/nvidiactl"]


def test_libraries_by_the_loaders_cache(tree: Tree) -> None:
    libraries = ("/usr/lib/libcuda.so.1", "/usr/lib/libnvidia-ml.so.1")
    found = find_driver(tree.add(*NODES).add_libraries(*libraries, "/usr/lib/libc.so.6").host)
    assert found is not None
    assert [target for _, target in found.files] == list(libraries)
    assert found.library_dirs == ()
    assert found.counts_memory


def test_libraries_that_the_loader_does_not_find(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    place = "/usr/local/nvidia/lib64"
    tree.add(*NODES, f"{place}/libcuda.so.1", f"{place}/libnvidia-ptxjitcompiler.so.1", f"{place}/other.so")
    found = find_driver(tree.host)
    assert found is not None
    assert found.library_dirs == (place,)
    assert [target for _, target in found.files] == [
        f"{place}/libcuda.so.1",
        f"{place}/libnvidia-ptxjitcompiler.so.1",
    ]
    assert not found.counts_memory


def test_a_library_in_the_callers_path_comes_first(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "relative:/opt/own")
    tree.add(*NODES, "/opt/own/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")
    found = find_driver(tree.host)
    assert found is not None
    assert found.library_dirs == ("/opt/own",)


def test_closed_nodes_are_noted(tree: Tree) -> None:
    tree.closed.append(tree.path("/dev/nvidia1"))
    found = find_driver(tree.add(*NODES).host)
    assert found is not None
    assert found.closed_nodes == (tree.path("/dev/nvidia1"),)


def test_amd_by_the_same_table(tree: Tree) -> None:
    found = find_driver(tree.add("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/card0").host)
    assert found is not None
    assert found.vendor == AMD
    assert [(number, nodes[0][1]) for number, nodes in found.devices] == [
        (0, "/dev/dri/renderD128"),
        (1, "/dev/dri/renderD129"),
    ]
    grant = grant_gpus((1,), found, "native")
    assert [target for _, target in grant.nodes] == ["/dev/kfd", "/dev/dri/renderD129"]
    assert grant.env == {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
    assert grant.measurable == ()


# ---- files of the container device interface ----

CDI = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
    - path: /dev/dri/card1
  name: "0"
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - args:
    - nvidia-ctk
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  mounts:
  - containerPath: /usr/lib64/libcuda.so.1   # the library
    hostPath: /opt/driver/libcuda.so.1
    options:
    - ro
  - containerPath: /run/nvidia-persistenced/socket
    hostPath: /opt/driver/socket
  - hostPath: /missing
    containerPath: /missing
"""


@pytest.mark.parametrize("directory", ["/etc/cdi", "/var/run/cdi"])
def test_descriptions_decide(tree: Tree, directory: str) -> None:
    """The vendor's file says that device 0 is /dev/nvidia1."""
    tree.add(*NODES, "/opt/driver/libcuda.so.1", "/opt/driver/socket").add(f"{directory}/nvidia.yaml", text=CDI)
    found = find_driver(tree.host)
    assert found is not None
    assert found.devices == ((0, ((tree.path("/dev/nvidia1"), "/dev/nvidia1"),)),)
    assert (tree.path("/opt/driver/libcuda.so.1"), "/opt/driver/libcuda.so.1") in found.files
    assert found.library_dirs == ("/opt/driver",)
    assert not [target for _, target in found.files if "socket" in target or "missing" in target]


@pytest.mark.parametrize(
    "text",
    ["", "kind: nvidia.com/gpu", "kind: other.com/gpu\ndevices: []", "a: &anchor b", "- x\n  y", "\t", "{" * 5000],
)
def test_a_file_that_says_nothing_is_ignored(tree: Tree, text: str) -> None:
    tree.add(*NODES).add("/etc/cdi/a.yaml", text=text).add("/etc/cdi/b.json", text=text).add("/etc/cdi/c", text=CDI)
    found = find_driver(tree.host)
    assert found is not None
    assert [number for number, _ in found.devices] == [0, 1]


def test_a_path_of_containers_that_the_host_has(tree: Tree) -> None:
    tree.add(*NODES, "/opt/driver/libcuda.so.1", "/usr/lib64/libcuda.so.1").add("/etc/cdi/nvidia.yaml", text=CDI)
    found = find_driver(tree.host)
    assert found is not None
    assert (tree.path("/opt/driver/libcuda.so.1"), "/usr/lib64/libcuda.so.1") in found.files


def test_json_descriptions(tree: Tree) -> None:
    text = (
        '{"kind":"nvidia.com/gpu","devices":[{"name":"4","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]}}]}'
    )
    found = find_driver(tree.add(*NODES).add("/etc/cdi/n.json", text=text).host)
    assert found is not None
    assert [number for number, _ in found.devices] == [4]


def test_plain_yaml() -> None:
    text = "a: 1\nb:\n- x\n- 'y z'\n- c: d\n  e:\n    f: g\nh:\n  - i\nj:\nk: []\n"
    assert parse_yaml(text) == {
        "a": "1",
        "b": ["x", "y z", {"c": "d", "e": {"f": "g"}}],
        "h": ["i"],
        "j": None,
        "k": [],
    }


@pytest.mark.parametrize(
    "text",
    [
        "a: |\n  b",
        "a: {b: c}",
        "a: *b",
        "'a",
        "a: 'b",
        "a\n b",
        "a:\n" + "".join(" " * n + "b:\n" for n in range(1, 40)),
    ],
)
def test_other_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_yaml(text)


# ---- what a guest gets ----


def test_a_grant_has_the_named_devices_only() -> None:
    grant = grant_gpus((1,), driver(counts_memory=True), "native")
    assert [target for _, target in grant.nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]
    assert grant.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert grant.measurable == (1,)


def test_refusals_name_the_device_and_the_remedy() -> None:
    with pytest.raises(PolicyViolation, match="/dev/nvidia5 is missing") as missing:
        grant_gpus((5,), driver(), "native")
    assert missing.value.hint == "this host has 0, 1 (see `nvidia-smi`)"
    with pytest.raises(EnforcerUnavailable, match="no GPU"):
        grant_gpus("all", None, "native")
    with pytest.raises(EnforcerUnavailable, match="cannot open /dev/null") as closed:
        grant_gpus("all", driver(closed_nodes=("/dev/null",)), "native")
    assert "chmod 0666 /dev/null" in (closed.value.hint or "")
    with pytest.raises(EnforcerUnavailable, match="NVML"):
        grant_gpus("all", driver(), "native", 100)
