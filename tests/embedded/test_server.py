"""The private server: start, use, reuse, kill, restart, and what is left when its process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psycopg
import pytest

from coordinator.embedded import EmbeddedServer, find_binaries
from coordinator.embedded.places import Layout, data_dir_of, default_data_dir
from coordinator.errors import ConfigError, UnavailableError

WAIT_S = 20.0


def one(dsn: str, query: str):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchone()[0]


def wait_until(condition, what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """True for a zombie, too: in a container nobody may reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_start__temporary__answers_and_leaves_nothing_behind():
    with EmbeddedServer.start() as server:
        assert one(server.dsn, "select 41 + 1") == 42
        pid, data_dir = server.pid, server.data_dir
    assert is_gone(pid)
    assert not data_dir.exists()


def test_start__no_settings__is_durable_and_has_the_documented_limits():
    with EmbeddedServer.start() as server, psycopg.connect(server.dsn) as connection:
        names = ["fsync", "synchronous_commit", "full_page_writes", "max_connections", "max_prepared_transactions"]
        names += ["shared_buffers", "server_encoding", "listen_addresses"]
        found = [connection.execute("select current_setting(%s)", [name]).fetchone()[0] for name in names]
    assert found == ["on", "on", "on", "200", "20", "128MB", "UTF8", ""]


def test_start__settings__win_over_the_defaults():
    with EmbeddedServer.start(settings={"max_connections": "17", "application_name": "it's"}) as server:
        assert one(server.dsn, "select current_setting('max_connections')") == "17"


def test_start__data_dir__keeps_the_data_for_the_next_start(folder):
    with EmbeddedServer.start(folder) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("create table kept as select 7 as n")
    with EmbeddedServer.start(folder) as server:
        assert one(server.dsn, "select n from kept") == 7


def test_start__first_of_a_folder__says_what_takes_so_long_and_the_next_one_nothing(folder, caplog, capfd):
    caplog.set_level("INFO", "coordinator")
    for told in (["initdb makes a data directory"], []):
        caplog.clear()
        with EmbeddedServer.start(folder):
            pass
        steps = [record.step for record in caplog.records if record.msg == "embedded.step_begun"]
        # Whether binaries have to be copied depends on who runs this.
        assert [step for step in steps if "binaries" not in step] == told
    assert capfd.readouterr().out == ""


def test_command__first_start__says_on_standard_error_what_takes_so_long(folder):
    folder.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "coordinator.cli",
        "topics",
        "list",
        "--json",
        "--dsn",
        f"embedded:{folder}/server",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "info: embedded.step_begun step=initdb makes a data directory" in done.stderr
    assert json.loads(done.stdout) == {"topics": []}
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stderr == ""


def test_start__folder_in_use__names_the_folder_and_its_holder(folder):
    with EmbeddedServer.start(folder), pytest.raises(ConfigError, match=f"{folder} is in use.*{os.getpid()}"):
        EmbeddedServer.start(folder)


def test_start__very_long_path__still_has_a_socket(folder):
    folder.chmod(0o755)
    deep = folder / ("d" * 60) / ("e" * 60)
    with EmbeddedServer.start(deep) as server:
        assert one(server.dsn, "select 1") == 1
        sockets = Path(one(server.dsn, "show unix_socket_directories"))
    assert not sockets.exists()


def test_start__wrong_value__shows_the_end_of_the_log():
    with pytest.raises(UnavailableError, match="max_connections"):
        EmbeddedServer.start(settings={"max_connections": "many"})


def test_start__setting_with_a_newline__is_refused():
    with pytest.raises(ConfigError):
        EmbeddedServer.start(settings={"max_connections": "1'\nfsync = 'off"})


