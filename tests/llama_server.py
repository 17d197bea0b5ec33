#!/usr/bin/env python3
"""Stands in for llama-server: takes its options, and streams words at once."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            self._event({"choices": [{"text": " word", "finish_reason": None}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")


if __name__ == "__main__":
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    address = (options["--host"], int(options["--port"]))
    ThreadingHTTPServer(address, _Handler).serve_forever()
