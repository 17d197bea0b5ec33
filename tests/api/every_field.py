"""Requests that use every field there is, for tests that break one of them at a time."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
_FUNCTION: Json = {
    "name": "weather",
    "description": "Looks up.",
    "parameters": _PARAMETERS,
    "strict": True,
}
_SAMPLING: Json = {
    "model": "fake",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "seed": 7,
    "logit_bias": {"5": 1.5},
    "stop": ["END"],
    "n": 1,
    "user": "me",
    "return_progress": True,
    "ignore_eos": False,
    "stream": False,
    "stream_options": {"include_usage": True},
}
CHAT: Json = {
    **_SAMPLING,
    "messages": [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Let me see.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_format": "auto",
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
}
FORCED: Json = {
    **CHAT,
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "max_completion_tokens": 4,
}
FORMATTED: Json = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": _PARAMETERS, "strict": True},
    },
}
GUIDED: Json = {
    "prompt": "Hi",
    "max_tokens": 3,
    "json_schema": _PARAMETERS,
    "logprobs": 2,
    "echo": False,
    "suffix": "",
    "best_of": 1,
}
GRAMMAR: Json = {"prompt": "Hi", "max_tokens": 3, "grammar": 'root ::= "a" | "b" root'}
MESSAGES: Json = {
    **_SAMPLING,
    "system": [{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "B"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "sun"}],
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "words"},
                },
            ],
        },
    ],
    "tools": [{"name": "weather", "description": "x", "input_schema": _PARAMETERS}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "metadata": {"user_id": "user_1_account_1_session_00000000-0000-0000-0000-000000000000"},
    "stop_sequences": ["END"],
    "diagnostics": {"previous_message_id": "msg_1"},
}
STRUCTURED: Json = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
    "output_config": {
        "effort": "low",
        "format": {"type": "json_schema", "schema": _PARAMETERS},
    },
}
RESPONSES: Json = {
    **{name: value for name, value in _SAMPLING.items() if name not in ("n", "user")},
    "instructions": "Be terse.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "kept",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city":"Bonn"}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Sun.", "annotations": []}],
        },
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"type": "function", **_FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
    "parallel_tool_calls": True,
    "max_output_tokens": 3,
    "max_tool_calls": 1,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": _PARAMETERS}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": True,
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "top_logprobs": 1,
    "truncation": "disabled",
    "metadata": {"a": "b"},
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "background": False,
}
SESSION: Json = {"name": "made", "policy": "fork", "pinned_front": ["clock", "date"]}
FORK: Json = {"name": "forked", "at": 1}
TOKENIZE: Json = {
    "content": "grüß",
    "add_special": True,
    "parse_special": False,
    "with_pieces": True,
}

REQUESTS: list[tuple[str, Json]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", FORCED),
    ("/v1/chat/completions", FORMATTED),
    ("/v1/completions", GUIDED),
    ("/v1/completions", GRAMMAR),
    ("/v1/messages", MESSAGES),
    ("/v1/messages", STRUCTURED),
    ("/v1/messages/count_tokens", MESSAGES),
    ("/v1/responses", RESPONSES),
    ("/v1/sessions", SESSION),
    ("/tokenize", TOKENIZE),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", CHAT),
]
