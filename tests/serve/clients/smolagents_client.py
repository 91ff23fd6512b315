"""smolagents' E2BExecutor, unmodified, against a server of ours. Run by scripts/test-clients."""

from __future__ import annotations

import os
from importlib.metadata import version

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.tools import tool
from smolagents.utils import AgentError


@tool
def double(number: int) -> int:
    """Twice a number.

    Args:
        number: The number.
    """
    return 2 * number


def main() -> None:
    executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF), timeout=300)
    try:
        executor.send_variables({"given": [1, 2, 3]})
        found: CodeOutput = executor("print('said')\nsum(given)")
        assert (str(found.output), found.logs.strip()) == ("6", "said")
        executor("kept = sum(given) * 7")
        assert str(executor("kept").output) == "42"
        executor.sandbox.files.write("data.txt", "from the host")
        assert str(executor("open('data.txt').read()").output) == "from the host"
        try:
            executor("1/0")
            raise AssertionError("it is reported as a failure")
        except AgentError as error:
            assert "ZeroDivisionError" in str(error)
        final = executor.run_code_raise_errors(
            "class FinalAnswerException(BaseException):\n"
            "    def __init__(self, value): self.value = value\n"
            "    def __str__(self): return self.value\n"
            "raise FinalAnswerException('safe:{\"answer\": 42}')"
        )
        assert final.is_final_answer and final.output == {"answer": 42}
    finally:
        executor.cleanup()
    print(f"smolagents {version('smolagents')}: ok", flush=True)


main()
os._exit(0)  # the SDK's own threads may abort an interpreter that is taken apart
