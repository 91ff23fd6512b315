"""What E2B's own kernel does besides what notebooks do, for code that counts on it: only in sandboxes of that door."""

import functools
import json

from . import session_display

#: A list or a dict as data, in an object of its own: JSON at the top of which is a list is a text to everybody else.
VALUE = "application/vnd.warmcell.value+json"
#: What is longer as a text is nothing but that: nobody wants it twice.
_LONGEST = 1 << 20


def install(screen, adapting):
    screen.bundle = _with_data
    adapting.also("PIL.Image", lambda module: _show_what_is_saved(screen, module.Image))


def _with_data(value):
    found = session_display.bundle(value)
    if isinstance(value, (list, dict)) and 0 < len(found.get("text/plain", "")) <= _LONGEST:
        try:
            found[VALUE] = json.dumps({"value": value}, default=_plainer)
        except Exception:
            return found  # what JSON cannot have is a text only, and so is what fails to say what it is
    return found


def _plainer(value):
    """Arrays and numbers of numpy, dates and times."""
    for name in ("tolist", "isoformat"):
        if callable(plain := getattr(type(value), name, None)):
            return plain(value)
    raise TypeError(f"{type(value).__name__} is nothing of JSON")


def _show_what_is_saved(screen, kind):
    """By a name: what goes into a buffer is how pictures are shown."""
    save = kind.save

    @functools.wraps(save)
    def saved(image, fp, *args, **kwargs):
        save(image, fp, *args, **kwargs)
        if isinstance(fp, str):
            screen.display(image)

    kind.save = saved
