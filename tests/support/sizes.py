"""Whether promises are played at the size they are made for, or at a part that a suite has time for."""

import os

FULL = bool(os.environ.get("COORDINATOR_TEST_FULL"))
