"""The only importer of crewai: operations, events, stopping, stores and outputs.

Imported in the fork server, before any fork, so that a child starts with everything in place: the event bus has our
handlers and the hooks have our guard, and neither starts a thread before a crew emits its first event.
"""
