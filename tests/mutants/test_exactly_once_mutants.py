"""The storm over transactional handlers must be able to fail: each rule of the ack that is broken alone shows in the ledger."""

import re

import pytest
from support.storm import MUTANTS, caught


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS, ids=lambda name: name.replace(" ", "_"))
def test_mutant__of_the_transactional_ack__has_two_effects(tmp_path, name):
    # Mostly two effects. Of a frozen run that was first after all, the owner's run is refused: then only its ack tells.
    assert re.search("more than one effect|acks of an epoch that was over", caught(name, tmp_path) or "")
