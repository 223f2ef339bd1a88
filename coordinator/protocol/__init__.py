"""The functions of the schema as data: text, parameters, row parser; no I/O."""
