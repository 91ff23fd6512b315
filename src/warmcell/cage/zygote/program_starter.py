"""Starts guests that become a program: each runs its recipe as an executable, not as a copy of the zygote."""

from __future__ import annotations

import os

from ..failure import CageError
from ..guest_entry import recipe
from ..linux import list_program, namespaces, native_code
from ..linux.call_list import CallList, Value
from ..linux.list_program import ExecRefused, ListProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_MOST_MADE = 64


class ProgramStarter:
    """Owned by the zygote. Starts guests, not their programs, which their jobs exec. Others must be forked as usual."""

    def __init__(self, is_caging: bool) -> None:
        self._is_supported = is_caging and list_program.is_supported()
        #: By recipe and descriptors, whose numbers rarely change.
        self._made: Dict[Tuple[int, ...], ListProgram] = {}
        calls = CallList(1)
        calls.begin_step("fork guest")
        namespaces.send_children_to(calls, Value(0))
        self._send_children_to = calls.prepare([-1])

    def reserve_arena(self) -> Optional[native_code.Arena]:
        """An arena for a recipe, so that it can become an executable."""
        return native_code.reserve_arena() if self._is_supported else None

    def start(self, number: int, steps: recipe.Recipe, descriptors: List[int]) -> Optional[int]:
        """Start a guest; returns its pid, or None. Afterwards the caller must return to its own pid namespace."""
        if not self._is_supported:
            return None
        given = recipe.from_order(descriptors)
        program = self._program(number, steps, given, descriptors)
        if program is None:
            return None
        try:
            self._send_children_to.values[0] = given.init
            self._send_children_to.run()
            return program.start()
        except ExecRefused:
            self._is_supported = False
            return None
        except CageError as failure:
            raise OSError(failure.errno, os.strerror(failure.errno)) from None

    def _program(
        self, number: int, steps: recipe.Recipe, given: recipe.GuestDescriptors, descriptors: List[int]
    ) -> Optional[ListProgram]:
        key = (number, *descriptors)
        if key not in self._made:
            try:
                program = steps.program(given, descriptors)
            except OSError:
                program = None
            if program is None:
                return None
            if len(self._made) == _MOST_MADE:
                self._made.pop(next(iter(self._made))).close()
            self._made[key] = program
        return self._made[key]

    def forget(self, number: int) -> None:
        for key in [key for key in self._made if key[0] == number]:
            self._made.pop(key).close()
