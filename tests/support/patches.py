"""The SQL functions with some of their text replaced, for tests that stop a session at a step or break a rule."""

from pathlib import Path

from coordinator.db.schema import sql_dir

# Called at a step, it stops a session that has asked for it (set test.gates) until the test lets go of the gate.
GATE = """
create or replace function coordinator.gate(p_step text) returns void language plpgsql volatile as $$
begin
    if p_step = any (string_to_array(coalesce(current_setting('test.gates', true), ''), ',')) then
        perform pg_advisory_lock(4242, hashtext(p_step));
        perform pg_advisory_unlock(4242, hashtext(p_step));
    end if;
end
$$
"""


def sql_text(name):
    """The text of a function, as sql/ has it."""
    (path,) = Path(sql_dir()).glob(f"functions/*/{name}.sql")
    return path.read_text(encoding="utf-8")


def replaced(text, *pairs):
    """A text with each old part, which must be there just once, replaced by the new one."""
    for old, new in pairs:
        if text.count(old) != 1:
            raise LookupError(f"wanted once, found {text.count(old)} times: {old}")
        text = text.replace(old, new)
    return text


def gap_pass_steps():
    """gap_pass in parts: head, V, L, S, tail."""
    text = sql_text("gap_pass")
    head, rest = text.split("    v_highs := array(")
    v, rest = rest.split("    return query\n    with entry as (")
    locks, rest = rest.split("    for v_topic in\n")
    rows, tail = rest.rsplit("end\n$$", 1)
    return (
        head,
        "    v_highs := array(" + v,
        "    return query\n    with entry as (" + locks,
        "    for v_topic in\n" + rows,
        "end\n$$" + tail,
    )


def gated_gap_pass(order="VLS"):
    """gap_pass with its steps in the given order and the gates pass:1 and pass:2 between them."""
    head, v, locks, rows, tail = gap_pass_steps()
    steps = {"V": v, "L": locks, "S": rows}
    first, second, third = (steps[letter] for letter in order)
    gate = "    perform coordinator.gate('pass:{}');\n"
    return head + first + gate.format(1) + second + gate.format(2) + third + tail


ENLIST = "    perform coordinator.enlist_publisher(v_topic, partitions);\n"
READ_AGAIN = "        exit when v_segment = pg_sequence_last_value(v_topic.segment_sequence);\n"
READ_SEGMENT = "        v_segment := pg_sequence_last_value(v_topic.segment_sequence);\n"
PUBLISH_STEPS = ("publish:lock", "publish:segment", "publish:nextval", "publish:again", "publish:insert")


def gated_publish_many(*pairs):
    """publish_many with a gate before each of its steps; the pairs are replaced after that."""
    gated = replaced(
        sql_text("publish_many"),
        (ENLIST, "    perform coordinator.gate('publish:lock');\n" + ENLIST),
        (
            READ_SEGMENT,
            "        perform coordinator.gate('publish:segment');\n"
            + READ_SEGMENT
            + "        perform coordinator.gate('publish:nextval');\n",
        ),
        (READ_AGAIN, "        perform coordinator.gate('publish:again');\n" + READ_AGAIN),
        (
            "    end loop;\n\n    if v_count = 1 then\n        message_ids",
            "    end loop;\n    perform coordinator.gate('publish:insert');\n\n    if v_count = 1 then\n        message_ids",
        ),
    )
    return replaced(gated, *pairs)


def enlist_without_subtransaction():
    """enlist_publisher without the handler that makes its inner block a subtransaction."""
    head, rest = sql_text("enlist_publisher").split("    exception\n")
    return head + "    end;\n" + rest.split("    end;\n", 1)[1]


SETVAL = "        perform setval(v_topic.segment_sequence, p_segment);\n"
FLOORS = (
    "        v_floors := array(select coalesce(pg_sequence_last_value(u.s), -1) "
    "from unnest(v_topic.offset_sequences) as u(s));\n"
)
CEILINGS = (
    "    v_ceilings := array(select coalesce(pg_sequence_last_value(u.s), -1) "
    "from unnest(v_topic.offset_sequences) as u(s));\n"
)
GATE_SETVAL = "        perform coordinator.gate('rotation:setval');\n"
GATE_CEILINGS = "        perform coordinator.gate('rotation:ceilings');\n"
ROTATION_STEPS = ("rotation:setval", "rotation:ceilings")


def gated_open_segment(*pairs):
    """open_segment with a gate on both sides of its setval; the pairs are replaced before that."""
    return replaced(
        replaced(sql_text("open_segment"), *pairs),
        (
            SETVAL,
            GATE_SETVAL + SETVAL + GATE_CEILINGS,
        ),
    )
