"""Runs inside zygotes and workers while coverage is counted: what ran there is passed through shared memory.

A cage leaves no descriptor and no path to write to, but memory that was mapped before it was built stays mapped. One
byte stands for one line of one of our files. The directory holds `table` (lines of "<first byte> <file name>") and
`hits`. Needs `sys.monitoring` and a mapping that keeps no descriptor: Python 3.13.
"""

import sys


def collect(directory):
    import mmap

    with open(directory + "/table") as file:
        table = {name: int(first) for first, name in (line.rstrip("\n").split(" ", 1) for line in file)}
    with open(directory + "/hits", "r+b") as file:
        hits = mmap.mmap(file.fileno(), 0, trackfd=False)
    sys.modules.pop("mmap")  # guests are forks of this process, and must find it as it always is
    monitoring, events = sys.monitoring, sys.monitoring.events

    def on_start(code, offset):
        if code.co_filename in table:
            monitoring.set_local_events(monitoring.COVERAGE_ID, code, events.LINE)
        return monitoring.DISABLE

    def on_line(code, line):
        hits[table[code.co_filename] + line] = 1
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "warmcell")
    monitoring.register_callback(monitoring.COVERAGE_ID, events.PY_START, on_start)
    monitoring.register_callback(monitoring.COVERAGE_ID, events.LINE, on_line)
    monitoring.set_events(monitoring.COVERAGE_ID, events.PY_START)


if __name__ == "__main__":  # collector.py DIRECTORY SCRIPT ARGUMENT...: that script, counted
    import runpy

    collect(sys.argv[1])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
