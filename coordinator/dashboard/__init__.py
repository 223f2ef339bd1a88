"""Read-only pages for people, served by `coordinator serve`; one function per route."""
