"""Models with scripted replies, one for each framework. Each asks for 6 * 7 to be computed and does not give the result:
42 in an agent's output shows that the sandbox ran the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CODE = "print(6 * 7)"
COMMAND = "echo $((6 * 7))"
FENCED = f"```python\n{CODE}\n```"


def calling(tool: str, **arguments: Any) -> Any:
    """For LangChain and deepagents: one call of this tool, then the end."""
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Scripted(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            assert tool in str(tools)
            return self

    call = {"name": tool, "args": arguments, "id": "1"}
    return Scripted(responses=[AIMessage("", tool_calls=[call]), AIMessage("done")])


def for_pydantic_ai() -> Any:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"command": COMMAND})])
        return ModelResponse(parts=[TextPart(f"it said {messages[-1].parts[0].content}")])

    return FunctionModel(answer)


def for_smolagents() -> Any:
    from smolagents.models import ChatMessage, MessageRole, Model

    class Scripted(Model):
        def generate(self, *args: Any, **options: Any) -> ChatMessage:
            return ChatMessage(role=MessageRole.ASSISTANT, content="<code>\nfinal_answer(6 * 7)\n</code>")

    return Scripted(model_id="scripted")


def for_autogen() -> Any:
    from autogen_ext.models.replay import ReplayChatCompletionClient

    return ReplayChatCompletionClient([FENCED, "done"])


def for_google_adk() -> Any:
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

    words = iter([FENCED, "done"])

    class Scripted(BaseLlm):
        async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part.from_text(text=next(words))]))

    return Scripted(model="scripted")


#: By extra.
MODELS: dict[str, Callable[[], Any]] = {
    "deepagents": lambda: calling("execute", command=COMMAND),
    "langchain": lambda: calling("run_code", code=CODE),
    "pydantic-ai": for_pydantic_ai,
    "smolagents": for_smolagents,
    "autogen": for_autogen,
    "google-adk": for_google_adk,
}
