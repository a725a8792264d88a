"""Measurements of the engine: `python -m engine.probes.NAME --help`. Each runs on one thread and reports as JSON lines."""
