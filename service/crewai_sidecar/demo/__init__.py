"""A registry with one real crew, a researcher with a tool and a writer.

The service takes it as AIP_CREWAI_REGISTRY=crewai_sidecar.demo:crews.

Without OPENAI_API_KEY a scripted model answers, so the crew needs no network and costs nothing; with it the same crew
asks the model that OPENAI_MODEL_NAME names.
"""

from crewai_sidecar.demo.crew import demo_crew

__all__ = ["crews"]

crews = {"demo": demo_crew}
"""Crew id to factory: each run gets a crew of its own."""
