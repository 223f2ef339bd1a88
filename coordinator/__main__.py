"""`python -m coordinator`: the command line, where its script is not on PATH."""

from coordinator.cli.main import main

if __name__ == "__main__":
    main()
