"""Builds an image from steps, without a Dockerfile."""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.images.build.builder import Builder, BuildOptions
from warmcell.images.build.steps import Step
from warmcell.images.model import Image
from warmcell.images.references import parse_reference
from warmcell.images.store import ImageStore


def build_steps(
    store: ImageStore, base: str | Image | None, steps: Sequence[Step], name: str, options: BuildOptions | None = None
) -> Image:
    """Apply steps to an image of the store, or to an empty one, and name the result.

    `BuildFailed` has the step and its output; layers of the steps before it stay in the cache.
    """
    wanted = parse_reference(name).name
    with store.adding() as parts:
        builder = Builder(parts, options or BuildOptions(), len(steps))
        digest = None if base is None else (store.get(base) if isinstance(base, str) else base).digest
        builder.find_image = lambda reference: store.get(reference).digest
        state = builder.start(digest)
        for step in steps:
            state = builder.apply(step, state)
        return store.add_image(builder.finish(state), wanted)
