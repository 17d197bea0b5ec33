"""What a client is told of a failure, in the shape of OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """What the client is told. `reference` is the id in the log, "" for a client's own mistake."""

    status: int
    message: str
    code: str
    param: str | None = None
    reference: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        error = {"message": self.told, "type": self._type, "code": self.code, "param": self.param}
        return {"error": {**error, **self.details}}

    @property
    def told(self) -> str:
        """The message, with the id where there is one."""
        return f"{self.message} (id {self.reference})" if self.reference else self.message

    @property
    def _type(self) -> str:
        if self.status >= 500:
            return "server_error"
        return "rate_limit_error" if self.status == 429 else "invalid_request_error"
