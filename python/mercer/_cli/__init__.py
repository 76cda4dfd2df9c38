"""The command line: a module for each command, ``program`` puts them together."""
