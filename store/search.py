"""Full-text search over everything a case holds as text.

Contract: the index is written in the transaction of the row it tells of. Any three letters in a row are found, inside
identifiers too; shorter words are looked for without the index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from store.db import Database
from store.rows import Row

# What is searched, per table.
SEARCHED: dict[str, tuple[str, ...]] = {
    "patch": ("name", "subject", "reason", "diff"),
    "question": ("text", "answer"),
    "hypothesis": ("text", "refuted_if", "reason"),
    "assumption": ("text", "reason"),
    "reading": ("path", "qualname", "note", "text"),
    "run": ("probe", "arm", "command"),
    "attempt": ("reason", "stderr_tail"),
    "patch_verdict": ("patch", "probe", "verdict", "reason"),
    "finding": ("claim", "patch", "flagged", "withdrawn_reason", "diff"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A row that holds the words: its table, its id, and the text around the first word."""

    noun: str
    id: int
    excerpt: str


def index(db: Database, table: str, row: Row) -> None:
    """Bring the index up to date with a row just written."""
    if table not in SEARCHED:
        return
    text = "\n".join(str(row[name]) for name in SEARCHED[table] if row[name])
    with db.transaction() as connection:
        unindex(db, table, row["id"])
        connection.execute("INSERT INTO search (text, noun, row_id) VALUES (?, ?, ?)", [text, table, row["id"]])


def unindex(db: Database, table: str, row_id: int) -> None:
    """Forget a row."""
    with db.transaction() as connection:
        connection.execute("DELETE FROM search WHERE noun = ? AND row_id = ?", [table, row_id])


def search(db: Database, text: str, *, limit: int = 50) -> list[Hit]:
    """The rows that hold every word of `text`, best first."""
    words = text.split()
    if not words:
        return []
    indexed = [word for word in words if len(word) >= 3]
    short = [word for word in words if len(word) < 3]
    conditions = ["text LIKE ? ESCAPE '\\'"] * len(short) + ["text MATCH ?"] * bool(indexed)
    cells = [_like(word) for word in short]
    if indexed:
        # Quoted, because FTS5 reads a bare `.`, `:` or `-` as its own syntax.
        cells.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in indexed))
    order = "rank" if indexed else "rowid"
    sql = f"SELECT noun, row_id, text FROM search WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    rows = db.query(sql, [*cells, limit])
    return [Hit(noun=row["noun"], id=row["row_id"], excerpt=_excerpt(row["text"], words[0])) for row in rows]


def _like(word: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", word) + "%"


def _excerpt(text: str, word: str) -> str:
    at = max(text.lower().find(word.lower()), 0)
    return " ".join(text[max(at - 40, 0) : at + 80].split())
