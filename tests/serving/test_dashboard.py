"""The pages for people: what they show, that they escape it, and that they change nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from support.http import get
from support.shell import GROUP, TOPIC, publish, query, wait_until

from coordinator import Outgoing
from coordinator.dashboard import html

EVIL = "<script>alert('x')</script>\u202e"
SECRET = "payload-that-nobody-asked-for"


class Parsed(HTMLParser):
    """Tags, links and text of a page; fails on tags that are not closed."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src") and tag == "a"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def fail_some(app):
    """Two messages of one key: the first is parked, the second waits behind it; a third becomes a dead letter."""
    app.publish_many(TOPIC, [Outgoing(SECRET, EVIL), Outgoing("next", EVIL), Outgoing(SECRET, "dead")])
    with app.consumer(TOPIC, group=GROUP) as consumer:
        for _ in range(2):
            (message,) = consumer.poll(1, 30)
            if message.key == EVIL:
                message.nack(delay_s=3600)
            else:
                message.reject(EVIL)
        consumer.commit()


def pages(port: int) -> dict[str, Parsed]:
    """Every page that can be reached by links, from the first."""
    found: dict[str, Parsed] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        answer = get(port, path)
        assert answer.status == 200, path
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        found[path] = Parsed(answer.text)
        waiting += [link for link in set(found[path].links) - found.keys() if link not in waiting]
    return found


def test_pages__all_that_links_reach__are_whole_and_escape_what_they_show(app, serving):
    fail_some(app)
    found = pages(serving())
    assert {"/", f"/topics/{TOPIC}", f"/groups/{GROUP}", f"/dead-letters/{GROUP}"} <= found.keys()
    for path, page in found.items():
        assert "script" not in page.tags, path
        assert "\u202e" not in page.text, path
        assert (SECRET in page.text) is ("payload=1" in path), path
    group = found[f"/groups/{GROUP}"]
    assert "<script>alert('x')</script>\\u202e" in group.text
    assert "Nobody reads for this group now." in group.text
    (letter,) = [path for path in found if "payload=1" in path]
    assert letter.startswith(f"/dead-letters/{GROUP}/{TOPIC}/")


def test_pages__with_a_member__show_who_owns_what(app, serving):
    publish(app, 3)
    port = serving()
    with app.consumer(TOPIC, group=GROUP) as consumer:
        wait_until(lambda: consumer.poll(1, 0.1), 30)
        wait_until(lambda: "stable" in Parsed(get(port, "/").text).text, 30, "stable")
        text = Parsed(get(port, f"/groups/{GROUP}").text).text
        assert "test" in text
        assert "alive" in text


def test_pages__asked_for_again_and_again__change_nothing(app, dsn, serving):
    fail_some(app)
    text = "select count(*), (select count(*) from coordinator.retries), (select count(*) from coordinator.dead_letters), max(p.seq) from coordinator.progress p"
    before = query(dsn, text)
    port = serving()
    pages(port)
    pages(port)
    assert query(dsn, text) == before


def test_pages__nothing_there_yet__say_so(dsn, serving):
    text = Parsed(get(serving(), "/").text).text
    assert "There is no topic yet" in text
    assert "No group has read anything yet" in text


def test_pages__unknown_names__are_not_found(app, serving):
    port = serving()
    for path in (
        "/topics/nothing",
        "/groups/nobody",
        f"/dead-letters/{GROUP}/{TOPIC}/0/7",
        f"/dead-letters/{GROUP}/{TOPIC}/x/7",
        "/groups",
        "/topics/%00",
        "/groups/%00",
        f"/dead-letters/{GROUP}/{TOPIC}/0/99999999999999999999999",
        f"/dead-letters/{GROUP}/{TOPIC}/99999999999/0",
    ):
        assert get(port, path).status == 404, path


def test_style__is_ours_and_loads_nothing(app, serving):
    answer = get(serving(), "/static/style.css")
    assert answer.headers["Content-Type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in answer.text
    assert not re.search(r"url\(|@import|http", answer.text)


def test_render__numbers_and_texts__are_readable():
    assert html.render(2**53 + 1) == "9,007,199,254,740,993"
    assert html.render(None) == html.render("")
    assert html.render("a\x00b\n") == "a\\x00b\\n"
    assert html.link("a&b", "topics", "x/y?z") == '<a href="/topics/x%2Fy%3Fz">a&amp;b</a>'
