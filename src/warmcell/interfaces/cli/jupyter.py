"""`warmcell jupyter install`: installs a Jupyter kernel that runs in a cage, by a kernelspec with our provisioner."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.enforcers.host import query_tool
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import OK, UsageError
from warmcell.interfaces.cli.render import print_json

if TYPE_CHECKING:
    from argparse import Namespace

PROVISIONER = "warmcell"
_ASK_IPYKERNEL = "import json; from ipykernel.kernelspec import get_kernel_dict; print(json.dumps(get_kernel_dict()))"


def jupyter(arguments: Namespace) -> int:
    """Install the kernelspec and print its directory."""
    try:
        from warmcell.interfaces.jupyter import provisioner  # noqa: F401
    except ImportError as error:
        hint = "pip install 'warmcell[jupyter]'"
        raise BackendUnavailable(f"kernels need the package {error.name!r}", hint=hint) from None
    if arguments.kernel and arguments.python:
        raise UsageError("--kernel and --python cannot be combined", "leave --python out")
    if arguments.user and arguments.prefix:
        raise UsageError("--user and --prefix cannot be combined", "leave one of them out")
    settings = _settings(arguments)
    resources = None
    if arguments.kernel:
        spec, resources = installed_spec(arguments.kernel)
    else:
        spec = python_spec(os.path.abspath(arguments.python or sys.executable))
    spec["display_name"] = arguments.display_name or spec["display_name"]
    spec["env"] = {**spec.get("env", {}), **options.environment(arguments.env)}
    made = with_provisioner(spec, settings)
    directory = install(made, arguments.name, resources, user=arguments.user, prefix=arguments.prefix)
    print_json({"status": "success", "path": directory}) if arguments.json else print(directory)
    return OK


def _settings(arguments: Namespace) -> dict[str, Any]:
    """The provisioner's settings, for `kernel.json`."""
    if arguments.beside_notebook and arguments.work_dir:
        raise UsageError("--beside-notebook and --work-dir cannot be combined", "leave one of them out")
    work_dir = os.path.abspath(arguments.work_dir) if arguments.work_dir else None
    if work_dir and not os.path.isdir(work_dir):
        raise UsageError(f"--work-dir: {arguments.work_dir!r} is not a directory", "create it first")
    reads, writes = (
        [os.path.abspath(path) for path in paths] for paths in (arguments.allow_read, arguments.allow_write)
    )
    policy = options.policy(reads, writes, arguments.allow_domain, arguments.policy, arguments.gpu)
    return {
        "policy": None if policy is None else json.loads(policy.to_json()),
        "memory_mb": options.whole_number("--memory", arguments.memory, 1 << 20),
        "work_dir": work_dir,
        "beside_notebook": True if arguments.beside_notebook else None,
    }


def python_spec(python: str) -> dict[str, Any]:
    """The kernelspec of that Python's ipykernel, whose features depend on its version."""
    try:
        spec: dict[str, Any] = json.loads(query_tool([python, "-c", _ASK_IPYKERNEL]))
    except (BackendUnavailable, ValueError) as error:
        raise BackendUnavailable(
            f"{python} has no working ipykernel ({getattr(error, 'message', error)})",
            hint=f"{python} -m pip install ipykernel",
        ) from None
    spec["argv"] = [python, *spec["argv"][1:]]
    return {**spec, "display_name": "Python (Warmcell)"}


def installed_spec(name: str) -> tuple[dict[str, Any], str]:
    """The kernelspec of an installed kernel, and its resource directory."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        hint = "'jupyter kernelspec list' lists them"
        raise InvalidRequest(f"Jupyter has no kernel {name!r}", field="kernel", hint=hint) from None
    spec: dict[str, Any] = json.loads(found.to_json())
    return {**spec, "display_name": f"{spec['display_name']} (Warmcell)"}, found.resource_dir


def with_provisioner(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Add our provisioner with these settings, except those that are None."""
    config = {name: value for name, value in settings.items() if value is not None}
    provisioner = {"provisioner_name": PROVISIONER, "config": config}
    return {**spec, "metadata": {**spec.get("metadata", {}), "kernel_provisioner": provisioner}}


def install(spec: dict[str, Any], name: str, resources: str | None, *, user: bool, prefix: str | None) -> str:
    """Install the kernelspec with the files of `resources`, by default for this environment; return its directory."""
    from jupyter_client.kernelspec import KernelSpecManager

    if prefix is None and not user:
        is_environment = sys.prefix != sys.base_prefix
        prefix, user = (sys.prefix, False) if is_environment else (None, True)
    with tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "kernel")
        shutil.copytree(resources, source) if resources else os.mkdir(source)
        Path(source, "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        try:
            return str(KernelSpecManager().install_kernel_spec(source, name, user=user, prefix=prefix))
        except ValueError as error:
            raise InvalidRequest(str(error), field="name") from None
        except OSError as error:
            hint = "use --prefix DIR" if user else "use --user, or --prefix DIR"
            raise BackendUnavailable(f"cannot write the kernelspec: {error}", hint=hint) from None
