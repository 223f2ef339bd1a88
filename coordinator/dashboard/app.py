"""The routes of the dashboard. Nothing here changes anything, and no payload is shown unless it is asked for."""

from collections.abc import Mapping
from importlib.resources import files

from coordinator.app import Coordinator
from coordinator.dashboard import html, queries
from coordinator.dashboard.html import Markup, facts, link, note, page, section, table
from coordinator.errors import NotFoundError
from coordinator.model import DeadLetter, GroupInfo, TopicInfo
from coordinator.protocol.observe import GroupGauge
from coordinator.serving.http import Request, Response, Route

_REFRESH_S = 10
_MAX_ROWS = 200
_MAX_PAYLOAD_CHARS = 20_000
# Scripts, frames and anything from elsewhere are refused by the browser, whatever a page says.
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def pages_of(app: Coordinator) -> Mapping[str, Route]:
    """Return the pages by the first part of their path."""
    dashboard = Dashboard(app)
    return {
        "": dashboard.overview,
        "topics": dashboard.topic,
        "groups": dashboard.group,
        "dead-letters": dashboard.dead_letters,
        "static": static,
    }


class Dashboard:
    """Pages over one database."""

    def __init__(self, app: Coordinator) -> None:
        self._app = app

    def overview(self, _request: Request) -> Response:
        """Topics and groups."""
        topics, groups = self._app.topics(), self._app.groups()
        unowned = self._unowned()
        return _page(
            "Overview",
            [],
            section(
                "Groups",
                table(
                    ("Group", "State", "Topics", "Members", "Lag", "Dead letters"),
                    [_group_row(group, unowned.get(group.name, 0)) for group in groups],
                    "No group has read anything yet.",
                ),
            ),
            section(
                "Topics",
                table(
                    ("Topic", "Partitions", "Messages (at most)", "Segments", "Size", "Created"),
                    [_topic_row(topic) for topic in topics],
                    "There is no topic yet: coordinator topics create NAME",
                ),
            ),
        )

    def topic(self, request: Request) -> Response:
        """One topic: its settings, its partitions, who reads it."""
        name = _only(request)
        topic = self._app.topic(name)
        groups = [group for group in self._app.groups() if name in group.topics]
        return _page(
            name,
            [Markup("topic")],
            facts(
                ("Partitions", topic.partitions),
                ("Size", _size(topic.size_bytes)),
                ("Current segment", topic.segment),
                ("First segment kept", topic.first_segment),
                ("Largest message", _size(topic.max_message_bytes)),
                ("Refuses publishes at a backlog of", topic.max_backlog),
                ("Created", topic.created_at),
            ),
            section(
                "Partitions",
                table(
                    ("Partition", "End offset"),
                    [(number, high + 1) for number, high in enumerate(topic.high_offsets)],
                    "None.",
                ),
            ),
            section(
                "Groups that read it",
                table(
                    ("Group", "Members", "Lag over all its topics"),
                    [(link(group.name, "groups", group.name), group.members, group.lag) for group in groups],
                    "No group reads it.",
                ),
            ),
        )

    def group(self, request: Request) -> Response:
        """One group: where it stands, who takes part, what waits."""
        name = _only(request)
        offsets = self._app.group_offsets(name)
        members = self._app.group_members(name)
        ages = self._ages(name)
        waiting = self._app.execute(queries.waiting(name, _MAX_ROWS))
        blocked = self._app.execute(queries.blocked_keys(name, _MAX_ROWS))
        dead = sum(self._app.dead_letters(name).counts().values())
        most = max((offset.lag for offset in offsets), default=0)
        notes = []
        live = {member.member_id for member in members if member.live}
        if not live:
            notes.append(note("Nobody reads for this group now.", "warning"))
        elif unowned := sum(offset.member_id not in live for offset in offsets):
            notes.append(
                note(f"{unowned} partitions have no owner: the group rebalances, or a member has died.", "warning")
            )
        return _page(
            name,
            [Markup("group")],
            *notes,
            facts(
                ("Lag", sum(offset.lag for offset in offsets)),
                ("Oldest unsettled", _age(max((age.oldest_unacked_s for age in ages.values()), default=0.0))),
                ("Members", len(live)),
                ("Parked", sum(offset.parked for offset in offsets)),
                ("Dead letters", link(dead, "dead-letters", name)),
            ),
            section(
                "Partitions",
                table(
                    (
                        "Topic",
                        "Partition",
                        "Committed",
                        "End",
                        "Lag",
                        "Behind by",
                        "In windows",
                        "Parked",
                        "Owner",
                        "Host",
                    ),
                    [
                        (
                            link(offset.topic, "topics", offset.topic),
                            offset.partition,
                            offset.current_offset,
                            offset.log_end_offset,
                            html.meter(offset.lag, most),
                            _age(ages[offset.topic, offset.partition].lag_s)
                            if (offset.topic, offset.partition) in ages
                            else None,
                            offset.window_open,
                            offset.parked,
                            offset.client_id,
                            offset.host,
                        )
                        for offset in offsets
                    ],
                    "It reads no topic.",
                ),
            ),
            section(
                "Members",
                table(
                    ("Client", "Host", "Process", "State", "Partitions", "Lease left", "Since"),
                    [
                        (
                            member.client_id,
                            member.host,
                            Markup(str(member.pid)),
                            member.state,
                            member.partitions,
                            f"{member.lease_left_s:.1f} s",
                            member.joined_at,
                        )
                        for member in members
                    ],
                    "None.",
                ),
            ),
            section(
                "Keys that are blocked",
                table(
                    ("Topic", "Partition", "Key", "Waiting in the table", "Since"),
                    [(key.topic, key.partition, key.key, key.waiting, key.since) for key in blocked],
                    "No messages are parked behind their key.",
                ),
            ),
            section(
                f"Retries, the first {_MAX_ROWS}" if len(waiting) == _MAX_ROWS else "Retries",
                table(
                    ("Topic", "Partition", "Offset", "Key", "Failures", "Crashes", "Next try", "Last error"),
                    [
                        (
                            row.topic,
                            row.partition,
                            row.offset,
                            row.key,
                            row.fails,
                            row.crashes,
                            "now" if row.running else row.next_at,
                            _first_line(row.last_error),
                        )
                        for row in waiting
                    ],
                    "No message waits for a retry.",
                ),
            ),
        )

    def dead_letters(self, request: Request) -> Response:
        """The dead letters of a group, the newest first; or one of them: GROUP/TOPIC/PARTITION/OFFSET."""
        if len(request.rest) == len(("group", "topic", "partition", "offset")):
            return self._dead_letter(request)
        group = _only(request)
        letters = self._app.dead_letters(group)
        found = letters.list(limit=_MAX_ROWS)
        return _page(
            "Dead letters",
            [link(group, "groups", group)],
            note(f"coordinator dlq replay {group} gives them back to the group."),
            table(
                ("Topic", "Partition", "Offset", "Key", "Reason", "Error", "Attempts", "Died"),
                [
                    (
                        letter.topic,
                        letter.partition,
                        link(letter.offset, "dead-letters", group, letter.topic, letter.partition, letter.offset),
                        letter.key,
                        letter.reason,
                        _first_line(letter.error),
                        letter.attempts,
                        letter.died_at,
                    )
                    for letter in found
                ],
                "None.",
            ),
        )

    def _dead_letter(self, request: Request) -> Response:
        group, topic, partition, offset = request.rest
        if not (partition.isdecimal() and offset.isdecimal()):
            raise NotFoundError("there is no such dead letter")
        letter = self._app.dead_letters(group).get(topic, int(partition), int(offset))
        shown = "payload" in request.query
        return _page(
            f"{topic}/{partition}@{offset}",
            [link(group, "groups", group), link("dead letters", "dead-letters", group)],
            facts(
                ("Reason", letter.reason),
                ("Attempts", letter.attempts),
                ("Crashes", letter.crashes),
                ("Replays", letter.replays),
                ("Key", letter.key),
                ("Message id", letter.message_id),
                ("Published", letter.published_at),
                ("Died", letter.died_at),
                ("Content type", letter.content_type or "application/json"),
            ),
            section("Error", html.block(letter.error or "none was told")),
            section("Payload", _payload(letter) if shown else _ask_for_payload(request, letter)),
            refresh_s=None,
        )

    def _unowned(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for gauge in self._app.group_gauges():
            found[gauge.group] = found.get(gauge.group, 0) + (not gauge.owned)
        return found

    def _ages(self, group: str) -> dict[tuple[str, int], GroupGauge]:
        return {(gauge.topic, gauge.partition): gauge for gauge in self._app.group_gauges() if gauge.group == group}


def static(request: Request) -> Response:
    """The style sheet; there is nothing else."""
    if request.rest != ("style.css",):
        raise NotFoundError("there is no such file")
    return Response(files("coordinator.dashboard").joinpath("static/style.css").read_bytes(), "text/css; charset=utf-8")


def _page(title: str, crumbs: list[Markup], *sections: Markup, refresh_s: int | None = _REFRESH_S) -> Response:
    content = page(title, [link("coordinator"), *crumbs], refresh_s, *sections)
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
    return Response(content, "text/html; charset=utf-8", headers=headers)


def _only(request: Request) -> str:
    if len(request.rest) != 1:
        raise NotFoundError("there is no such page")
    return request.rest[0]


def _group_row(group: GroupInfo, unowned: int) -> tuple[object, ...]:
    if not group.members:
        state = Markup('<span class="state bad">no members</span>' if group.lag else '<span class="state">empty</span>')
    elif unowned:
        state = Markup('<span class="state warn">rebalancing</span>')
    else:
        state = Markup('<span class="state good">stable</span>')
    topics = Markup(", ".join(link(topic, "topics", topic) for topic in group.topics[:10]))
    more = Markup(f" and {len(group.topics) - 10} more") if len(group.topics) > 10 else Markup("")  # noqa: PLR2004
    letters = link("show", "dead-letters", group.name)
    return link(group.name, "groups", group.name), state, Markup(topics + more), group.members, group.lag, letters


def _topic_row(topic: TopicInfo) -> tuple[object, ...]:
    return (
        link(topic.name, "topics", topic.name),
        topic.partitions,
        sum(high + 1 for high in topic.high_offsets),
        topic.segment - topic.first_segment + 1,
        _size(topic.size_bytes),
        topic.created_at,
    )


def _payload(letter: DeadLetter) -> Markup:
    payload = letter.payload or b""
    text = payload.decode("utf-8", "backslashreplace")
    cut = Markup("") if len(text) <= _MAX_PAYLOAD_CHARS else note("Cut: coordinator dlq export has all of it.")
    return Markup(html.block(text[:_MAX_PAYLOAD_CHARS]) + cut)


def _ask_for_payload(request: Request, letter: DeadLetter) -> Markup:
    return Markup(
        f"<p>{link(f'Show its {letter.payload_bytes:,} bytes', 'dead-letters', *request.rest, query='?payload=1')}</p>"
    )


def _first_line(text: str | None) -> str | None:
    return None if not text else text.split("\n", 1)[0][:200]


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:  # noqa: PLR2004
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def _age(seconds: float) -> str | None:
    """Return an age as people say it, in its two largest units."""
    if seconds <= 0:
        return None
    if seconds < 60:  # noqa: PLR2004 - the clock's
        return f"{seconds:.1f} s"
    minutes, left_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left_s} s"
