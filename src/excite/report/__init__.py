"""What came out, for people: tables, figures and the page."""

from excite.report.page.page import write_page
from excite.report.tables.estimates import estimates_table
from excite.report.tables.excitation import excitation_facts, excitation_table
from excite.report.tables.run_table import table

__all__ = ["estimates_table", "excitation_facts", "excitation_table", "table", "write_page"]
