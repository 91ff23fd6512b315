"""The trusted code: the processes that make cages, fork guests into them, check, watch and reap them.

Standard library only. It runs under any Python 3.9+ as `python -I -S <this directory>` and imports nothing else of
Warmcell, so that a reviewer can read all of it, and only it.
"""
