#!/usr/bin/env python3
"""Stands in for llama-server: takes its options, and streams words.

A raw completion reads a hundred words in a millisecond and writes one; a chat is told at once.
Every word of a chat is a token. It remembers the last prompt and its reply, as one slot does, and
evaluates what is new; the slot can be saved and restored.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LONGEST_REPLY = 4
READ_S, WRITE_S = 1e-5, 1e-3
slot: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        address = urlsplit(self.path)
        self.send_response(200)
        self.end_headers()
        if address.path.startswith("/slots/"):
            number, (action,) = address.path.split("/")[2], parse_qs(address.query)["action"]
            self._slot(number, action, asked["filename"])
        elif address.path.endswith("/chat/completions"):
            self._chat(asked)
        else:
            time.sleep(len(asked["prompt"].split()) * READ_S)
            for _ in range(asked["max_tokens"]):
                time.sleep(WRITE_S)
                self._event({"choices": [{"text": " word", "finish_reason": None}]})
            self._event({"choices": [{"text": "", "finish_reason": "length"}]})
            self.wfile.write(b"data: [DONE]\n\n")

    def _chat(self, asked: dict[str, Any]) -> None:
        prompt = [word for one in asked["messages"] for word in (one["content"] or "").split()]
        reply = ["word"] * min(asked["max_tokens"], LONGEST_REPLY)
        pairs = zip(prompt, slot, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        slot[:] = [*prompt, *reply]
        for word in reply:
            self._event({"choices": [{"delta": {"content": f"{word} "}}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(reply)}
        timings = {"prompt_n": max(len(prompt) - same, 1)}
        self._event({"choices": [], "usage": usage, "timings": timings})
        self.wfile.write(b"data: [DONE]\n\n")

    def _slot(self, number: str, action: str, name: str) -> None:
        path = Path(options["--slot-save-path"]) / name
        if action == "save" and number == "0":
            path.write_text(json.dumps(slot))
            answer = {"n_saved": len(slot)}
        elif action == "restore":
            slot[:] = json.loads(path.read_text())
            answer = {"n_restored": len(slot)}
        else:
            answer = {"n_saved": 0}
        self.wfile.write(json.dumps(answer).encode())

    def _event(self, event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def _options(arguments: list[str]) -> dict[str, str]:
    """What begins with - is an option, and what follows it is its value, if it does not too."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return {
        name: "" if value.startswith("-") else value for name, value in pairs if name[:1] == "-"
    }


if __name__ == "__main__":
    options = _options(sys.argv[1:])
    address = (options["--host"], int(options["--port"]))
    ThreadingHTTPServer(address, _Handler).serve_forever()
