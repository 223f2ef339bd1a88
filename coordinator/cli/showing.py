"""`messages show`: one message, its payload decoded, and what it is to each group."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.cli import output
from coordinator.cli.consuming import line_of
from coordinator.errors import NotFoundError
from coordinator.model import Message, MessageState, value_text

if TYPE_CHECKING:
    from coordinator.app import Coordinator


def show(app: "Coordinator", topic: str, partition: int, offset: int, group: str | None, *, as_json: bool) -> bool:
    """Print both; False where there is no message at that offset."""
    states = app.message_states(topic, partition, offset)
    if group is not None:
        states = [state for state in states if state.group == group]
        if not states:
            raise NotFoundError(f"no group {group!r} reads topic {topic!r}")
    found = app.peek(topic, partition=partition, from_offset=offset, limit=1)
    message = found[0] if found and found[0].offset == offset else None
    if as_json:
        # Its line as it is: to parse it and write it again would change 1.10 to 1.1.
        line = b"null" if message is None else line_of(message).rstrip(b"\n")
        groups = json.dumps(states, default=output.plain, ensure_ascii=False).encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(b'{"message": ' + line + b', "groups": ' + groups + b"}\n")
        sys.stdout.buffer.flush()
    else:
        _tell(message, states, with_history=group is not None)
    if message is None:
        output.note(
            f"there is no message at {topic}/{partition}/{offset}: rolled back, dropped by retention, or not committed yet"
        )
    return message is not None


def _tell(message: Message | None, states: Sequence[MessageState], *, with_history: bool) -> None:
    if message is not None:
        facts = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "published": output.timestamp(message.published_at),
            "message-id": message.message_id,
            "key": message.key,
            "headers": json.dumps(message.headers, ensure_ascii=False) if message.headers else None,
            "content-type": message.content_type,
            "bytes": len(message.payload),
            "value": value_text(message.payload),
        }
        for name, value in facts.items():
            output.line(f"{name + ':':14}{output.cell(value)}")
        output.line("")
    output.table(
        ("GROUP", "STATE", "FAILS", "CRASHES", "REPLAYS", "NEXT", "SINCE", "REASON", "CLIENT-ID", "HOST", "LAST-ERROR"),
        [
            (
                state.group,
                state.state,
                state.fails,
                state.crashes,
                state.replays,
                state.next_at,
                state.since,
                state.reason,
                state.client_id,
                state.host,
                None if state.error is None else state.error.partition("\n")[0],
            )
            for state in states
        ],
    )
    if with_history:
        output.history(states[0].errors)
