"""Replacements for functions of other packages, a module for each package: see mercer.patch."""
