"""Text in requests that programs are given."""

from __future__ import annotations

import pytest

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker import container_spec
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.messages import DockerError, text_field, texts_field


def test_text_may_have_what_the_locale_of_the_server_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guests get it as UTF-8. With LC_ALL=de_DE.ISO-8859-1 such commands were refused."""
    words = ["echo", "\u2713", "\udcff"]
    with monkeypatch.context() as patched:
        patched.setattr("os.fsencode", lambda text: text.encode("iso8859-1", "surrogateescape"))
        assert texts_field({"Cmd": words}, "Cmd") == tuple(words)


@pytest.mark.parametrize("text", ["\ud800", "a\0b", 5])
def test_text_that_no_program_can_be_given_is_refused(text: object) -> None:
    with pytest.raises(DockerError):
        text_field({"WorkingDir": text}, "WorkingDir")
    with pytest.raises(DockerError):
        texts_field({"Cmd": ["echo", text]}, "Cmd")


@pytest.mark.parametrize("field", ["Cmd", "Entrypoint"])
def test_a_long_command_line_is_not_split(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """Its time grows with the square of its length: four megabytes held up all other clients for minutes."""
    image = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))
    assert read_spec({"Image": "image:1", field: "echo 'a b'"}, image).argv[:2] == ("echo", "a b")
    monkeypatch.setattr(container_spec.shlex, "split", lambda text: pytest.fail("it was split"))
    with pytest.raises(DockerError, match="list of words") as refused:
        read_spec({"Image": "image:1", field: "x" * 100_000}, image)
    assert refused.value.status == 400
    assert read_spec({"Image": "image:1", field: ["x" * 100_000]}, image).argv == ("x" * 100_000,)
