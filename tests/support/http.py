"""Requests to what a process serves, and what it says."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def samples(text: str) -> dict[str, float]:
    """Values by the name and labels of a sample, as they stand in the text."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
