"""The workbench room that shows and asks: the screen and the command line."""
