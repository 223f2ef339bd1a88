"""HTML that escapes by itself: a text becomes markup only where this module makes it so."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final
from urllib.parse import quote


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


_RIGHT: Final = ' class="number"'
_DASH: Final = Markup('<span class="none">-</span>')


def render(value: object) -> Markup:
    """Return a value as HTML: escaped, unless it is markup; numbers grouped by thousands."""
    if isinstance(value, Markup):
        return value
    if value is None or value == "":
        return _DASH
    if isinstance(value, bool):
        return Markup("yes" if value else "no")
    if isinstance(value, int):
        return Markup(f"{value:,}")
    if isinstance(value, datetime):
        return Markup(f'<time datetime="{value.isoformat()}">{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}</time>')
    return Markup(escape(_visible(str(value))))


def link(label: object, *parts: object, query: str = "") -> Markup:
    """Return a link to a page; every part of its path is quoted."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    return Markup(f'<a href="{escape(path + query)}">{render(label)}</a>')


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> Markup:
    """Return a table, numbers on the right; a sentence where there are no rows."""
    if not rows:
        return Markup(f'<p class="empty">{escape(empty)}</p>')
    head = "".join(_head(name, [row[place] for row in rows]) for place, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Markup(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def facts(*pairs: tuple[str, object]) -> Markup:
    """Return names with their values, as a list of definitions."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{render(value)}</dd></div>" for name, value in pairs)
    return Markup(f"<dl>{items}</dl>")


def section(title: str, *parts: Markup) -> Markup:
    return Markup(f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>")


def note(text: str, kind: str = "note") -> Markup:
    return Markup(f'<p class="{kind}">{escape(text)}</p>')


def block(text: str) -> Markup:
    """Return a text as it stands, line by line."""
    return Markup(f"<pre>{escape(_visible(text, keep=chr(10) + chr(9)))}</pre>")


def meter(value: float, limit: float) -> Markup:
    """Return a number with a bar beside it that shows its part of the largest."""
    share = 0 if limit <= 0 else round(100 * min(value / limit, 1))
    return Markup(f'<span class="bar"><i class="w{-(-share // 5) * 5}"></i></span> {render(int(value))}')


def page(title: str, crumbs: Sequence[Markup], refresh_s: int | None, *sections: Markup) -> bytes:
    """Return a whole page."""
    trail = " / ".join(crumbs)
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    text = (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - coordinator</title>{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="/static/style.css">'
        '<link rel="icon" href="data:,"></head>'
        f'<body><header><nav aria-label="You are here">{trail}</nav></header><main><h1>{escape(_visible(title))}</h1>'
        f"{''.join(sections)}"
        '<p class="note">Times are in UTC.</p></main></body></html>\n'
    )
    return text.encode("utf-8", "backslashreplace")


def _head(name: str, values: Sequence[object]) -> str:
    number = any(map(_is_number, values))
    return f'<th scope="col"{_RIGHT if number else ""}>{escape(name)}</th>'


def _is_number(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number or (isinstance(value, Markup) and value.startswith('<span class="bar">'))


def _cell(value: object) -> str:
    right = _is_number(value)
    shown = f"{value:,.1f}" if isinstance(value, float) else render(value)
    return f'<td class="number">{shown}</td>' if right else f"<td>{shown}</td>"


def _visible(text: str, keep: str = "") -> str:
    """Show what would not be seen, or would turn the direction of what follows."""
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
