"""What every file of sql/functions and sql/views keeps to."""

import re
from pathlib import Path

import pytest

SQL = Path(__file__).parents[2] / "sql"
FUNCTIONS = sorted((SQL / "functions").rglob("*.sql"))
ALL = sorted(SQL.rglob("*.sql"))

of_each_function = pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.stem)
of_each_file = pytest.mark.parametrize("path", ALL, ids=lambda path: path.relative_to(SQL).as_posix())


@of_each_function
def test_function_file__holds_one_function__named_after_it(path):
    names = re.findall(r"^create or replace (?:function|procedure) (\S+?)\(", path.read_text("utf-8"), re.MULTILINE)
    assert names == [f"coordinator.{path.stem}"]


@of_each_function
def test_function_file__plpgsql_or_security_definer__pins_search_path(path):
    head = path.read_text("utf-8").split("as $$")[0]
    if "language plpgsql" in head or "security definer" in head:
        assert "set search_path = pg_catalog, pg_temp" in head


@of_each_function
def test_function_file__body__begins_with_a_comment(path):
    assert re.search(r"as \$\$\s*--", path.read_text("utf-8"))


@of_each_file
def test_sql_file__settings__are_not_named_like_the_schema(path):
    assert not re.search(r"(current_setting|set_config)\('coordinator\.", path.read_text("utf-8"))


@of_each_file
def test_sql_file__schema_by_its_bare_name__does_not_occur(path):
    """The placeholder rule would leave it, and another installation in the database would be hit."""
    code = re.sub(r"--.*", "", path.read_text("utf-8"))
    assert not re.search(r"\bschema\s+coordinator\b|'coordinator'::regnamespace", code)


# What may be put into a statement that is run by EXECUTE: names that the catalogue gave (regclass, regrole, a topic's own table
# and numbers of its segments), never a parameter of a client.
_FROM_THE_CATALOGUE = re.compile(
    r"^(v_(topic|table|messages|relation|sequence|place|slice|segment|statement|partition|sequences)\b[\w.]*|topic_id"
    r"|coordinator\.segment_table\(v_topic, (v_segment|s\.segment)\))$"
)


@of_each_function
def test_function_file__dynamic_sql__is_made_of_names_of_the_catalogue(path):
    code = re.sub(r"--.*", "", path.read_text("utf-8"))
    for statement in re.findall(r"\bexecute\s+(?!on\b)(.*?);", code, re.DOTALL):
        if re.fullmatch(r"v_statement", statement.strip()):
            # apply_grants: the lines of grant_statements, which are made of pg_roles and pg_proc.
            assert path.stem == "apply_grants"
            continue
        if path.stem == "drop_remains" and re.fullmatch(r"'drop (table|sequence) ' \|\| remains", statement.strip()):
            # Names of pg_class, by %I.
            continue
        if made := re.match(r"coordinator\.window_select\((\w+(?:\.\w+)?), (\w+\.\w+)\)\s+using", statement):
            assert all(map(_FROM_THE_CATALOGUE.match, made.groups())), (path.stem, statement)
            continue
        text = re.split(r"\)\s+(?:using|into)\s", statement)[0] + ")" if statement.startswith("format") else statement
        made = re.match(
            r"\s*format\(\s*(?:\$sql\$.*?\$sql\$|(?:'(?:[^']|'')*'\s*)+)(.*)\)\s*(?:\)|into|using|$)", text, re.DOTALL
        )
        assert made, statement
        depth, argument, arguments = 0, "", []
        for letter in made.group(1).lstrip(", \n") + ",":
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                arguments.append(argument.strip())
                argument = ""
            else:
                argument += letter
        for one in arguments:
            assert not one or _FROM_THE_CATALOGUE.match(one), (path.stem, one)


def test_functions__that_the_package_calls__are_in_the_rights_of_some_kind_of_role():
    """One that is missing would work for the owner, in every test, and for no service that has a role of its own."""
    called = set()
    for path in (SQL.parent / "coordinator").rglob("*.py"):
        called |= set(re.findall(r"coordinator\.(\w+)\(", path.read_text("utf-8")))
    for path in (SQL / "views").glob("*.sql"):
        called |= set(re.findall(r"coordinator\.(\w+)\(", path.read_text("utf-8")))
    granted = set(re.findall(r"'(\w+)'", (SQL / "functions" / "rights" / "rights_of.sql").read_text("utf-8")))
    owners = {"apply_grants", "grant_statements", "repair_sequences"}
    assert called & {path.stem for path in FUNCTIONS} - granted - owners == set()
