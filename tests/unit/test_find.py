"""Which database, schema and names are meant, and what of them is refused."""

import pytest
from psycopg import pq

from coordinator import AsyncCoordinator, Coordinator
from coordinator.db.dsn import conninfo
from coordinator.errors import ConfigError
from coordinator.settings import Found, find_dsn, find_static_id

FACES = pytest.mark.parametrize("face", [Coordinator, AsyncCoordinator])
OTHER = {"DATABASE_URL": "postgresql://other", "PGHOST": "other"}


@FACES
@pytest.mark.parametrize("dsn", ["", "  ", b"postgresql://h/d", 7])
def test_dsn__given_and_empty_or_no_text__is_refused_although_the_environment_names_another(
    face: type, dsn: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unset variable becomes an empty argument: its service must not go to whatever database is next in line."""
    monkeypatch.setenv("COORDINATOR_DSN", "postgresql://other")
    with pytest.raises(
        ConfigError, match=r"the DSN that was given .*(is empty|is of type).*postgresql://.*leave it out"
    ):
        face(dsn)


@pytest.mark.parametrize("variable", ["COORDINATOR_DSN", "DATABASE_URL"])
def test_dsn__variable_that_is_set_and_empty__is_refused_by_name(variable: str) -> None:
    with pytest.raises(ConfigError, match=f"the DSN of {variable} is empty.*unset it"):
        find_dsn(None, {**OTHER, variable: ""})


def test_dsn__empty_in_a_file__is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the DSN of coordinator.toml is empty"):
        find_dsn(None, {"PGHOST": "other"}, Found("", "coordinator.toml"))


def test_dsn__none__goes_by_the_order() -> None:
    assert find_dsn(None, OTHER) == ("postgresql://other", "DATABASE_URL")
    found = find_dsn(None, {"PGHOST": "other", "PGPORT": ""})
    assert found.source == "PGHOST"
    assert conninfo(found.value) == "postgresql://"


def test_dsn__of_no_text__is_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        find_dsn(["hunter2"], {})  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


@FACES
@pytest.mark.parametrize("name", ["schema", "client_id", "static_id"])
@pytest.mark.parametrize("value", ["", 7, b"x", "x" * 300, "a\0b"])
def test_name__that_is_none__is_refused(face: type, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        face("postgresql://h/d", **{name: value})


def test_static_id__empty_variable__is_none() -> None:
    assert find_static_id(None, {"COORDINATOR_STATIC_ID": ""}) is None


# Before 17 libpq takes a space as it is.
@pytest.mark.parametrize(
    "dsn", ["postgresql://app:50%@h/d", *(["postgresql://app:a b@h/d"] if pq.version() >= 170000 else [])]
)
def test_dsn__password_with_characters_that_no_url_has__says_how_to_write_them(dsn: str) -> None:
    with pytest.raises(ConfigError, match="neither a URL") as refused:
        conninfo(dsn)
    assert refused.value.hint is not None
    assert "%40 for @" in refused.value.hint
    assert "app:" not in str(refused.value)
