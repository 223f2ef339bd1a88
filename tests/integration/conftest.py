"""The shells behind one adapter, for the tests of delivery."""

from support.shells import make_shell, shell

__all__ = ["make_shell", "shell"]
