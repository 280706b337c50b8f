"""Every AIP_CREWAI_* variable: its name, default, bounds and meaning, in one place.

Read once, by `read_settings`, and handed down as the frozen group that a part needs. A wrong value stops the start with
a line that names the variable. Names and defaults are part of the contract.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from crewai_sidecar.addresses import is_loopback
from crewai_sidecar.errors import SettingRefused
from crewai_sidecar.model import Operation

__all__ = ["PREFIX", "Settings", "read_settings", "unknown_variables"]

PREFIX = "AIP_CREWAI_"


def _names(value: Any) -> Any:
    """Split a comma-separated list; blanks around a name and empty places do not count."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    return value


def _flag(value: Any) -> Any:
    """Only 1 and true switch a development mode on, 0, false and nothing leave it off."""
    if isinstance(value, str):
        known = {"1": True, "true": True, "0": False, "false": False, "": False}
        if value.lower() not in known:
            raise ValueError("must be 1, true, 0 or false")
        return known[value.lower()]
    return value


def _no_service_link(value: Any) -> Any:
    if isinstance(value, str) and re.match(r"[a-z]+://", value):
        raise ValueError(
            f"{value!r} is not a port. Kubernetes injects such a value for a Service of that name: "
            "set enableServiceLinks: false in the pod, or rename the Service"
        )
    return value


def _registry(value: str) -> str:
    module, colon, attribute = value.partition(":")
    if not (module and colon and attribute) or any(not part.isidentifier() for part in module.split(".")):
        raise ValueError("must be module:attribute, for example acme_crews:crews")
    return value


def _level(value: str) -> str:
    if value.lower() not in {"debug", "info", "warning", "error"}:
        raise ValueError("must be debug, info, warning or error")
    return value.lower()


def _absolute(value: Path | None) -> Path | None:
    return value if value is None else Path.cwd() / value


