"""Widgets that draw lines: lists, source, diffs, grids and text, all on one line view."""
