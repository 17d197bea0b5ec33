"""One tree of errors, each with a code, an HTTP status and a hint. Logged once, at the edge."""

from __future__ import annotations

from typing import ClassVar


class SessiondError(Exception):
    """`message` says what went wrong, `hint` the way out; `param` names the field at fault."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class InvalidRequest(SessiondError):
    code, status = "invalid_request", 400


class ContextLengthExceeded(InvalidRequest):
    """A prompt of `tokens` tokens where at most `limit` fit."""

    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, tokens: int, limit: int, hint: str = "", param: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.tokens = tokens
        self.limit = limit


class UnsupportedContent(InvalidRequest):
    code = "unsupported_content"


class TemplateError(InvalidRequest):
    """The model's chat template refused these messages, or there is no template."""

    code = "chat_template_failed"


class InvalidExport(InvalidRequest):
    """A file that is no export, or was cut off or altered. Nothing has changed."""

    code = "invalid_export"


class NotFound(SessiondError):
    code, status = "not_found", 404


class SessionNotFound(NotFound):
    code = "session_not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class Conflict(SessiondError):
    """The session is busy with a running turn, or the name is taken."""

    code, status = "conflict", 409


class BodyTooLarge(SessiondError):
    code, status = "body_too_large", 413


class QueueFull(SessiondError):
    code, status, retry_after = "queue_full", 429, 3


class Unavailable(SessiondError):
    """Draining, or the model is still loading after `load_wait`."""

    code, status, retry_after = "unavailable", 503, 5


class ConfigError(SessiondError):
    """The daemon refuses to start; `param` is the key."""

    code = "bad_configuration"


class LedgerError(SessiondError):
    """The ledger could not be written or read."""

    code = "ledger_failed"


class StateError(SessiondError):
    """A stored state that must not reach llama.cpp. `key` names the block or snapshot."""

    code = "state_refused"
    reason: ClassVar[str] = "damaged"

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class StateDamaged(StateError):
    code = "state_damaged"


class StateMissing(StateError):
    code, reason = "state_missing", "missing"


class StateForeign(StateError):
    """Written under another fingerprint or owner."""

    code, reason = "state_foreign", "foreign"


class StateNewer(StateError):
    """Written by a newer format than this sessiond reads."""

    code, reason = "state_newer", "newer"


class StoreFull(StateError):
    """No room for a new state in quota, `keep_free` or disk; what was stored is intact."""

    code, status, reason = "store_full", 507, "full"


class StoreFailed(StateError):
    """The store's index or files could not be used just now; nothing is known to be damaged."""

    code, reason = "store_failed", "unavailable"


class StoreCorrupt(StateError):
    """Index, files and budget disagree: found by a self-check, never in passing."""

    code, reason = "store_corrupt", "corrupt"


class EngineError(SessiondError):
    code, status = "engine_failed", 500


class PoolFull(EngineError):
    """`llama_decode` returned 1: no free cells; every sequence is as it was."""

    code, status, retry_after = "pool_full", 503, 5


class DecodeFailed(EngineError):
    """`llama_decode` returned 2 or less than 0: the whole memory must be cleared."""

    code = "decode_failed"


class RestoreRefused(EngineError):
    """llama.cpp did not accept a verified state; the sequence is empty now."""

    code = "restore_refused"
