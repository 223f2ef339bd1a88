"""The promise of transactional handlers, as a whole: under SIGKILL and a restart of the server each message takes effect once."""

import pytest
from support.sizes import FULL
from support.storm import Storm

ALL = [("threads", 1), ("threads", 5), ("asyncio", 1), ("asyncio", 5)]


@pytest.mark.slow
# At full size it waits up to 900 s for rest; the usual limit would end it before it could tell what the tables say.
@pytest.mark.timeout(1800 if FULL else 600)
@pytest.mark.parametrize(("shell", "batch_size"), ALL if FULL else [ALL[0], ALL[3]])
def test_effects__processes_killed_and_server_restarted__are_exactly_once(tmp_path, shell, batch_size):
    """A SIGKILL each second, zombies, an immediate restart: sum and ledger are exact. Its mutants: tests/mutants."""
    storm = Storm(shell=shell, batch_size=batch_size)
    storm.run(tmp_path)
    print(f"{storm.rounds} rounds, {storm.kills} SIGKILLs, {storm.zombies} zombies")
    storm.check()
