"""A logger that loads `logging` with its first record: commands end sooner than it loads, and hardly ever have one."""

from __future__ import annotations


class LateLog:
    """`logging.getLogger(name)`, as far as our rooms use it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, text: str, *values: object) -> None:
        import logging

        logging.getLogger(self._name).debug(text, *values, stacklevel=2)

    def info(self, text: str, *values: object) -> None:
        import logging

        logging.getLogger(self._name).info(text, *values, stacklevel=2)

    def warning(self, text: str, *values: object) -> None:
        import logging

        logging.getLogger(self._name).warning(text, *values, stacklevel=2)
