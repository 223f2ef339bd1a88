"""Array literals.

Sent as text of unknown type: a list of ints would be sent as int2[], int4[] or int8[] by its largest member, and each
combination would be prepared as a statement of its own.
"""

from collections.abc import Iterable


def array(items: Iterable[object]) -> str:
    """Return the literal of an array of numbers or UUIDs: nothing in them needs quoting."""
    return "{" + ",".join(map(str, items)) + "}"


def quoted_array(items: Iterable[str]) -> str:
    """Return the literal of an array of texts; each is quoted."""
    return "{" + ",".join(['"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items]) + "}"
