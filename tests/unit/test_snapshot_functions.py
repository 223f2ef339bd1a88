"""The script that freezes sql/, on a tree of its own."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "snapshot_functions.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("snapshot_functions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("SQL", "SNAPSHOTS", "VERSIONS"):
        monkeypatch.setattr(module, name, tmp_path / getattr(module, name).relative_to(module.ROOT))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    write(module.SQL / "schema/01.sql", "table 1")
    write(module.SQL / "functions/a/f.sql", "f 1")
    write(module.SQL / "functions/a/g.sql", "g 1")
    write(module.SQL / "views/v.sql", "v 1")
    return module


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_write__first_revision__copies_everything(script):
    assert script.write(["0001"]) == 4
    assert tree(script.SNAPSHOTS / "0001") == tree(script.SQL)
    assert script.differences(["0001"]) == []


def test_write__first_revision_again__drops_copies_of_deleted_files(script):
    script.write(["0001"])
    (script.SQL / "functions/a/g.sql").unlink()
    script.write(["0001"])
    assert tree(script.SNAPSHOTS / "0001") == tree(script.SQL)


def test_write__later_revision__has_what_changed_and_a_list_of_what_is_gone(script):
    script.write(["0001"])
    write(script.SQL / "schema/01.sql", "table 2")
    write(script.SQL / "functions/a/f.sql", "f 2")
    write(script.SQL / "functions/b/h.sql", "h 2")
    (script.SQL / "functions/a/g.sql").unlink()
    script.write(["0001", "0002"])
    assert tree(script.SNAPSHOTS / "0002") == {
        "functions/a/f.sql": "f 2",
        "functions/b/h.sql": "h 2",
        "deleted.txt": "functions/a/g.sql\n",
    }
    assert script.differences(["0001", "0002"]) == []


def test_write__function_deleted_and_made_again__is_copied(script):
    script.write(["0001"])
    (script.SQL / "functions/a/g.sql").unlink()
    script.write(["0001", "0002"])
    write(script.SQL / "functions/a/g.sql", "g 1")
    assert script.differences(["0001", "0002"]) == ["sql/functions/a/g.sql: not in any snapshot"]
    script.write(["0001", "0002", "0003"])
    assert tree(script.SNAPSHOTS / "0003") == {"functions/a/g.sql": "g 1"}


def test_differences__each_kind__is_named(script):
    script.write(["0001"])
    write(script.SQL / "functions/a/f.sql", "f 2")
    write(script.SQL / "functions/a/new.sql", "new")
    (script.SQL / "views/v.sql").unlink()
    write(script.SQL / "schema/01.sql", "table 2")
    assert script.differences(["0001"]) == [
        "sql/functions/a/new.sql: not in any snapshot",
        "sql/views/v.sql: missing, but in a snapshot",
        "sql/functions/a/f.sql: differs from its newest snapshot",
        "sql/schema/01.sql: differs from its newest snapshot",
    ]


def test_main__older_revision_named__is_refused(script, monkeypatch):
    for name in ("0001_log.py", "0002_next.py"):
        write(script.VERSIONS / name, "")
    monkeypatch.setattr("sys.argv", ["snapshot_functions.py", "--revision", "0001"])
    assert script.main() == 2
