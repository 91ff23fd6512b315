"""The trusted code: the processes that build cages, fork guests into them, check, watch and reap them.

Standard library only. It runs under any Python 3.9+ as `python -I -S <this directory>` and imports nothing else of
Warmcell, so that reviewing the trusted code means reading this directory.
"""
