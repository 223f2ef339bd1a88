"""The edge to PostgreSQL: connections, running statements, translating errors, installing the schema."""
