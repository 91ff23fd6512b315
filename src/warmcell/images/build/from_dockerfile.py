"""Builds an image from a Dockerfile and its context, in a store whose lock for adding is held."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.images.build.builder import Builder, BuildOptions
from warmcell.images.build.dockerfile import MAX_BYTES, check_text, parse_dockerfile
from warmcell.images.build.stages import StagedBuild
from warmcell.images.store_parts import StoreParts
from warmcell.workspace.untrusted_files import open_regular


def build_dockerfile(
    store: StoreParts,
    find_image: Callable[[str], str],
    context: str,
    dockerfile: str,
    build_args: Mapping[str, str],
    target: str | None,
    options: BuildOptions,
) -> str:
    """Returns the digest of the manifest. A relative path of the Dockerfile is below the context."""
    if not os.path.isdir(context):
        raise InvalidRequest(f"{context!r} is not a directory", field="context_dir")
    for name, value in build_args.items():
        check_text(name, "the name of a build argument")
        check_text(value, f"the build argument {name!r}")
    check_text(dockerfile, "the path of the Dockerfile")
    path = os.path.join(context, dockerfile)
    build = StagedBuild(parse_dockerfile(_read(path)), build_args, find_image)
    stages = build.find_needed(target)
    ignore_file = f"{path}.dockerignore"
    options = replace(
        options,
        context=os.path.realpath(context),
        ignore_lines=tuple(_read(ignore_file).splitlines()) if os.path.isfile(ignore_file) else None,
    )
    builder = Builder(store, options, sum(len(stage.steps) for stage in stages))
    builder.find_image = find_image
    return builder.finish(build.build(builder, stages))


def _read(path: str) -> str:
    with open(open_regular(path, "dockerfile"), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"{path!r} is larger than {MAX_BYTES} bytes", field="dockerfile")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path!r} is not UTF-8 text", field="dockerfile") from None
