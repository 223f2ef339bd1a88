"""The storm over transactional handlers must be able to fail: each rule of the ack that is broken alone shows in the ledger."""

import pytest
from support.storm import MUTANTS, caught


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS, ids=lambda name: name.replace(" ", "_"))
def test_mutant__of_the_transactional_ack__has_two_effects(tmp_path, name):
    assert "more than one effect" in (caught(name, tmp_path) or "")
