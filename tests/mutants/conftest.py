"""The shells behind one adapter, as the tests of delivery have them."""

from support.shells import make_shell

__all__ = ["make_shell"]
