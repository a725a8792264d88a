"""Measurements of the engine: `python -m engine.probes.NAME --help`. One thread each, JSON lines out."""
