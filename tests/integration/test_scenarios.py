"""Late answers and shutdowns, on both shells; what breaks them is in tests/mutants."""

import pytest
from support.scenarios import first_run_speaks_late, stop_after_work, stop_during_work


@pytest.mark.parametrize("word", ["nack", "reject", "extend", "ack"])
def test_late_answer__of_the_first_run__while_the_second_runs__has_one_outcome(make_shell, dsn, word):
    first_run_speaks_late(make_shell, dsn, word)


def test_stop__after_work__it_is_acked(make_shell, dsn):
    stop_after_work(make_shell, dsn)


def test_stop__in_the_middle_of_work__it_is_given_back_uncharged(make_shell, dsn):
    stop_during_work(make_shell, dsn)
