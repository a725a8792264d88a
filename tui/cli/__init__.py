"""The command line: every action of the workbench, for a person in a terminal and for a script."""