def test_start__initdb_fails__shows_what_it_said(folder):
    broken = folder / "bin"
    broken.mkdir()
    (broken / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 17.1'\n")
    (broken / "initdb").write_text("#!/bin/sh\n[ $1 = --version ] && exit\necho No space left on device\nexit 1\n")
    for name in ("postgres", "initdb"):
        (broken / name).chmod(0o755)
    folder.chmod(0o755)
    with pytest.raises(UnavailableError, match="No space left on device"):
        EmbeddedServer.start(folder / "server", bin_dir=broken)
    assert not list((folder / "server").glob("pgdata*"))


def test_start__data_of_another_major__names_both(folder):
    with EmbeddedServer.start(folder):
        pass
    version = folder / "pgdata" / "PG_VERSION"
    made_by = int(version.read_text())
    version.write_text("13\n")
    with pytest.raises(ConfigError, match=f"made by PostgreSQL 13, found binaries of {made_by}"):
        EmbeddedServer.start(folder, bin_dir=find_binaries(made_by))


def test_start__foreign_folder__is_not_touched(folder):
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds other things"):
        EmbeddedServer.start(folder)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


def test_start__folder_writable_for_others__is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by other users"):
        EmbeddedServer.start(folder)


def test_start__pid_of_another_program_in_postmaster_pid__starts(folder):
    """After a restart of a container the number in a left-over file soon belongs to somebody else."""
    with EmbeddedServer.start(folder) as server:
        text = (server.pgdata / "postmaster.pid").read_text()
        server.kill()
    lines = text.splitlines(keepends=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        # Owned by the server's account in the worst case; the number alone must not decide.
        (folder / "pgdata" / "postmaster.pid").write_text(f"{other.pid}\n{''.join(lines[1:])}")
        owner = (folder / "pgdata").stat()
        os.chown(folder / "pgdata" / "postmaster.pid", owner.st_uid, owner.st_gid)
        with EmbeddedServer.start(folder) as server:
            assert one(server.dsn, "select 1") == 1
        other.kill()


def test_kill__committed_data__is_there_after_restart():
    with EmbeddedServer.start() as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("create table kept as select 7 as n")
        pids = [server.pid, *server.backend_pids]
        server.kill()
        assert all(is_gone(pid) for pid in pids)
        assert not server.running
        server.restart()
        assert one(server.dsn, "select n from kept") == 7


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart__open_connection__is_cut_and_the_dsn_stays(mode):
    with EmbeddedServer.start() as server:
        dsn = server.dsn
        with psycopg.connect(dsn) as connection:
            server.restart(mode)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        assert server.dsn == dsn
        assert one(dsn, "select 1") == 1


def test_restart__stopped_for_good__says_so():
    server = EmbeddedServer.start()
    server.stop("immediate")
    with pytest.raises(UnavailableError, match="stopped for good"):
        server.restart()


def test_tcp__password__is_asked_for():
    with EmbeddedServer.start(tcp=True) as server:
        host, port = server.tcp_address
        assert host == "127.0.0.1"
        assert one(server.tcp_dsn, "select 1") == 1
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"postgresql://postgres:wrong@{host}:{port}/postgres")
        server.restart()
        assert one(server.tcp_dsn, "select inet_server_port()") == port


def test_tcp__not_asked_for__says_how():
    with EmbeddedServer.start() as server, pytest.raises(ConfigError, match="tcp=True"):
        _ = server.tcp_dsn


def test_process_killed__server_and_temporary_folder__go():
    script = """
        from coordinator.embedded import EmbeddedServer
        import sys
        server = EmbeddedServer.start()
        print(server.pid, server.data_dir, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        pid, data_dir = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(int(pid)), "the server stops")
    wait_until(lambda: not Path(data_dir).exists(), "the folder is removed")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_ordinary_user__server_of_its_own__answers():
    """As root the rest of this file tests root; this one is the ordinary user."""
    # Dropped after the imports and not by Popen(user=...): root's Python may lie where nobody else can run it.
    script = """
        import os, sys
        import psycopg
        from coordinator.embedded import EmbeddedServer
        from coordinator.embedded.account import Account
        from coordinator.embedded.binaries import find_binaries, readable_binaries
        from coordinator.embedded.postmaster import Postmaster
        bin_dir = readable_binaries(find_binaries(), Account(65534, 65534, other=True))
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        os.environ["HOME"] = "/nonexistent"
        # The guard is a program, which this user perhaps may not run; what it does has a test of its own.
        import coordinator.embedded.server as server_module
        class NoGuard:
            def wait(self, timeout): pass
        server_module.spawn_guard = lambda launch, remove_root: NoGuard()
        with EmbeddedServer.start(bin_dir=bin_dir) as server:
            with psycopg.connect(server.dsn) as connection:
                print(connection.execute("select 6 * 7").fetchone()[0], os.stat(f"/proc/{server.pid}").st_uid)
        import shutil
        shutil.rmtree(server.data_dir)
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True, timeout=60
    )
    assert told.stdout.split() == ["42", "65534"], told.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_root__other_users__cannot_reach_the_socket():
    with EmbeddedServer.start() as server:
        sockets = Layout(server.data_dir).sockets
        assert sockets.stat().st_mode & 0o077 == 0
        assert sockets.stat().st_uid != 0
        assert server.pgdata.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_root__folder_below_a_closed_one__is_refused_and_stays_closed(folder):
    folder.chmod(0o700)
    with pytest.raises(ConfigError, match="the server cannot enter"):
        EmbeddedServer.start(folder / "below")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_data_dir_of__embedded_dsn__names_the_folder():
    assert data_dir_of("postgresql://host/name") is None
    assert data_dir_of("embedded:") == default_data_dir()
    assert data_dir_of("embedded:/srv/x") == Path("/srv/x")
    assert data_dir_of("embedded:///srv/x") == Path("/srv/x")
