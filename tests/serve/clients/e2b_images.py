"""Imports a root file system of this host's programs under the names of images that E2B's template tests build from.

python tests/serve/clients/e2b_images.py STORE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.image_roots import add_python, make_root

from warmcell.images import ImageStore

NAMES = ("e2bdev/base", "ubuntu:22.04")
PROGRAMS = "sh bash cat chmod cp env grep head id ln ls mkdir mv readlink rm sed sleep tail test touch true wc whoami"


def main() -> None:
    store = ImageStore(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        root = make_root(Path(directory) / "root", *PROGRAMS.split())
        add_python(root)
        image = store.import_(root, NAMES[0])
    for name in NAMES[1:]:
        store.tag(image.name, name)


if __name__ == "__main__":
    main()
