"""Behaviour of E2B's kernel that notebooks do not have. Only for sandboxes of the E2B API."""

import functools
import json

from . import session_display

#: A list or a dict as data. Wrapped in an object, because the host accepts only JSON objects.
VALUE = "application/vnd.warmcell.value+json"
#: Longer values are sent as text only.
_LONGEST = 1 << 20


def install(screen, adapting):
    screen.bundle = _bundle_with_data
    adapting.also("PIL.Image", lambda module: _display_saved_images(screen, module.Image))


def _bundle_with_data(value):
    found = session_display.bundle(value)
    if isinstance(value, (list, dict)) and 0 < len(found.get("text/plain", "")) <= _LONGEST:
        try:
            found[VALUE] = json.dumps({"value": value}, default=_to_json_type)
        except Exception:
            return found  # not JSON, or its representation raised: text only
    return found


def _to_json_type(value):
    """JSON types for numpy arrays and numbers, dates and times."""
    for name in ("tolist", "isoformat"):
        if callable(plain := getattr(type(value), name, None)):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _display_saved_images(screen, kind):
    """Displays images that are saved to a named file, not those saved to a buffer."""
    save = kind.save

    @functools.wraps(save)
    def save_and_show(image, fp, *args, **kwargs):
        save(image, fp, *args, **kwargs)
        if isinstance(fp, str):
            screen.display(image)

    kind.save = save_and_show
