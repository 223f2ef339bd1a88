"""The functions of sql/functions/rights, and the policy of groups, as data."""

from collections.abc import Sequence

from coordinator.protocol.check import each, maybe, number, text, wrong
from coordinator.protocol.statement import Statement


def grant_statements(kind: str, role: str) -> Statement[list[str]]:
    """What would give a role the rights of a kind: publisher, consumer, reader, operator."""
    return Statement(
        "grant_statements",
        "select s from coordinator.grant_statements(%s, %s) s",
        (kind, role),
        lambda rows: [row[0] for row in rows],
    )


def apply_grants(kind: str | None = None, role: str | None = None) -> Statement[list[str]]:
    """Give it, and remember it; without arguments give anew what is remembered. Returns what was run."""
    return Statement(
        "apply_grants",
        "select s from coordinator.apply_grants(%s, %s) s",
        (kind, role),
        lambda rows: [row[0] for row in rows],
    )


def set_topic_rights(topic: str, publish: Sequence[str] | None, subscribe: Sequence[str] | None) -> Statement[None]:
    """Name the roles that may publish to a topic and read it; None: whoever may call the functions."""
    return Statement(
        "set_topic_rights",
        "select coordinator.set_topic_rights(%s, %s, %s)",
        (text("topic", topic), maybe(_roles, "publish", publish), maybe(_roles, "subscribe", subscribe)),
        lambda _: None,
    )


def set_group_expiry(
    group: str, expire_s: float | None, on_expiry: str, max_dead_letter_age_s: float | None
) -> Statement[None]:
    """What becomes of a group without members, and of its old dead letters."""
    if on_expiry not in ("release", "delete"):
        raise wrong("on_expiry", "release or delete", on_expiry)
    ages = maybe(_age, "expire_s", expire_s), maybe(_age, "max_dead_letter_age_s", max_dead_letter_age_s)
    return Statement(
        "set_group_expiry",
        "select coordinator.set_group_expiry(%s, %s, %s, %s)",
        (text("group", group), ages[0], on_expiry, ages[1]),
        lambda _: None,
    )


def _age(name: str, value: object) -> float:
    return number(name, value, 1, 3.2e9)


def _roles(name: str, values: object) -> list[str]:
    return each(text, name, values, "a list of roles")
