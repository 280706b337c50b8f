"""A child's life, from the fork to its exit code: surroundings, registry, one job, one result.

The caller ends the process with what `live` returns and never comes back from it. The crew runs in the main thread, as
it would in any program; one more thread reads the service's socket, for Stop and for its end, at which nobody is left
who could want the result.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from crewai_sidecar import frames, linux
from crewai_sidecar.child.channel import Channel
from crewai_sidecar.child.registry import Registry, RegistryError, load

if TYPE_CHECKING:
    from crewai_sidecar.child.crewai_adapter.stop import Stopper

__all__ = ["EXIT_INTERNAL", "EXIT_REGISTRY", "live"]

EXIT_REGISTRY = 3
"""Exit code of a child that could not import the registry."""

EXIT_INTERNAL = 70
"""Exit code of a child that could not even be set up."""


def live(fork: frames.Fork, configure: frames.Configure, descriptors: list[int]) -> int:
    """Be a child: `descriptors` are its frame socket and its output. Return the exit code."""
    os.setpgid(0, 0)
    linux.set_subreaper()
    _reset_signals()
    _redirect(descriptors[1])
    os.close(descriptors[1])
    _settle(Path(fork.directory), configure)
    gc.enable()
    channel = Channel(socket.socket(fileno=descriptors[0]), configure.max_event_bytes)
    try:
        return _serve(fork, configure, channel)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _serve(fork: frames.Fork, configure: frames.Configure, channel: Channel) -> int:
    try:
        registry = load(configure.registry)
        crews = registry.describe() if fork.describe else None
    except RegistryError as error:
        channel.send(frames.Ready(pid=os.getpid(), error=str(error)))
        return EXIT_REGISTRY
    channel.send(frames.Ready(pid=os.getpid(), crews=crews))
    try:
        text = frames.receive(channel.socket)
        if text is None:
            return 0
        message = frames.decode_order(text)
    except frames.FrameError:
        channel.send(frames.Result(error_type="FrameError", provider_started=False))
        return 0
    if not isinstance(message, frames.Job):
        return 0  # stopped before there was anything to do
    result = _work(message, configure, registry, channel)
    if channel.is_ours:
        channel.send(result)
    return 0


def _work(job: frames.Job, configure: frames.Configure, registry: Registry, channel: Channel) -> frames.Result:
    from crewai_sidecar.child.crewai_adapter import operations, stop  # the fork server has imported it already

    stopper = stop.STOPPER
    threading.Thread(target=_listen, args=(channel, stopper), name="crewai-sidecar-stop", daemon=True).start()
    return operations.perform(job, registry, channel, stopper, max_output_bytes=configure.max_output_bytes)


def _listen(channel: Channel, stopper: Stopper) -> None:
    """Pass on the service's order to stop; end with the service. Runs in its own thread."""
    with contextlib.suppress(OSError, frames.FrameError):
        while (text := frames.receive(channel.socket)) is not None:
            if isinstance(frames.decode_order(text), frames.Stop):
                stopper.order()
    os._exit(0)


def _reset_signals() -> None:
    """Give signals their default action. A handler in Python would not run while C code holds the interpreter."""
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _redirect(output: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _settle(directory: Path, configure: frames.Configure) -> None:
    """Make the per-run directories and point at them everything that was read, or frozen, before the fork."""
    places = {name: directory / name for name in ("cwd", "home", "tmp", "storage")}
    for place in places.values():
        place.mkdir(mode=0o700)
    os.environ.update(configure.environment)
    os.environ["HOME"] = str(places["home"])
    os.environ["TMPDIR"] = tempfile.tempdir = str(places["tmp"])
    os.environ["CREWAI_STORAGE_DIR"] = str(places["storage"])
    if "crewai" in sys.modules:
        from crewai_sidecar.child.crewai_adapter import stores

        stores.rebind(str(places["storage"]))
    os.chdir(places["cwd"])
    sys.path.insert(0, configure.start_directory)
