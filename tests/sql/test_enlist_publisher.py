"""Wherever a message is published from, its publisher's lock lasts exactly as long as its outcome is open."""

import pytest
from support.reader import Reader
from support.schedules import offsets_in_table

PUBLISH = "coordinator.publish('t', '1', p_partition => 0, p_wake => false)"


@pytest.fixture
def session(db):
    return db.session()


def poll_while(reader, pending):
    while not pending.done:
        reader.poll()
    pending.result()


def check(db, reader):
    """Everything in the table was read, and nothing of it is taken for burnt."""
    reader.settle_down()
    assert sorted(reader.received) == offsets_in_table(db)
    assert set(reader.burnt).isdisjoint(reader.received)


def test_cursor_with_hold__rows_are_published_by_the_commit__are_read(db, session):
    reader = Reader(db)
    session.begin().run(f"declare c cursor with hold for select {PUBLISH} from generate_series(1, 3)")
    session.run("fetch 1 from c")
    reader.settle_down()
    session.commit()
    check(db, reader)
    # The commit runs the query again from its start, behind the row that was fetched.
    assert len(reader.received) >= 3


def test_cursor__opened_outside_and_fetched_in_a_savepoint__lock_goes_with_the_rows(db, session):
    reader = Reader(db)
    session.begin().run(f'declare c cursor for select ({PUBLISH})."offset" from generate_series(1, 5)')
    session.run("savepoint s")
    session.run("fetch 1 from c")
    session.run("rollback to savepoint s")
    assert session.locks() == 0
    session.run("savepoint s")
    kept = session.one("fetch 1 from c")
    session.run("release savepoint s")
    session.run("close c")
    assert session.locks() == 1
    reader.settle_down()
    session.commit()
    check(db, reader)
    assert reader.received == [kept]


@pytest.mark.parametrize("prepared", [False, True], ids=["committed", "prepared"])
def test_deferred_trigger__publishes_at_the_end_of_the_transaction__is_read(db, session, prepared):
    session.run(
        f"""
        create table orders (id int);
        create function announce() returns trigger language plpgsql as $$ begin perform {PUBLISH}; return null; end $$;
        create constraint trigger announce after insert on orders deferrable initially deferred
            for each row execute function announce();
        """
    )
    reader = Reader(db)
    session.begin().run("insert into orders values (1), (2)")
    if prepared:
        session.run("prepare transaction 'deferred_trigger'")
        reader.settle_down()
        assert reader.received == []
        session.run("commit prepared 'deferred_trigger'")
    else:
        session.commit()
    check(db, reader)
    assert len(reader.received) == 2


def test_procedure__commits_and_rolls_back_in_its_loop__is_read(db, session):
    session.run(
        f"""
        create procedure work() language plpgsql as $$
        begin
            for n in 1 .. 20 loop
                perform {PUBLISH};
                if n % 3 = 0 then rollback; else commit; end if;
                begin
                    perform {PUBLISH};
                    perform 1 / (n % 2);
                exception when division_by_zero then null;
                end;
                perform pg_sleep(0.002);
            end loop;
        end
        $$
        """
    )
    reader = Reader(db)
    poll_while(reader, session.start("call work()"))
    check(db, reader)
    assert reader.burnt


def test_procedure__commits_in_a_loop_over_publishes__is_read(db, session):
    # The commit runs the rest of the loop's query, and with it the publishes.
    session.run(
        f"""
        create procedure work() language plpgsql as $$
        declare v_row record;
        begin
            for v_row in select {PUBLISH} from generate_series(1, 4) loop
                commit;
                perform {PUBLISH};
                perform pg_sleep(0.002);
            end loop;
        end
        $$
        """
    )
    reader = Reader(db)
    poll_while(reader, session.start("call work()"))
    check(db, reader)
    assert len(reader.received) == 8


def test_function_with_settings_of_its_own__publishes__lock_and_memory_of_it_last(db, session):
    session.run(
        f"""
        create function work() returns void language plpgsql set work_mem = '1MB' set search_path = public as $$
        begin
            perform {PUBLISH};
            begin
                perform coordinator.publish('t', '1', p_partition => 1, p_wake => false);
                raise division_by_zero;
            exception when division_by_zero then null;
            end;
        end
        $$
        """
    )
    session.begin().run("select work()")
    held = "select current_setting('pgcoord.locks_' || 'coordinator.topic_1'::regclass::oid, true)"
    assert (session.locks(), session.one(held)) == (1, "0")
    # Forgetting what is held is harmless: the lock is taken again.
    session.run("reset all")
    session.publish()
    assert session.locks() == 1
    session.commit()
    assert session.locks() == 0
