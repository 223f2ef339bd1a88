"""Draw what `coordinator bench scaling` printed, as SVG: messages a second by consumers, a line for each window.

    coordinator bench scaling --json > scaling.json
    python scripts/bench/scaling_plot.py scaling.json [MESSAGES] > docs/scaling.svg

It takes the table as well as the JSON. MESSAGES picks one of the sizes; else the largest.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 340, 70, 50, 30
COLOURS = {"5": "#b3541e", "50": "#2b6cb0", "auto": "#2f855a"}


def read(text: str) -> list[tuple[int, int, str, float]]:
    """Messages, consumers, window and rate of each run."""
    if text.lstrip().startswith("{"):
        return [
            (point["messages"], point["consumers"], str(point["prefetch"] or "auto"), point["rate"])
            for point in json.loads(text)["points"]
        ]
    rows = [line.split() for line in text.splitlines()]
    return [
        (int(row[0]), int(row[1]), row[2], float(row[3].replace(",", "")))
        for row in rows
        if len(row) == 9 and row[0].isdigit()
    ]


def draw(points: list[tuple[int, int, str, float]], messages: int) -> str:
    shown = [point for point in points if point[0] == messages]
    counts = sorted({consumers for _, consumers, _, _ in shown})
    step = 10 ** (len(str(int(max(rate for *_, rate in shown)))) - 1)
    top = step * (1 + int(max(rate for *_, rate in shown)) // step)

    def x(consumers: int) -> float:
        return LEFT + 30 + counts.index(consumers) * (WIDTH - LEFT - 80) / max(1, len(counts) - 1)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * rate / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for rate in range(0, top + 1, step):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(rate):.1f}" y2="{y(rate):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:,}</text>')
    out += [
        f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{count}</text>' for count in counts
    ]
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">consumers; {messages:,} messages</text>')
    for place, window in enumerate(dict.fromkeys(window for _, _, window, _ in shown)):
        colour = COLOURS.get(window, "#555")
        line = sorted((consumers, rate) for _, consumers, found, rate in shown if found == window)
        path = " ".join(f"{x(consumers):.1f},{y(rate):.1f}" for consumers, rate in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{LEFT + 30 + place * 130}" y="18" fill="{colour}">prefetch {window}</text>')
    return "\n".join([*out, "</svg>\n"])


def main() -> int:
    points = read(Path(sys.argv[1]).read_text("utf-8"))
    messages = int(sys.argv[2]) if len(sys.argv) > 2 else max(point[0] for point in points)
    sys.stdout.write(draw(points, messages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
