"""Waits for a guest's program in an image's own Python, inside the finished cage.

It loads the worker from one file, removes our files, and blocks on descriptor 3 until the job arrives (a length, JSON,
then the files). It closes 4 when the program begins. Before that it may only exit: then the program is run without it.
"""

import json
import marshal
import os
import sys
from _frozen_importlib_external import MAGIC_NUMBER
from collections import namedtuple
from types import ModuleType

_JOB, _GO = 3, 4
Job = namedtuple("Job", "argv env code_dir files main is_streamed")


def load_worker(place):
    """Compiled code is for one version of Python only."""
    with open(place + "/modules", "rb") as file:
        magic, sources, compiled = marshal.load(file)
    made = {}
    for name in ("interpreter_exit", "worker"):
        module = made[name] = sys.modules["warmcell_" + name] = ModuleType("warmcell_" + name)
        is_ours = magic == MAGIC_NUMBER
        code = marshal.loads(compiled[name]) if is_ours else compile(sources[name], f"<warmcell {name}>", "exec")
        exec(code, module.__dict__)
    for name in made:
        del sys.modules["warmcell_" + name]  # a new interpreter would not have them
    return made["worker"]


def read_exactly(size):
    data = b""
    while len(data) < size:
        piece = os.read(_JOB, size - len(data))
        if not piece:
            os._exit(0)  # the supervisor closed the channel
        data += piece
    return data


def receive_job():
    header = json.loads(read_exactly(int.from_bytes(read_exactly(4), "big")))
    files = {name: read_exactly(size) for name, size in header["files"]}
    for name, content in files.items():
        if name[0] == "/":  # in the work directory, where parent directories may be missing
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(os.path.join(header["code_dir"], name), "xb") as file:
            file.write(content)
    os.close(_JOB)
    os.close(_GO)
    places = (header["argv"], header["env"], header["code_dir"], files, header["main"])
    return Job(*places, header.get("is_streamed", False))


def main():
    if sys.version_info < (3, 10):  # noqa: UP036  # the image's Python, not ours
        sys.exit("the warm worker needs Python 3.10 or newer")
    place = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == place:
        del sys.path[0]
    for descriptor in (_JOB, _GO):
        os.set_inheritable(descriptor, False)
    worker = load_worker(place)
    for name in ("modules", os.path.basename(__file__)):
        os.unlink(os.path.join(place, name))
    worker.warm_up()
    worker.run(receive_job())


main()
