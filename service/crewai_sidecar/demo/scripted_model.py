"""A language model without a network: it says what it was given to say, word by word, as a streaming provider does."""

from __future__ import annotations

import time
import uuid
from typing import Any

from crewai import BaseLLM
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import llm_call_context
from pydantic import BaseModel, PrivateAttr

__all__ = ["Scene", "ScriptedModel"]


class Scene(BaseModel):
    """What a run's input sets for all models and tools of its crew, which share the object."""

    topic: str
    seconds: float
    """Seconds between two words."""


class ScriptedModel(BaseLLM):
    """Answers the calls of one agent in one run with `lines`, in order; the last line answers all further calls.

    `{topic}` in a line stands for the scene's topic.

    Each agent needs an instance of its own: CrewAI counts tokens by the instance's lifetime total.
    """

    lines: list[str]
    scene: Scene
    _calls: int = PrivateAttr(default=0)

    def call(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> str:
        """Say the next line."""
        number, self._calls = self._calls, self._calls + 1
        text = self.lines[min(number, len(self.lines) - 1)].replace("{topic}", self.scene.topic)
        words = text.split(" ")
        response_id = f"scripted-{uuid.uuid4().hex[:12]}"
        usage = {"prompt_tokens": self.get_input_tokens_count(messages), "completion_tokens": len(words)}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        with llm_call_context():
            self._emit_call_started_event(
                messages=messages, tools=tools, callbacks=callbacks, from_task=from_task, from_agent=from_agent
            )
            for position, word in enumerate(words):
                time.sleep(self.scene.seconds)
                if self._effective_stream():
                    self._emit_stream_chunk_event(
                        chunk=word if position == 0 else f" {word}",
                        from_task=from_task,
                        from_agent=from_agent,
                        call_type=LLMCallType.LLM_CALL,
                        response_id=response_id,
                    )
            self._track_token_usage_internal(usage)
            self._emit_call_completed_event(
                response=text,
                call_type=LLMCallType.LLM_CALL,
                from_task=from_task,
                from_agent=from_agent,
                messages=messages,
                usage=usage,
                finish_reason="stop",
                response_id=response_id,
            )
        return text

    async def acall(self, *args: Any, **kwargs: Any) -> str:
        """Say the next line; CrewAI's output converter calls it, and the base class only raises."""
        return self.call(*args, **kwargs)

    def supports_function_calling(self) -> bool:
        """No: tools are asked for in the text of the answer."""
        return False

    def get_context_window_size(self) -> int:
        """Large enough that CrewAI never shortens a tool's result by further calls."""
        return 1_000_000

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:
        """Count a token for four characters; the base class does the same and warns at every call."""
        text = messages if isinstance(messages, str) else "".join(str(one.get("content") or "") for one in messages)
        return (len(text) + 3) // 4
