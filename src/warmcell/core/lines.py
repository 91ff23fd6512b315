"""One safe line of text: no character in it moves the cursor, starts a new line or reverses the text."""

from __future__ import annotations

LONGEST = 2000


def one_line(text: str, most: int = LONGEST) -> str:
    """`text` with everything that is not printable escaped, cut to `most` characters.

    Our messages contain names that a guest chose (paths, hosts, commands). On a terminal, an escape sequence in one
    could rewrite the lines above, and a line break could forge a `hint:`.
    """
    safe = "".join(character if character.isprintable() else _escape(character) for character in text[: most + 1])
    return safe if len(safe) <= most else safe[: most - 3] + "..."


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
