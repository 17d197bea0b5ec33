"""Every setting of the daemon, its default and its meaning."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sessiond import units
from sessiond.config.presets import Preset, PresetName
from sessiond.directories import StateDirs, runtime_socket
from sessiond.errors import ConfigError

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
PolicyName = Literal["append-only", "fork"]
Scalar = bool | int | float | str

_FLOATS = ("f32", "f16", "bf16")


def _or_word(word: str, parse: Callable[[str], object]) -> Callable[[str], object]:
    def parse_or_word(value: str) -> object:
        return word if value == word else parse(value)

    return parse_or_word


def _as_list(value: object) -> object:
    """Variables and flags give lists as `a,b`."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _written(value: object) -> str:
    return units.format_size(value) if isinstance(value, int) else str(value)


def _written_park(value: str | float) -> str:
    return value if isinstance(value, str) else units.format_duration(value)


Size = Annotated[
    int,
    BeforeValidator(units.parse_size),
    PlainSerializer(units.format_size, when_used="json"),
]
Duration = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    PlainSerializer(units.format_duration, when_used="json"),
]
SizeOrShare = Annotated[
    int | units.Share,
    PlainValidator(units.parse_size_or_share),
    PlainSerializer(_written, when_used="json"),
]
Budget = Annotated[
    Literal["auto"] | int | units.Share,
    PlainValidator(_or_word("auto", units.parse_size_or_share)),
    PlainSerializer(_written, when_used="json"),
]
Parking = Annotated[
    Literal["pressure"] | float,
    PlainValidator(_or_word("pressure", units.parse_duration)),
    PlainSerializer(_written_park, when_used="json"),
]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(Section):
    host: str = Field(
        "127.0.0.1", description="Address to listen on. One that others can reach needs keys."
    )
    port: int = Field(8484, ge=0, le=65535, description="TCP port. 0 takes any free one.")
    uds: str = Field(
        "", description='Unix socket. Empty: in the runtime directory, if any. "off": none.'
    )
    state_dir: str = Field(
        "", description="Directory for everything sessiond keeps. Empty: where the system wants it."
    )
    allowed_hosts: Names = Field(
        (), description="Further host names under which clients without a key may call the daemon."
    )
    max_body: Size = Field(32 * units.MIB, description="Largest request, as a size.")
    queue: int = Field(64, ge=1, description="Requests that may wait; more are turned away.")
    load_wait: Duration = Field(
        600.0, description="How long requests wait while the model loads, as a duration."
    )
    drain: Duration = Field(
        10.0, description="How long running replies may go on when the daemon stops. A duration."
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the port."""
        return _is_loopback(self.host)

    def socket(self) -> Path | None:
        """The unix socket to listen on, None for none."""
        if self.uds == "off":
            return None
        return Path(self.uds).expanduser() if self.uds else runtime_socket()


class Auth(Section):
    keys_file: str = Field("", description="File with the API keys, one a line.")

    def keys_path(self) -> Path | None:
        """The keys file, or systemd's credential `api-keys` where there is one.

        Raises ConfigError where that cannot be found out.
        """
        if self.keys_file:
            return Path(self.keys_file).expanduser()
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        credential = Path(folder or "", "api-keys")
        return credential if folder and _is_file(credential, "auth.keys_file") else None


class Model(Section):
    path: str = Field("", description="The model, a GGUF file.")
    name: str = Field("", description="What the model is called in answers. Empty: its file name.")
    n_ctx: int = Field(
        0, ge=0, description="Tokens that all active sessions share. 0: as many as fit in memory."
    )
    n_batch: int = Field(512, ge=1, description="Tokens read in one step.")
    n_ubatch: int = Field(512, ge=1, description="Tokens computed at once; at most n_batch.")
    n_gpu_layers: int = Field(-1, ge=-1, description="Layers of the model on the GPU. -1: all.")
    threads: int = Field(0, ge=0, description="CPU threads. 0: chosen from the machine.")
    type_k: CacheType = Field("f16", description="Number format of the attention keys in memory.")
    type_v: CacheType = Field(
        "f16", description="Number format of the attention values. Quantised: needs flash_attn."
    )
    flash_attn: bool = Field(True, description="Use flash attention.")
    chat_template_file: str = Field(
        "", description="Chat template to use instead of the model's own."
    )
    tool_format: str = Field(
        "", description="How the model writes tool calls. Empty: seen from its chat template."
    )
    strict_name: bool = Field(False, description="Refuse requests that name another model.")
    unload_after: Duration = Field(
        0.0, description="Free the model after so long without requests, as a duration. 0: never."
    )
    extra: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict, description="Further llama.cpp parameters by name."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_ubatch > self.n_batch:
            raise ConfigError(
                f"model.n_ubatch = {self.n_ubatch} is more than model.n_batch = {self.n_batch}.",
                hint=f"Set model.n_ubatch to at most {self.n_batch}, or raise model.n_batch.",
                param="model.n_ubatch",
            )
        if self.type_v not in _FLOATS and not self.flash_attn:
            raise ConfigError(
                f'model.type_v = "{self.type_v}" needs flash attention, which is off.',
                hint='Set model.flash_attn = true, or model.type_v = "f16".',
                param="model.type_v",
            )
        return self

    @property
    def flash_attn_is_optional(self) -> bool:
        """It is on, and the number formats allow it to be off."""
        return self.flash_attn and self.type_v in _FLOATS

    def required_path(self) -> Path:
        """The model file. Raises ConfigError where none is set or it is not there."""
        if not self.path:
            raise ConfigError(
                "model.path is not set: there is no model to serve.",
                hint="Give one with --model /path/to/model.gguf.",
                param="model.path",
            )
        return existing_file(self.path, "model.path")


class Sessions(Section):
    max_active: int = Field(
        0,
        ge=0,
        description="Conversations in the model's memory at once. 0: chosen from the model.",
    )
    policy: PolicyName = Field(
        "append-only",
        description="When a client rewrites the history of a session you named: refuse, or fork.",
    )
    auto_policy: PolicyName = Field("fork", description="The same, for all other sessions.")
    max_rewind_tokens: int = Field(
        2048, ge=0, description="A rewrite that discards at most so many tokens is always allowed."
    )
    reasoning: Literal["keep", "template"] = Field(
        "keep",
        description="Keep past reasoning in the conversation, or drop it as the template does.",
    )
    step_budget: Duration = Field(
        0.2, description="How long a running reply may wait for the reading of another prompt."
    )
    park: Parking = Field(
        "pressure",
        description='When an idle session leaves memory: under "pressure", or after a duration.',
    )
    pinned_front: Names = Field(
        (), description='Parts of the system prompt to freeze: "clock", "date", "id", or patterns.'
    )
    warm: int = Field(
        16,
        ge=0,
        description="Sessions whose state is made anew in idle time after the model has changed.",
    )
    keep: Duration = Field(
        30 * 86400.0,
        description="Forget what was unused for so long, except sessions you named or pinned. A "
        "duration; 0: never.",
    )


class Checkpoints(Section):
    ram: Budget = Field(
        "auto", description='Memory for snapshots: a size, a share of RAM, or "auto" (at most 25%).'
    )


class Store(Section):
    dir: str = Field("", description="Directory for saved model state. Empty: the cache directory.")
    quota: Budget = Field(
        "auto",
        description='Disk space for it: a size, a share of the free space, or "auto".',
    )
    keep_free: SizeOrShare = Field(
        5 * units.GIB, description="Disk space always left free: a size, or a share of the disk."
    )


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is logged: this and worse."
    )
    format: Literal["auto", "text", "json"] = Field(
        "auto", description="How: for people or for programs. auto: by where the log goes."
    )


class Config(BaseSettings):
    """Frozen. Constructed directly it reads no environment and no file: `load_config` does.

    Sizes are bytes, durations seconds; `model_dump(mode="json")` spells them as people do.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    server: Server = Server()
    auth: Auth = Auth()
    model: Model = Model()
    sessions: Sessions = Sessions()
    presets: dict[PresetName, Preset] = Field(
        default_factory=dict,
        description="Settings under a name that clients choose as their model.",
    )
    checkpoints: Checkpoints = Checkpoints()
    store: Store = Store()
    log: Log = Log()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    def directories(self) -> StateDirs:
        return StateDirs.resolve(self.server.state_dir, self.store.dir)

    def check(self) -> None:
        """What depends on this machine but not on the model. Raises ConfigError."""
        if self.model.chat_template_file:
            existing_file(self.model.chat_template_file, "model.chat_template_file")
        keys = self.auth.keys_path()
        has_keys = bool(keys and _has_lines(existing_file(str(keys), "auth.keys_file")))
        if not has_keys and not _is_loopback(self.server.host):
            raise ConfigError(
                f"server.host = {self.server.host} lets other machines in, without API keys.",
                hint="Set auth.keys_file to a file with keys, or server.host to 127.0.0.1.",
                param="server.host",
            )


def _is_file(file: Path, key: str) -> bool:
    """Raises ConfigError naming `key` where this user may not even look."""
    try:
        return file.is_file()
    except PermissionError as error:
        raise ConfigError(
            f"{key}: {file} is in a folder that this user may not enter.",
            hint="Correct its owner or mode.",
            param=key,
        ) from error


def existing_file(path: str, key: str) -> Path:
    """Raises ConfigError naming `key` where `path` is not a file this user can read."""
    file = Path(path).expanduser()
    if not _is_file(file, key):
        problem = "is not a file" if file.exists() else "does not exist"
    elif not os.access(file, os.R_OK):
        problem = "may not be read by this user"
    else:
        return file
    raise ConfigError(f"{key}: {file} {problem}.", hint="Correct the path.", param=key)


def _has_lines(file: Path) -> bool:
    """Beside comments."""
    lines = file.read_bytes().splitlines()
    return any(line.partition(b"#")[0].strip() for line in lines)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
