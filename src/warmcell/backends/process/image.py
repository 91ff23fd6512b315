"""OpenImage: an image that is the root of a backend's guests, and the parts of its configuration that apply."""

from __future__ import annotations

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.types import Language
from warmcell.enforcers.pin_paths import pin
from warmcell.images.image_files import ImageFiles, find_user
from warmcell.images.model import store_of
from warmcell.languages.program_spec import CODE_DIR, ProgramSpec
from warmcell.policy.places import HOME_DIR
from warmcell.policy.resolve import ImageRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.images import Image

#: What programs find unless the image or the caller says otherwise.
_DEFAULT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
}

#: To flush a file that it unpacked, dpkg opens it for writing once more. That fails if its mode is 0440, as of sudo's
#: files, because root has no capability here. This option of dpkg leaves the flushing out.
ENV_OF_ROOT = {"DPKG_FORCE": "unsafe-io"}


class OpenImage:
    """Keeps the image's layers in the store until `close`."""

    def __init__(self, image: str | Image, user: str | None) -> None:
        from warmcell.images import ImageStore

        store = ImageStore() if isinstance(image, str) else ImageStore(store_of(image))
        self.image = store.get(image) if isinstance(image, str) else image
        self._lease = store.lease(self.image)
        with on_error(self._lease.close):
            self._files = ImageFiles(self.image.layer_paths)
            #: The results of `_find`, which event loops call.
            self._found: dict[tuple[str, ...], str | None] = {}
            self.root = self._root(user)

    def close(self) -> None:
        self._lease.close()

    def _root(self, user: str | None) -> ImageRoot:
        config = self.image.config
        found = find_user(self._files, user if user is not None else config.user)
        work_dir = "" if config.workdir == "/" else config.workdir
        named = [path for path in (work_dir, found.home) if path]
        own = ENV_OF_ROOT if found.uid == 0 else {}
        return ImageRoot(
            layers=tuple(pin(path, "/") for path in self.image.layer_paths),
            uid=found.uid,
            gid=found.gid,
            home=found.home,
            env={**_DEFAULT_ENV, **own, "HOME": found.home or HOME_DIR, **config.env},
            work_dir=work_dir,
            missing=tuple(path for path in named if not self._files.is_directory(path)),
        )

    @property
    def languages(self) -> tuple[Language, ...]:
        """The languages that the image has a program for."""
        return tuple(language for language, names in _PROGRAMS.items() if self._find(names) is not None)

    @property
    def session_languages(self) -> tuple[Language, ...]:
        """The languages of which sessions can run in this image."""
        return tuple(language for language, names in _SESSION_PROGRAMS.items() if self._find(names) is not None)

    def prepare(self, language: str, code: str) -> ProgramSpec:
        """Source text as a command line of the image's own interpreter."""
        names = _PROGRAMS.get(Language(language)) if language in list(Language) else None
        if names is None:
            hint = f"use one of {', '.join(_PROGRAMS)}; a command can start any program of the image"
            raise InvalidRequest(f"{language} programs do not run in an image", field="language", hint=hint)
        return _PREPARE[Language(language)](self.find_program_of(Language(language)), code)

    def find_program_of(self, language: Language) -> str:
        """The guest path of the language's program."""
        names = _PROGRAMS[language]
        program = self._find(names)
        if program is None:
            hint = f"install {names[-1]} in the image"
            error = BackendUnavailable(f"the image {self.image.name!r} has no {names[-1]}", hint=hint)
            error.fault = "caller"
            raise error
        return program

    def _find(self, names: tuple[str, ...]) -> str | None:
        if names not in self._found:
            self._found[names] = self._files.find_program(names, self.root.env["PATH"])
        return self._found[names]

    def default_command(self, args: tuple[str, ...] = ()) -> tuple[str, ...]:
        """ENTRYPOINT, and the arguments or else CMD."""
        config = self.image.config
        command = (*config.entrypoint, *(args or config.cmd))
        if not command:
            raise InvalidRequest(
                f"the image {self.image.name!r} has neither ENTRYPOINT nor CMD", field="image", hint="name a program"
            )
        return command


def _prepare_python(program: str, code: str) -> ProgramSpec:
    from warmcell.languages.python import CHECK, CHECK_FILE, MAIN_FILE, command_line

    files = {MAIN_FILE: code.encode()}
    argv = command_line(program, has_site=True, file=CHECK_FILE)
    check = ProgramSpec(argv, {CHECK_FILE: CHECK.encode(), **files}, CHECK_FILE)
    return ProgramSpec(command_line(program, has_site=True), files, MAIN_FILE, worker="image-python", check=check)


def _prepare_command(program: str, code: str) -> ProgramSpec:
    from warmcell.languages.shell import MAIN_FILE

    files, script = {MAIN_FILE: code.encode()}, f"{CODE_DIR}/{MAIN_FILE}"
    check = ProgramSpec((program, "-n", script), files, MAIN_FILE)
    return ProgramSpec((program, script), files, MAIN_FILE, check=check)


_PROGRAMS = {Language.COMMAND: ("bash", "sh"), Language.PYTHON: ("python3",)}
#: Shell sessions use arrays and traps of bash.
_SESSION_PROGRAMS = {Language.PYTHON: ("python3",), Language.COMMAND: ("bash",)}
_PREPARE = {Language.COMMAND: _prepare_command, Language.PYTHON: _prepare_python}


def open_image(image: str | Image | None, user: str | None) -> OpenImage:
    if image is None:
        raise InvalidRequest("needs an image", field="user", hint="name an image, or leave it out")
    return OpenImage(image, user)
