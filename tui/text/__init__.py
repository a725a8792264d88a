"""Words of the command line and the screen."""
