"""Starts the worker in an image's own Python, inside the finished cage, from one file that holds its modules.

Every run in an image compiles this file, so it is short. Compiled modules are for one version of Python only.
"""

import marshal
import os
import sys
from _frozen_importlib_external import MAGIC_NUMBER

if sys.version_info < (3, 10):  # noqa: UP036  # the image's Python, not ours
    sys.exit("the warm worker needs Python 3.10 or newer")
place = os.path.dirname(os.path.abspath(__file__))
with open(place + "/modules", "rb") as file:
    magic, sources, compiled = marshal.load(file)
for name in sources:  # each imports only those before it; the last one is called
    module = sys.modules["warmcell_" + name] = type(sys)("warmcell_" + name)
    is_compiled = magic == MAGIC_NUMBER
    code = marshal.loads(compiled[name]) if is_compiled else compile(sources[name], f"<warmcell {name}>", "exec")
    exec(code, module.__dict__)
for name in sources:
    del sys.modules["warmcell_" + name]  # a new interpreter would not have them
module.main(place, __file__)
