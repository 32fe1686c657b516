"""Command-line tools: a folder for each command, and beside the folders what several commands use."""
