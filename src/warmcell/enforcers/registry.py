"""Finds enforcers by name, or the best one that works on this host."""

from __future__ import annotations

import sys

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.enforcers.contract import SandboxEnforcer

ENFORCERS = {
    "native": "warmcell.enforcers.native:NativeEnforcer",
    "bubblewrap": "warmcell.enforcers.bubblewrap:BubblewrapEnforcer",
    "seatbelt": "warmcell.enforcers.seatbelt:SeatbeltEnforcer",
    "appcontainer": "warmcell.enforcers.appcontainer:AppContainerEnforcer",
    "landlock": "warmcell.enforcers.native:LandlockEnforcer",
}

#: Used only if the caller names one: as `enforcer`, or as `allow_weaker` for hosts where no other works.
WEAKER = ("landlock",)
#: Tried in order when no name is given.
_BEST_FIRST = {"linux": ("native", "bubblewrap"), "darwin": ("seatbelt",), "win32": ("appcontainer",)}


def get_enforcer(name: str | None = None) -> SandboxEnforcer:
    """The named enforcer, not probed; or, without a name, the best one for this system whose `probe()` succeeds.

    Raises `EnforcerUnavailable` with every reason and remedy if none works, and `InvalidRequest` for unknown names.
    """
    if name is None:
        return _best(_BEST_FIRST.get(sys.platform, ()))
    if not isinstance(name, str) or name not in ENFORCERS:
        known = ", ".join(ENFORCERS)
        raise InvalidRequest(f"unknown enforcer {str(name)[:40]!r}", field="enforcer", hint=f"one of {known}")
    return _load(name)


def prove_enforcer(requested: str | SandboxEnforcer, allow_weaker: str | None = None) -> SandboxEnforcer:
    """The requested enforcer, after its `probe()` succeeded. Given as an object or by name ("auto": the best one).

    `allow_weaker` names the weaker one that "auto" may use if no other works.
    """
    if requested == "auto":
        return _best((*_BEST_FIRST.get(sys.platform, ()), *((allow_weaker,) if allow_weaker else ())))
    enforcer = get_enforcer(requested) if isinstance(requested, str) else _check_contract(requested)
    try:
        enforcer.probe()
    except SandboxError:
        raise
    except Exception as error:  # it may be third-party code
        raise EnforcerUnavailable(enforcer.name, f"its probe failed: {type(error).__name__}: {error}") from error
    return enforcer


def check_weaker(allow_weaker: object, requested: object) -> None:
    """Raises for an unknown `allow_weaker`, or one together with a named enforcer, where it has no effect."""
    if allow_weaker is None:
        return
    if allow_weaker not in WEAKER:
        raise InvalidRequest(
            f"unknown class {str(allow_weaker)[:40]!r}", field="allow_weaker", hint=f"one of {', '.join(WEAKER)}"
        )
    if requested != "auto":
        raise InvalidRequest("is for enforcer='auto' only", field="allow_weaker", hint="leave one of the two out")


def _check_contract(enforcer: object) -> SandboxEnforcer:
    from warmcell.enforcers.contract import SandboxEnforcer

    if isinstance(enforcer, type) or not isinstance(enforcer, SandboxEnforcer) or not isinstance(enforcer.name, str):
        raise InvalidRequest(
            f"must be a name or a SandboxEnforcer, not {getattr(enforcer, '__name__', type(enforcer).__name__)}",
            field="enforcer",
            hint="name, probe(), wrap_command(), configure_command()",
        )
    if enforcer.name in ENFORCERS and type(enforcer) is not type(_load(enforcer.name)):
        raise InvalidRequest(f"{enforcer.name!r} is a built-in name; choose another name", field="enforcer")
    return enforcer


def _best(candidates: tuple[str, ...]) -> SandboxEnforcer:
    reasons: list[EnforcerUnavailable] = []
    for name in candidates:
        try:
            enforcer = _load(name)
            enforcer.probe()
            return enforcer
        except EnforcerUnavailable as error:
            reasons.append(error)
    why = "; ".join(error.message for error in reasons) or f"no enforcer supports {sys.platform}"
    remedies = dict.fromkeys(error.hint for error in reasons if error.hint)  # without duplicates
    hint = "; or ".join(remedies) or "use WasmBackend, which works everywhere"
    raise EnforcerUnavailable("auto", f"no enforcer works on this host: {why}", hint=hint)


def _load(name: str) -> SandboxEnforcer:
    module, _, attribute = ENFORCERS[name].partition(":")
    try:
        kind = getattr(__import__(module, fromlist=("",)), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise EnforcerUnavailable(
            name, f"is not part of this installation ({error})", hint="reinstall warmcell"
        ) from None
    enforcer: SandboxEnforcer = kind()
    return enforcer
