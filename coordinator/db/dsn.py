"""One form of address for a database, whatever form it came in."""

import re

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from coordinator.errors import ConfigError

# SQLAlchemy's URLs name a driver, postgresql+psycopg://; libpq knows no such thing.
_URL_SCHEME = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")


def conninfo(dsn: str) -> str:
    """Return what libpq takes for a conninfo string, a postgresql:// URL or a SQLAlchemy URL; "" means its defaults.

    Of several hosts the one that takes writes is meant, unless the DSN says otherwise: libpq's own default is whichever
    answers first, and that may be a standby.

    Raises:
        ConfigError: If libpq would not understand it. The message has no part of the DSN, which may hold a password.
    """
    address = _URL_SCHEME.sub("postgresql://", dsn.strip())
    try:
        known = conninfo_to_dict(address)
    except (ProgrammingError, UnicodeEncodeError):
        # From None: libpq's message quotes the address.
        raise ConfigError(
            'this DSN is neither a URL "postgresql://user@host/database" nor a conninfo "host=... dbname=..."',
            hint="In a URL, a character of the password that is no letter, digit, dot, dash or underscore is written as % and "
            "two hexadecimal digits: %40 for @, %2F for /, %20 for a space.",
        ) from None
    hosts = str(known.get("host") or known.get("hostaddr") or "")
    if "," in hosts and "target_session_attrs" not in known:
        return make_conninfo(address, target_session_attrs="read-write")
    return address
