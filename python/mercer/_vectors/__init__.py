"""Formulas with vector values, as calls of the verbs on numbers of pairs."""