Port = Annotated[int, BeforeValidator(_no_service_link), Field(ge=0, le=65_535)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Directory = Annotated[Path | None, AfterValidator(_absolute)]


class Settings(BaseSettings):
    """The settings of one service process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    host: str = "0.0.0.0"
    """Address of the contract port."""

    port: Port = 8090
    """The contract port; 0 lets the kernel choose, and the start line says which it is."""

    management_host: str = "::"
    """Address of the management port. The default is every address, IPv6 and IPv4 where the kernel has both."""

    management_port: Port = 8091
    """Port of /livez, /readyz and /metrics, without authentication and without secrets."""

    registry: Annotated[str, AfterValidator(_registry)]
    """module:attribute of the mapping of crew ids, or of a callable that returns it. Required."""

    bearer_token: str | None = Field(default=None, repr=False)
    """The token itself. Prefer the file."""

    bearer_token_file: Directory = None
    """File that holds the token; read again when it changes."""

    allow_unauthenticated: Flag = False
    """Development: no token at all. Refused unless the contract port listens on loopback."""

    state_file: Directory = None
    """The journal. Its directory holds nothing else."""

    allow_ephemeral: Flag = False
    """Development: no journal, nothing survives the process. Refused unless the contract port listens on loopback."""

    allowed_operations: Annotated[tuple[Operation, ...], NoDecode, BeforeValidator(_names)] = (Operation.RUN,)
    """Operations that may start work, comma-separated."""

    effect_free_crews: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Crews whose runs change nothing outside: their failures need no reconciliation. Comma-separated."""

    training_dir: Directory = None
    """Directory of trained artefacts; required where train is allowed."""

    run_dir: Directory = None
    """Parent of the per-run directories. Default: the directory for temporary files."""

    max_concurrency: int = Field(default=4, ge=1, le=1024)
    """Runs at the same time."""

    max_queued: int = Field(default=1000, ge=0, le=100_000)
    """Admitted Actions that may wait for a slot."""

    warm_children: int = Field(default=2, ge=0, le=64)
    """Children forked ahead of need."""

    max_retained_runs: int = Field(default=20_000, ge=1, le=100_000)
    """Records that may be retained; at least max_concurrency."""

    max_events_per_run: int = Field(default=1000, ge=2, le=100_000)
    """Events of one record, its ending among them."""

    max_event_bytes: int = Field(default=262_144, ge=1024, le=4_194_304)
    """Bytes of one event as stored."""

    max_state_bytes: int = Field(default=268_435_456, ge=1_048_576, le=4_294_967_296)
    """Bytes of the journal, the room kept for endings among them."""

    ending_room_bytes: int = Field(default=4096, ge=4096, le=1_048_576)
    """Bytes kept free in the journal for the ending of each admitted Action."""

    stream_checkpoint_events: int = Field(default=128, ge=1, le=10_000)
    """Most chunk events of one run that one commit takes."""

    journal_tail_bytes: int = Field(default=0, ge=0, le=0)
    """0: every commit writes the journal anew, as one checkpoint. This version has no other mode."""

    drain_seconds: float = Field(default=20.0, ge=0, le=3600)
    """Time that running Actions have after SIGTERM before they are stopped."""

    log_level: Annotated[str, AfterValidator(_level)] = "info"
    """Least level that is logged: debug, info, warning or error. debug shows what crews print, whatever it is."""

    @property
    def durable(self) -> bool:
        """Whether there is a journal on disk."""
        return self.state_file is not None


def read_settings() -> Settings:
    """Read and check the settings of the process environment.

    Raises SettingRefused, which names the first variable that is missing or wrong.
    """
    try:
        settings = Settings()  # type: ignore[call-arg]  # pydantic-settings fills the fields from the environment
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        if first["type"] == "missing":
            raise SettingRefused(name, "is required, for example acme_crews:crews") from None
        raise SettingRefused(name, _fact(first)) from None
    _check_together(settings)
    return settings


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Variables with our prefix that are no setting: a misspelt name would otherwise have no effect in silence.

    They are not refused: Kubernetes injects such names for a Service, and a connector beside us has its own.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    return sorted(name for name in names if name.startswith(PREFIX) and name not in known)


def _fact(error: Any) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input")
    return f"{text} (it is {given!r})" if given is not None and "token" not in str(error["loc"][0]) else text


def _check_together(settings: Settings) -> None:
    """Check what no field can say alone."""
    loopback = is_loopback(settings.host)
    if settings.bearer_token is not None and settings.bearer_token_file is not None:
        raise SettingRefused(PREFIX + "BEARER_TOKEN", "excludes AIP_CREWAI_BEARER_TOKEN_FILE; set one of them")
    if settings.allow_unauthenticated and not loopback:
        raise SettingRefused(
            PREFIX + "ALLOW_UNAUTHENTICATED", f"is for loopback development, and AIP_CREWAI_HOST is {settings.host}"
        )
    if settings.allow_ephemeral and not loopback:
        raise SettingRefused(
            PREFIX + "ALLOW_EPHEMERAL", f"is for loopback development, and AIP_CREWAI_HOST is {settings.host}"
        )
    has_token = settings.bearer_token is not None or settings.bearer_token_file is not None
    if not has_token and not settings.allow_unauthenticated:
        raise SettingRefused(PREFIX + "BEARER_TOKEN_FILE", "is required (or AIP_CREWAI_BEARER_TOKEN)")
    if settings.state_file is None and not settings.allow_ephemeral:
        raise SettingRefused(PREFIX + "STATE_FILE", "is required: the path of the journal, on a volume of its own")
    if Operation.TRAIN in settings.allowed_operations and settings.training_dir is None:
        raise SettingRefused(PREFIX + "TRAINING_DIR", "is required where AIP_CREWAI_ALLOWED_OPERATIONS has train")
    if settings.max_retained_runs < settings.max_concurrency:
        raise SettingRefused(PREFIX + "MAX_RETAINED_RUNS", "must be at least AIP_CREWAI_MAX_CONCURRENCY")
