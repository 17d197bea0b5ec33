"""The bounds that fields of requests share, and what the OpenAPI document says of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from sessiond.api.identity import NAME_PATTERN, NAME_SENT


def _whole(value: object) -> object:
    """JSON has one kind of number: 4.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]
Alternatives = Annotated[int, Field(ge=0, le=20), WHOLE]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Label = Annotated[str, Field(max_length=512)]
ToolName = Annotated[str, Field(min_length=1, max_length=512)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
TokenId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Policy = Literal["append-only", "fork"]
Off = Annotated[bool | None, WithJsonSchema({"enum": [False, None]})]
"""What is refused when it is true."""
Nothing = WithJsonSchema({"type": "null"})
"""Of what is refused with words of its own."""
Name = Annotated[str, Field(max_length=NAME_SENT, json_schema_extra={"pattern": NAME_PATTERN})]
Patterns = Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=32)]
