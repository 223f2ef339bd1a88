"""Where a group is to stand, read from a file: what `groups describe --json` prints, or lines topic,partition,offset."""

import csv
import io
import json
from typing import Any

import click


def read_positions(text: str) -> dict[tuple[str, int], int]:
    """Return the offset of each topic and partition.

    Raises:
        click.BadParameter: It is neither of the two forms, or names a partition twice; says where.
    """
    if text.lstrip().startswith("{"):
        found = _from_json(text)
    else:
        rows = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text)), 1) if row]
        if rows and [name.strip().lower() for name in rows[0][1]] == ["topic", "partition", "offset"]:
            del rows[0]
        found = [_from_line(row, number) for number, row in rows if not row[0].startswith("#")]
    positions: dict[tuple[str, int], int] = {}
    for topic, partition, offset in found:
        if (topic, partition) in positions:
            raise click.BadParameter(f"partition {partition} of {topic!r} is there twice")
        positions[topic, partition] = offset
    if not positions:
        raise click.BadParameter("there is no partition in it")
    return positions


def _from_json(text: str) -> list[tuple[str, int, int]]:
    try:
        partitions: list[dict[str, Any]] = json.loads(text)["partitions"]
        return [
            (str(place["topic"]), int(place["partition"]), int(place["current_offset"]))
            for place in partitions
            # Nothing was ever committed there: there is no place to go back to.
            if place["current_offset"] is not None
        ]
    except KeyError as error:
        raise click.BadParameter(f"not what groups describe --json prints: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"not what groups describe --json prints: {error}") from error


def _from_line(row: list[str], number: int) -> tuple[str, int, int]:
    try:
        topic, partition, offset = row
        return topic.strip(), int(partition), int(offset)
    except ValueError as error:
        raise click.BadParameter(f"line {number}: found {','.join(row)!r}, wanted topic,partition,offset") from error
