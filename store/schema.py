"""The steps of the schema, numbered and only ever appended; `store.migrations` applies them.

Contract: a step that was released is never edited; a change is a new step. Column names are the field names of
`store.models` (a test compares them); JSON, bool and NaN as in `store/rows.py`.

Source: the registry is `sqlite_utils.Migrations`.
"""

from __future__ import annotations

import sqlite_utils
from sqlite_utils import Migrations

MIGRATIONS = Migrations("livepath")


def _run(db: sqlite_utils.Database, script: str) -> None:
    """Statement by statement: `executescript` would commit the transaction around it."""
    for statement in script.split(";\n\n"):
        if statement.strip():
            db.execute(statement)


@MIGRATIONS(name="m001_case_and_journal")
def m001(db: sqlite_utils.Database) -> None:
    """The case itself, small settings, and the journal, which the file itself refuses to change."""
    _run(
        db,
        """
        CREATE TABLE case_info (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            slug TEXT NOT NULL,
            symptom TEXT NOT NULL,
            repo TEXT NOT NULL,
            target_toml TEXT NOT NULL,
            base TEXT NOT NULL,
            head TEXT NOT NULL,
            machine TEXT NOT NULL,
            livepath_version TEXT NOT NULL,
            created_utc TEXT NOT NULL,
            closed_utc TEXT
        ) STRICT;

        CREATE TABLE meta (
            key TEXT PRIMARY KEY,
            value TEXT NOT NULL
        ) STRICT;

        CREATE TABLE journal (
            id INTEGER PRIMARY KEY,
            at_utc TEXT NOT NULL,
            actor TEXT NOT NULL,
            action TEXT NOT NULL,
            noun TEXT NOT NULL,
            row_id INTEGER NOT NULL,
            before TEXT,
            after TEXT,
            undoes INTEGER REFERENCES journal (id)
        ) STRICT;

        CREATE TRIGGER journal_is_append_only_update BEFORE UPDATE ON journal
        BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

        CREATE TRIGGER journal_is_append_only_delete BEFORE DELETE ON journal
        BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

        """,
    )


@MIGRATIONS(name="m002_suspects_and_thoughts")
def m002(db: sqlite_utils.Database) -> None:
    """What people bring to a case: patches, questions, hypotheses, assumptions, readings."""
    _run(
        db,
        """
        CREATE TABLE patch (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            role TEXT NOT NULL CHECK (role IN ('stack', 'candidate', 'control', 'gone')),
            kind TEXT NOT NULL CHECK (kind IN ('commit', 'file', 'flag')),
            position INTEGER NOT NULL,
            "commit" TEXT,
            patch_id TEXT NOT NULL,
            subject TEXT NOT NULL,
            diff TEXT NOT NULL,
            source TEXT NOT NULL,
            tier INTEGER,
            reason TEXT NOT NULL,
            suspected TEXT NOT NULL
        ) STRICT;

        CREATE TABLE question (
            id INTEGER PRIMARY KEY,
            text TEXT NOT NULL UNIQUE,
            how TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'answered')),
            answer TEXT NOT NULL,
            evidence TEXT NOT NULL,
            created_utc TEXT NOT NULL
        ) STRICT;

        CREATE TABLE hypothesis (
            id INTEGER PRIMARY KEY,
            text TEXT NOT NULL UNIQUE,
            predicate TEXT,
            refuted_if TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'supported', 'refuted', 'dead_end', 'parked')),
            by TEXT NOT NULL,
            reason TEXT NOT NULL,
            evidence TEXT NOT NULL,
            created_utc TEXT NOT NULL
        ) STRICT;

        CREATE TABLE assumption (
            id INTEGER PRIMARY KEY,
            text TEXT NOT NULL,
            about TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('unverified', 'verified', 'broken')),
            reason TEXT NOT NULL,
            created_utc TEXT NOT NULL,
            UNIQUE (text, about)
        ) STRICT;

        CREATE TABLE reading (
            id INTEGER PRIMARY KEY,
            path TEXT NOT NULL,
            start INTEGER NOT NULL,
            "end" INTEGER NOT NULL,
            rev TEXT NOT NULL,
            blob TEXT NOT NULL,
            text_sha256 TEXT NOT NULL,
            text TEXT NOT NULL,
            qualname TEXT NOT NULL,
            host TEXT NOT NULL,
            note TEXT NOT NULL,
            created_utc TEXT NOT NULL,
            UNIQUE (host, path, start, "end", rev)
        ) STRICT;

        """,
    )


