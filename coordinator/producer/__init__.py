"""Publishing: in a transaction of our own, or in the caller's."""
