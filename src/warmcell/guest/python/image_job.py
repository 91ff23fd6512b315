"""Waits for a guest's program in an image's own Python, inside the finished cage.

It removes our files and blocks on descriptor 3 until the job arrives (a length, JSON, then the files). It closes 4 when
the program begins. Before that it may only exit: then the program is run without it.

Every run loads it, so it imports little: `json` and `collections` would take half as long as the interpreter itself.
"""

import _json
import os
import sys

import warmcell_worker as worker  # the file beside this one, which `image_start` loads first

_JOB, _GO = 3, 4


class Job:
    def __init__(self, header, files):
        self.argv, self.env, self.code_dir = header["argv"], header["env"], header["code_dir"]
        self.files, self.main, self.is_streamed = files, header["main"], header.get("is_streamed", False)


class _Reading:
    """The attributes of `json.JSONDecoder` that the scanner uses. The only numbers of a job are integers."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_int = parse_constant = int


def _read_exactly(size):
    data = b""
    while len(data) < size:
        piece = os.read(_JOB, size - len(data))
        if not piece:
            os._exit(0)  # the supervisor closed the channel
        data += piece
    return data


def _receive_job():
    text = _read_exactly(int.from_bytes(_read_exactly(4), "big")).decode()
    header, _ = _json.make_scanner(_Reading)(text, 0)
    files = {name: _read_exactly(size) for name, size in header["files"]}
    for name, content in files.items():
        if name[0] == "/":  # in the work directory, where parent directories may be missing
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(os.path.join(header["code_dir"], name), "xb") as file:
            file.write(content)
    if header["cwd"]:
        os.chdir(header["cwd"])
    os.close(_JOB)
    os.close(_GO)
    return Job(header, files)


def main(place, start):
    if sys.path and sys.path[0] == place:
        del sys.path[0]
    for descriptor in (_JOB, _GO):
        os.set_inheritable(descriptor, False)
    for path in (place + "/modules", start):
        os.unlink(path)
    worker.warm_up()
    worker.run(_receive_job())
