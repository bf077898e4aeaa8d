"""Rows and columns: the table of a run, of a study over seeds, of estimates, and the paper's beside them."""
