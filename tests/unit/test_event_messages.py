"""What a person sees of an event where the application has set up no logging, or a format of its own."""

import logging
import subprocess
import sys
from uuid import UUID

import pytest

from coordinator.consumer.membership import tell_dead
from coordinator.observe import events
from coordinator.observe.events import MEANINGS
from coordinator.observe.logs import logger
from coordinator.protocol.groups import Dead

NAMES = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
DEAD = Dead(UUID(int=7), "billing-1", "db-host", 12, ["billing", "ledger"])


def test_each_event_says_what_it_means() -> None:
    assert set(MEANINGS) == NAMES


def test_message_of_an_event__says_what_it_means_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    tell_dead([DEAD])
    (record,) = caplog.records
    assert record.getMessage() == (
        f"member.died: {MEANINGS['member.died']} (member=00000000-0000-0000-0000-000000000007 groups=billing,ledger "
        "client_id=billing-1 host=db-host pid=12)"
    )
    assert record.msg == record.event == "member.died"  # type: ignore[attr-defined]
    assert record.client_id == "billing-1"  # type: ignore[attr-defined]


def test_message_of_an_event__percent_and_control_characters__is_one_printable_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger().warning(events.CONNECTION_LOST, extra={"error": "100 %s\n\tof \x1b[31m"})
    (text,) = caplog.messages
    assert text.isprintable()
    assert text.endswith("(error=100 %s of \\x1b[31m)")


def test_caller_of_an_event__in_a_record__is_who_told_it(caplog: pytest.LogCaptureFixture) -> None:
    tell_dead([DEAD])
    assert caplog.records[0].funcName == "tell_dead"


def test_program_without_any_logging__shows_the_event_with_its_fields_on_standard_error() -> None:
    program = (
        "from coordinator.observe import events; from coordinator.observe.logs import logger\n"
        "logger().warning(events.MEMBER_DIED, extra={'groups': 'billing'}); logger().info(events.MEMBER_LEFT)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == f"member.died: {MEANINGS['member.died']} (groups=billing)\n"
    assert done.stdout == ""


def test_program_with_a_queue_between__keeps_the_text(caplog: pytest.LogCaptureFixture) -> None:
    """`QueueHandler` and pickling send the formatted message, not the object."""
    import pickle
    from logging.handlers import QueueHandler
    from queue import SimpleQueue

    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logging.getLogger("coordinator").addHandler(handler := QueueHandler(queue))
    try:
        tell_dead([DEAD])
    finally:
        logging.getLogger("coordinator").removeHandler(handler)
    sent = pickle.loads(pickle.dumps(queue.get()))
    assert sent.getMessage() == caplog.messages[0]
    assert sent.event == "member.died"
