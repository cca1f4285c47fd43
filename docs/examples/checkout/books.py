"""The shop's own database: what is reserved, and what was paid.

Every entry has a key, and a key is entered once. The steps of a check-out pass their own (``ctx.idempotency_key``), so a
step that runs again after a crash finds what it has done, and does not do it twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

STOCK = {"lamp": 5, "desk": 1}
PRICES = {"lamp": 2900, "desk": 14900}

_TABLES = """
CREATE TABLE IF NOT EXISTS reserved (key TEXT PRIMARY KEY, item TEXT NOT NULL, quantity INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS paid (key TEXT PRIMARY KEY, email TEXT NOT NULL, cents INTEGER NOT NULL);
"""


class OutOfStock(Exception):
    """There are not so many left."""


class Books:
    """The database in one file; may be used from any thread, and by several processes."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as database:
            database.executescript(_TABLES)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            with database:
                yield database

    def reserve(self, key: str, item: str, quantity: int) -> None:
        """Keep some for one check-out.

        Raises:
            OutOfStock: there are not so many left.
        """
        with self._transaction() as database:
            if database.execute("SELECT 1 FROM reserved WHERE key = ?", [key]).fetchone():
                return
            taken = database.execute("SELECT total(quantity) FROM reserved WHERE item = ?", [item]).fetchone()[0]
            if STOCK.get(item, 0) - taken < quantity:
                raise OutOfStock(f"there are not {quantity} of {item!r} left")
            database.execute("INSERT INTO reserved VALUES (?, ?, ?)", [key, item, quantity])

    def release(self, key: str) -> None:
        """Keep them no longer."""
        with self._transaction() as database:
            database.execute("DELETE FROM reserved WHERE key = ?", [key])

    def pay(self, key: str, email: str, cents: int) -> None:
        """Take the money, once."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO paid VALUES (?, ?, ?)", [key, email, cents])

    def refund(self, key: str) -> None:
        """Give it back."""
        with self._transaction() as database:
            database.execute("DELETE FROM paid WHERE key = ?", [key])

    def summary(self) -> dict[str, object]:
        """What is left of each item, and the money."""
        with self._transaction() as database:
            taken = dict(database.execute("SELECT item, sum(quantity) FROM reserved GROUP BY item").fetchall())
            [cents] = database.execute("SELECT coalesce(sum(cents), 0) FROM paid").fetchone()
        return {"left": {item: number - taken.get(item, 0) for item, number in STOCK.items()}, "cents": cents}