@MIGRATIONS(name="m003_runs")
def m003(db: sqlite_utils.Database) -> None:
    """Runs, their attempts, and what an attempt said (claims) and did (executed files)."""
    _run(
        db,
        """
        CREATE TABLE run (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            probe TEXT NOT NULL,
            arm TEXT NOT NULL,
            patches TEXT NOT NULL,
            tree TEXT NOT NULL,
            seed INTEGER NOT NULL,
            command TEXT NOT NULL,
            instrumentation TEXT NOT NULL,
            created_utc TEXT NOT NULL
        ) STRICT;

        CREATE TABLE attempt (
            id INTEGER PRIMARY KEY,
            run_id INTEGER NOT NULL REFERENCES run (id),
            number INTEGER NOT NULL,
            status TEXT NOT NULL CHECK (
                status IN ('running', 'ok', 'good', 'bad', 'cannot_be_tested', 'infrastructure', 'cancelled')
            ),
            folder TEXT NOT NULL,
            exit_code INTEGER,
            signal INTEGER,
            reason TEXT NOT NULL,
            stderr_tail TEXT NOT NULL,
            unreadable_events INTEGER NOT NULL,
            fully_traced INTEGER NOT NULL,
            blind TEXT NOT NULL,
            wall_s REAL,
            started_utc TEXT NOT NULL,
            UNIQUE (run_id, number)
        ) STRICT;

        CREATE TABLE item (
            attempt_id INTEGER NOT NULL REFERENCES attempt (id),
            item TEXT NOT NULL,
            cluster TEXT NOT NULL,
            score REAL,
            tags TEXT NOT NULL
        ) STRICT;

        CREATE INDEX item_of_attempt ON item (attempt_id);

        CREATE TABLE metric (
            attempt_id INTEGER NOT NULL REFERENCES attempt (id),
            name TEXT NOT NULL,
            value REAL,
            n INTEGER,
            low REAL,
            high REAL,
            higher_is_better INTEGER,
            tags TEXT NOT NULL
        ) STRICT;

        CREATE INDEX metric_of_attempt ON metric (attempt_id);

        CREATE TABLE claim (
            attempt_id INTEGER NOT NULL REFERENCES attempt (id),
            event TEXT NOT NULL,
            body TEXT NOT NULL
        ) STRICT;

        CREATE INDEX claim_of_attempt ON claim (attempt_id, event);

        CREATE TABLE executed_file (
            attempt_id INTEGER NOT NULL REFERENCES attempt (id),
            path TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            lines TEXT NOT NULL,
            arcs TEXT NOT NULL,
            PRIMARY KEY (attempt_id, path)
        ) STRICT;

        """,
    )


