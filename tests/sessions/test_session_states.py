"""Sessions against a model: whatever is called in whatever order, each remembers its own and nothing else."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers import has_user_namespaces, require

from warmcell import Sandbox, Session, errors

_SET = {"python": "{0} = {1}", "command": "{0}={1}"}
_GET = {"python": "print({0})", "command": "echo ${0}"}
_names = st.sampled_from(["a", "b", "c"])


class Model:
    def __init__(self, session: Session, language: str) -> None:
        self.session, self.language = session, language
        self.known: dict[str, int] = {}
        self.count = 0
        self.state = "open"  # or "ended", or "closed"


class Sessions(RuleBasedStateMachine):
    sandbox: ClassVar[Sandbox]
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []

    @initialize(target=sessions)
    def first(self) -> Model:
        return self.opened("python")

    @precondition(lambda self: len(self.models) < 4)
    @rule(target=sessions, language=st.sampled_from(["python", "command"]))
    def opened(self, language: str) -> Model:
        model = Model(self.sandbox.session(language), language)
        self.models.append(model)
        return model

    @rule(model=sessions, name=_names, value=st.integers(0, 999))
    def remember(self, model: Model, name: str, value: int) -> None:
        if self.is_gone(model):
            return
        model.count += 1
        result = model.session.run(_SET[model.language].format(name, value))
        assert result.ok and result.execution_count == model.count
        model.known[name] = value

    @rule(model=sessions, name=_names)
    def recall(self, model: Model, name: str) -> None:
        if self.is_gone(model):
            return
        model.count += 1
        result = model.session.run(_GET[model.language].format(name))
        if name in model.known:
            assert result.stdout == f"{model.known[name]}\n"
        else:
            assert result.error is not None if model.language == "python" else result.stdout == "\n"

    @rule(model=sessions)
    def look(self, model: Model) -> None:
        if self.is_gone(model):
            return
        found = {name: int(text.strip('"')) for name, text in model.session.variables().items()}
        assert found == model.known

    @rule(model=sessions)
    def overstay(self, model: Model) -> None:
        if self.is_gone(model):
            return
        model.count += 1
        with pytest.raises(errors.ExecutionTimeout):
            model.session.run(
                {"python": "while True: pass", "command": "while :; do :; done"}[model.language], timeout=0.3
            )

    @rule(model=sessions)
    def crash(self, model: Model) -> None:
        if self.is_gone(model):
            return
        with pytest.raises(errors.SessionEnded):
            model.session.run({"python": "import os; os.abort()", "command": "kill -9 $$"}[model.language])
        model.state = "ended"

    @rule(model=sessions)
    def restart(self, model: Model) -> None:
        if model.state == "closed":
            with pytest.raises(errors.SessionEnded):
                model.session.restart()
            return
        model.session.restart()
        model.known, model.count, model.state = {}, 0, "open"

    @rule(model=sessions)
    def close(self, model: Model) -> None:
        model.session.interrupt() if model.state == "open" else None
        model.session.close()
        model.state = "closed"

    @invariant()
    def the_sandbox_goes_on(self) -> None:
        assert not self.models or self.sandbox.exists(".")

    def is_gone(self, model: Model) -> bool:
        if model.state == "open":
            return False
        for call in (lambda: model.session.run("1"), model.session.variables):
            with pytest.raises(errors.SessionEnded):
                call()
        return True

    def teardown(self) -> None:
        for model in self.models:
            model.session.close()


@pytest.mark.needs("linux")
def test_sessions_keep_to_the_model() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    require(has_user_namespaces(), "this host has no user namespaces")
    with Sandbox(timeout=60) as Sessions.sandbox:
        run_state_machine_as_test(Sessions, settings=settings(max_examples=8, stateful_step_count=20, deadline=None))  # type: ignore[no-untyped-call]
