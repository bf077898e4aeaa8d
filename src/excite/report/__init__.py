"""What came out, for people: tables, figures and the page."""

from excite.report.estimates import estimates_table
from excite.report.excitation import excitation_facts, excitation_table
from excite.report.page import write_page
from excite.report.table import table

__all__ = ["estimates_table", "excitation_facts", "excitation_table", "table", "write_page"]
