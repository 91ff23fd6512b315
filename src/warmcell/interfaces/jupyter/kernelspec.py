"""The kernelspec that Jupyter finds: a kernel's own, with our provisioner in it."""

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
    """As that Python's ipykernel describes itself: what it can encrypt and debug depends on its version."""
    try:
        spec: dict[str, Any] = json.loads(ask([python, "-c", _ASK_IPYKERNEL]))
    except (BackendUnavailable, ValueError) as error:
        raise BackendUnavailable(
            f"{python} has no ipykernel that works ({getattr(error, 'message', error)})",
            hint=f"{python} -m pip install ipykernel",
        ) from None
    spec["argv"] = [python, *spec["argv"][1:]]
    return {**spec, "display_name": "Python (Warmcell)"}


def installed_spec(name: str) -> tuple[dict[str, Any], str]:
    """Of a kernel that Jupyter has already, with the directory of what belongs to it."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        hint = "'jupyter kernelspec list' has them all"
        raise InvalidRequest(f"Jupyter has no kernel {name!r}", field="kernel", hint=hint) from None
    spec: dict[str, Any] = json.loads(found.to_json())
    return {**spec, "display_name": f"{spec['display_name']} (Warmcell)"}, found.resource_dir


def caged(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` are the provisioner's: what is None is left out."""
    said = {name: value for name, value in settings.items() if value is not None}
    provisioner = {"provisioner_name": PROVISIONER, "config": said}
    return {**spec, "metadata": {**spec.get("metadata", {}), "kernel_provisioner": provisioner}}


def install(spec: dict[str, Any], name: str, resources: str | None, *, user: bool, prefix: str | None) -> str:
    """The directory that Jupyter will find it in: this environment's, unless somebody says otherwise. Pictures and
    whatever else `resources` has come along.
    """
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
            hint = "--user installs for you alone, --prefix DIR elsewhere"
            raise BackendUnavailable(f"could not write the kernelspec: {error}", hint=hint) from None
