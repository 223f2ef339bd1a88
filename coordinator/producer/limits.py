"""The size limits of topics, remembered for a minute: an oversized message is refused before any SQL."""

_REMEMBER_S = 60.0


class KnownLimits:
    """Limits by topic. Safe for threads: each entry is replaced as a whole."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def get(self, topic: str, now_s: float) -> int | None:
        """The limit in bytes; None if it has to be asked for."""
        known = self._known.get(topic)
        return known[0] if known is not None and now_s < known[1] else None

    def note(self, topic: str, max_message_bytes: int | None, now_s: float) -> None:
        """Remember an answer; an unknown topic (None) is not remembered, it may be created any moment."""
        if max_message_bytes is not None:
            self._known[topic] = (max_message_bytes, now_s + _REMEMBER_S)