@MIGRATIONS(name="m004_evidence")
def m004(db: sqlite_utils.Database) -> None:
    """What the lab concludes: liveness, comparisons, verdicts, findings."""
    _run(
        db,
        """
        CREATE TABLE reading_liveness (
            id INTEGER PRIMARY KEY,
            reading_id INTEGER NOT NULL REFERENCES reading (id),
            run_id INTEGER NOT NULL REFERENCES run (id),
            word TEXT NOT NULL,
            count INTEGER,
            given TEXT NOT NULL,
            reason TEXT NOT NULL,
            siblings TEXT NOT NULL,
            UNIQUE (reading_id, run_id)
        ) STRICT;

        CREATE TABLE changed_line (
            patch TEXT NOT NULL REFERENCES patch (name),
            run_id INTEGER NOT NULL REFERENCES run (id),
            path TEXT NOT NULL,
            line INTEGER NOT NULL,
            text TEXT NOT NULL,
            acting INTEGER NOT NULL,
            word TEXT NOT NULL,
            count INTEGER,
            reason TEXT NOT NULL
        ) STRICT;

        CREATE INDEX changed_line_of_patch ON changed_line (patch, run_id);

        CREATE TABLE comparison (
            id INTEGER PRIMARY KEY,
            probe TEXT NOT NULL,
            metric TEXT NOT NULL,
            background TEXT NOT NULL,
            without_arm TEXT NOT NULL,
            with_arm TEXT NOT NULL,
            without_run INTEGER NOT NULL REFERENCES run (id),
            with_run INTEGER NOT NULL REFERENCES run (id),
            outcome TEXT NOT NULL CHECK (outcome IN ('worse', 'better', 'equivalent', 'undecided')),
            n INTEGER NOT NULL,
            items INTEGER NOT NULL,
            difference REAL,
            low REAL,
            high REAL,
            p_value REAL,
            discordant INTEGER NOT NULL,
            margin REAL,
            alpha REAL,
            deterministic INTEGER NOT NULL
        ) STRICT;

        CREATE TABLE patch_verdict (
            id INTEGER PRIMARY KEY,
            patch TEXT NOT NULL REFERENCES patch (name),
            probe TEXT NOT NULL,
            background TEXT NOT NULL,
            verdict TEXT NOT NULL CHECK (
                verdict IN ('does_not_apply', 'needs', 'cannot_be_tested', 'dead', 'culprit', 'fix', 'exonerated',
                            'inconclusive')
            ),
            reason TEXT NOT NULL,
            given TEXT NOT NULL,
            needs TEXT NOT NULL,
            verdict_with TEXT NOT NULL,
            control TEXT NOT NULL,
            comparison_id INTEGER REFERENCES comparison (id),
            runs TEXT NOT NULL,
            created_utc TEXT NOT NULL,
            UNIQUE (patch, probe, background)
        ) STRICT;

        CREATE TABLE finding (
            id INTEGER PRIMARY KEY,
            claim TEXT NOT NULL,
            verdict TEXT,
            patch_id TEXT NOT NULL,
            patch TEXT NOT NULL,
            diff TEXT NOT NULL,
            evidence TEXT NOT NULL,
            key TEXT NOT NULL,
            flagged TEXT NOT NULL,
            withdrawn_utc TEXT,
            withdrawn_reason TEXT NOT NULL,
            created_utc TEXT NOT NULL
        ) STRICT;

        CREATE UNIQUE INDEX finding_key ON finding (key) WHERE key <> '';

        """,
    )


@MIGRATIONS(name="m005_jobs")
def m005(db: sqlite_utils.Database) -> None:
    """Work asked for, and how far it is."""
    _run(
        db,
        """
        CREATE TABLE job (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            argument TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
            pid INTEGER,
            heartbeat_utc TEXT,
            done INTEGER NOT NULL,
            total INTEGER NOT NULL,
            note TEXT NOT NULL,
            cancel_requested INTEGER NOT NULL,
            message TEXT NOT NULL,
            created_utc TEXT NOT NULL,
            ended_utc TEXT
        ) STRICT;

        """,
    )


@MIGRATIONS(name="m006_search")
def m006(db: sqlite_utils.Database) -> None:
    """One full-text table over everything that is text; three letters of an identifier are enough (trigram)."""
    _run(
        db,
        """
        CREATE VIRTUAL TABLE search USING fts5 (text, noun UNINDEXED, row_id UNINDEXED, tokenize = 'trigram');

        """,
    )


@MIGRATIONS(name="m007_bisect")
def m007(db: sqlite_utils.Database) -> None:
    """Searches of the stack, with every step."""
    _run(
        db,
        """
        CREATE TABLE bisect (
            id INTEGER PRIMARY KEY,
            probe TEXT NOT NULL,
            background TEXT NOT NULL,
            outcome TEXT NOT NULL CHECK (
                outcome IN ('', 'culprit', 'not reproduced', 'older than the stack', 'inconclusive')
            ),
            text TEXT NOT NULL,
            culprits TEXT NOT NULL,
            steps TEXT NOT NULL,
            confidence REAL,
            created_utc TEXT NOT NULL,
            UNIQUE (probe, background)
        ) STRICT;

        """,
    )
