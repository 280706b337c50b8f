"""What runs outside the service process: the fork server, and each run's child from its fork to its end.

The service never imports anything of this; it starts `python -m crewai_sidecar.child.forkserver` and speaks frames.
"""
