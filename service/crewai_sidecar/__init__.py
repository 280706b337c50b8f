"""crewai-sidecar: runs CrewAI crews for an AIP connector behind a durable admission fence.

Importing this package imports nothing else, so that the fork server, the command line and the service each load only
what they use.
"""

__version__ = "0.1.0"
