"""One line that says what it says: no character in it moves a cursor, starts a new line or turns the text round."""

from __future__ import annotations

LONGEST = 2000


def one_line(text: str, most: int = LONGEST) -> str:
    """`text` with everything that is not plainly printable written as an escape, cut to `most` characters.

    Our messages hold names that a guest chose (paths, hosts, commands). On a terminal an escape sequence in one could
    rewrite what stands above it, and a line break could add a `hint:` that nobody here gave.
    """
    safe = "".join(character if character.isprintable() else _escaped(character) for character in text[: most + 1])
    return safe if len(safe) <= most else safe[: most - 3] + "..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
