"""Kernelspecs with our provisioner."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.enforcers.host import ask

PROVISIONER = "warmcell"
_ASK_IPYKERNEL = "import json; from ipykernel.kernelspec import get_kernel_dict; print(json.dumps(get_kernel_dict()))"


def python_spec(python: str) -> dict[str, Any]:
    """The kernelspec of that Python's ipykernel, whose features depend on its version."""
    try:
        spec: dict[str, Any] = json.loads(ask([python, "-c", _ASK_IPYKERNEL]))
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
            hint = "use --user, or --prefix DIR"
            raise BackendUnavailable(f"could not write the kernelspec: {error}", hint=hint) from None
