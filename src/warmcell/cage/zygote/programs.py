"""Guests that will become a program: each is the recipe as a program of its own, and no copy of the zygote."""

from __future__ import annotations

import os

from ..failure import CageError
from ..guest import recipe
from ..linux import arena, list_program, namespaces
from ..linux.call_list import CallList, Value
from ..linux.list_program import ListProgram, NotBecome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_MOST_MADE = 64


class Programs:
    """Owned by the zygote. What it cannot start is to be forked as any other guest is."""

    def __init__(self, is_caging: bool) -> None:
        self._are_possible = is_caging and list_program.is_known()
        #: By recipe and descriptors, which have the same numbers nearly every time.
        self._made: Dict[Tuple[int, ...], ListProgram] = {}
        calls = CallList(1)
        calls.part("fork guest")
        namespaces.send_children_to(calls, Value(0))
        self._send_children_to = calls.prepare([-1])

    def room(self) -> Optional[arena.Arena]:
        """For a recipe to be written in, so that it can become a program."""
        return arena.reserve() if self._are_possible else None

    def start(self, number: int, steps: recipe.Recipe, descriptors: List[int]) -> Optional[int]:
        """The pid, or None. Our next children may be sent to another namespace afterwards."""
        if not self._are_possible:
            return None
        given = recipe.in_order(descriptors)
        program = self._program(number, steps, given, descriptors)
        if program is None:
            return None
        try:
            self._send_children_to.values[0] = given.init
            self._send_children_to.run()
            return program.start()
        except NotBecome:
            self._are_possible = False
            return None
        except CageError as failure:
            raise OSError(failure.errno, os.strerror(failure.errno)) from None

    def _program(
        self, number: int, steps: recipe.Recipe, given: recipe.GuestDescriptors, descriptors: List[int]
    ) -> Optional[ListProgram]:
        key = (number, *descriptors)
        if key not in self._made:
            try:
                made = steps.program(given, descriptors)
            except OSError:
                made = None
            if made is None:
                return None
            if len(self._made) == _MOST_MADE:
                self._made.pop(next(iter(self._made))).close()
            self._made[key] = made
        return self._made[key]

    def forget(self, number: int) -> None:
        for key in [key for key in self._made if key[0] == number]:
            self._made.pop(key).close()
