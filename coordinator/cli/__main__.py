"""`python -m coordinator.cli`: the command of an environment whose scripts are not on PATH."""

from coordinator.cli.main import main

main()
