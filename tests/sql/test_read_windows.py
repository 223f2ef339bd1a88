"""Reading windows: what is read, in which order, and with which plans."""

import re
import time

import pytest
from support.patches import replaced, sql_text
from support.reader import Reader
from support.sessions import Db
from support.sizes import FULL

SEGMENTS = 50
# In full 300,000 rows lie behind what is read, and as many ahead.
ROWS_A_SEGMENT = 12_000 if FULL else 6000
OTHERS = 30


def read(session, windows, topic_id=1):
    """Rows as (ord, offset) of windows (ord, partition, from, to)."""
    ords, partitions, froms, tos = (list(column) for column in zip(*windows, strict=True))
    return session.run(
        'select w.ord, w."offset" from coordinator.read_windows(%s, %s, %s, %s::bigint[], %s::bigint[]) w',
        topic_id,
        ords,
        partitions,
        froms,
        tos,
    )


def test_read_windows__several_of_one_partition_over_segments__each_in_offset_order(db):
    session = db.session()
    for number in range(40):
        session.publish(partition=number % 2)
        if number % 7 == 6:
            db.rotate()
    windows = [(1, 0, 0, 3), (2, 1, 4, 18), (1, 0, 5, 9), (1, 0, 12, 20), (3, 1, 19, 19)]
    rows = read(session, windows)
    by_ord = {place: [offset for ord_, offset in rows if ord_ == place] for place in (1, 2, 3)}
    assert by_ord == {1: [0, 1, 2, 5, 6, 7, 8, *range(12, 20)], 2: list(range(4, 18)), 3: []}


def test_read_windows__many_ranges_of_one_claim__stay_in_order(db):
    session = db.session()
    for number in range(300):
        session.publish()
        if number % 100 == 50:
            db.rotate()
    offsets = [offset for _, offset in read(session, [(1, 0, lo, lo + 2) for lo in range(0, 300, 4)])]
    assert offsets == [offset for offset in range(300) if offset % 4 < 2]


def explaining():
    """read_windows under the settings it pins, telling the plan of each statement instead of returning its rows."""
    return replaced(
        sql_text("read_windows"),
        ("    v_slice record;\n", "    v_slice record;\n    v_line text;\n"),
        (
            "        return query execute coordinator.window_select(",
            "        for v_line in execute 'explain (analyze, costs off, timing off) ' || coordinator.window_select(",
        ),
        ("v_slice.froms, v_slice.tos;", "v_slice.froms, v_slice.tos loop raise notice '%', v_line; end loop;"),
    )


@pytest.fixture(scope="module")
def big(databases):
    """A database with topic `big` of 50 segments and 300,000 rows (600,000 in full) in two partitions, beside 30 other topics."""
    dsn = databases.create()
    with Db(dsn) as db:
        session = db.session()
        for number in range(OTHERS):
            db.create_topic(f"other{number}", 1)
        db.topic_id = db.create_topic("big", 2)
        session.run("set synchronous_commit = off")
        for segment in range(1, SEGMENTS + 1):
            if segment > 1:
                db.rotate("big")
            session.run(
                f"insert into coordinator.topic_{db.topic_id}_s{segment} select %s, n %% 2, "
                f"nextval(('coordinator.topic_{db.topic_id}_p' || n %% 2)::regclass), now(), gen_random_uuid(), null, null, "
                "null, convert_to(n::text, 'UTF8') from generate_series(1, %s) n",
                segment,
                ROWS_A_SEGMENT,
            )
        yield db
    databases.drop(dsn)


@pytest.mark.parametrize("analyzed", [False, True], ids=["statistics missing", "statistics fresh"])
def test_read_windows__50_segments_beside_30_topics__reads_by_index_and_only_what_it_needs(big, analyzed):
    if analyzed:
        big.observer.run("analyze")
    per_segment = ROWS_A_SEGMENT // 2
    lo = 24 * per_segment + per_segment - 100
    session, lines = big.session(), []
    session.connection.add_notice_handler(lambda notice: lines.append(notice.message_primary))
    big.observer.run(explaining())
    try:
        for windows in ([(1, 0, lo, lo + 500)], [(1, 0, lo, lo + 50), (2, 1, 100, 600)], [(1, 1, lo, lo + 1)]):
            lines.clear()
            assert read(session, windows, big.topic_id) == []
            plan = "\n".join(lines)
            touched = sorted(int(number) for number in re.findall(rf"Scan.* on topic_{big.topic_id}_s(\d+)", plan))
            assert touched == sorted(
                {1 + at // per_segment for _, _, first, end in windows for at in range(first, end)}
            )
            assert plan.count("Index Scan using") == len(touched)
            for unwanted in ("Seq Scan", "Bitmap", "Sort", "Materialize", "Memoize", "Rows Removed"):
                assert unwanted not in plan
    finally:
        big.observer.run(sql_text("read_windows"))


def test_fetch__reads_as_read_windows_does(big):
    """The same text under the same settings, so what is said above of its plans holds for both."""
    pinned = "select p.proconfig, p.prosrc from pg_proc p where p.oid = %s::regproc"
    (plans, text), (fetch_plans, fetch_text) = (
        big.observer.run(pinned, f"coordinator.{name}")[0] for name in ("read_windows", "fetch")
    )
    assert sorted(fetch_plans) == sorted(plans)
    for body in (text, fetch_text):
        assert ".window_select(v_" in body


def test_exchange_and_fetch__nothing_new__cost_less_than_two_milliseconds(big):
    reader = Reader(big, 0, topic="big", want=500)
    end = SEGMENTS * ROWS_A_SEGMENT // 2
    reader.session.run("update coordinator.progress set committed = %s, hwm = %s", end, end)
    reader.recover()
    assert reader.exchange() == "idle"
    trips_s, polls_s = [], []
    for _ in range(60):
        began_s = time.perf_counter()
        reader.session.run("select 1")
        trips_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        # Four round trips: begin, exchange, commit, fetch.
        reader.exchange()
        reader.read_rows(reader.position, reader.position + 500)
        polls_s.append(time.perf_counter() - began_s)
    # The best of sixty: what the server takes, and not what it waits for a processor on a busy machine.
    cost_ms = (min(polls_s) - 4 * min(trips_s)) * 1000
    print(f"an empty poll: {cost_ms:.2f} ms of the server")
    assert cost_ms < 2
