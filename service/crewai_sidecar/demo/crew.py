"""The demo's crew. Its input has `topic`, and `slow`: the seconds between two words of the scripted model."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from crewai import LLM, Agent, BaseLLM, Crew, Process, Task
from crewai.tools import BaseTool

from crewai_sidecar.demo.scripted_model import Scene, ScriptedModel

__all__ = ["EFFECTS_VARIABLE", "demo_crew"]

EFFECTS_VARIABLE = "CREWAI_SIDECAR_DEMO_EFFECTS"
"""File that gets one line for each use of the tool: the effect outside that a second run would repeat."""

DEFAULT_TOPIC = "the tides"
DEFAULT_SECONDS = 0.04
MOST_SECONDS = 60.0

RESEARCHER_LINES = [
    "Thought: I should not trust my memory on {topic}, so I look it up.\n"
    'Action: almanac\nAction Input: {"topic": "{topic}"}',
    "Thought: I now know the final answer\n"
    "Final Answer: Notes on {topic}: people have known it for a long time, have measured it for four centuries and "
    "have predicted it to the minute since the nineteenth.",
]
WRITER_LINES = [
    "Thought: The notes are enough for one paragraph\n"
    "Final Answer: There was a time when {topic} could only be watched. Then somebody kept a log, somebody else found "
    "the rule in it, and since the nineteenth century a printed table has been right to the minute. What was luck has "
    "become a line in an almanac.",
]


class AlmanacTool(BaseTool):
    """Looks a topic up in a small book that comes with the demo, and leaves a trace of having done so."""

    name: str = "almanac"
    description: str = "Look a topic up in the almanac. Takes the topic, returns what the almanac says of it."
    scene: Scene

    def _run(self, topic: str) -> str:
        effects = os.environ.get(EFFECTS_VARIABLE)
        if effects:
            with Path(effects).open("a", encoding="utf-8") as file:
                file.write(f"the almanac was asked about {topic}\n")
        time.sleep(self.scene.seconds * 20)  # a look-up takes about as long as a sentence
        return (
            f"On {topic}: known for a long time, measured for four centuries, and predicted to the minute since the "
            "nineteenth."
        )


def demo_crew() -> Crew:
    """Build the crew of one run."""
    scene = Scene(topic=DEFAULT_TOPIC, seconds=DEFAULT_SECONDS)
    researcher = Agent(
        role="Researcher",
        goal="Find out what is known about {topic}",
        backstory="You look things up before you speak.",
        llm=_model(scene, RESEARCHER_LINES),
        tools=[AlmanacTool(scene=scene)],
    )
    writer = Agent(
        role="Writer",
        goal="Write one clear paragraph about {topic}",
        backstory="You write for people who have one minute.",
        llm=_model(scene, WRITER_LINES),
    )
    research = Task(
        name="research",
        description="Look {topic} up in the almanac and note what it says.",
        expected_output="Two or three facts.",
        agent=researcher,
    )
    write = Task(
        name="write",
        description="Write one paragraph about {topic} from the notes.",
        expected_output="One paragraph.",
        agent=writer,
        context=[research],
    )

    def prepare(inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = {"topic": DEFAULT_TOPIC, **inputs}
        scene.seconds = min(max(float(inputs.pop("slow", DEFAULT_SECONDS)), 0.0), MOST_SECONDS)
        # The scripted researcher writes the topic into JSON: one line, without quotes and backslashes.
        scene.topic = " ".join(str(inputs["topic"]).translate({ord('"'): "'", ord("\\"): "/"}).split())
        return inputs

    with warnings.catch_warnings():
        # CrewAI warns that a local function ends its own checkpointing, which a crew of one run does not use.
        warnings.simplefilter("ignore", UserWarning)
        return Crew(
            name="demo",
            agents=[researcher, writer],
            tasks=[research, write],
            process=Process.sequential,
            before_kickoff_callbacks=[prepare],
        )


def _model(scene: Scene, lines: list[str]) -> BaseLLM:
    if os.environ.get("OPENAI_API_KEY"):
        model: BaseLLM = LLM(model=os.environ.get("OPENAI_MODEL_NAME", "gpt-4o-mini"), stream=True)
        return model
    return ScriptedModel(model="scripted/offline", lines=lines, scene=scene)
