"""The store: one SQLite file per case. It knows nothing of git, torch or the screen."""
